"""How a model writes the notes of a handoff point: once, bounded, and never failing for a bad reply."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import islice

from langchain_core.messages import BaseMessage, HumanMessage

from handoff.event import Usage
from handoff.note import MODEL_FIELDS
from handoff.record import HandoffRecord, Notes
from handoff.views import prompt_text, rendered

Ask = Callable[[list[BaseMessage]], tuple[str, Usage]]
"""Asks the notes model. Raises `TooLong` when the prompt does not fit its context."""

OUTPUT_TOKENS = 1600
_FIRST_LIMIT = 200_000
_LAST_LIMIT = 8_000
_EVENT_CHARS = 4_000
_MOST_OBJECTS = 50
_OBJECT = re.compile(r'\{\s*"')
_PAIR = re.compile(r'"(\w+)"\s*:\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)


class TooLong(Exception):
    """The notes prompt exceeds the model's context window."""


def write_notes(record: HandoffRecord, ask: Ask, model_name: str) -> Notes:
    """Both kinds of notes; what the model's reply does not give stays absent."""
    summary, summary_usage = _asked("summary", record, ask)
    reply, structured_usage = _asked("structured", record, ask)
    return Notes(
        model=model_name,
        summary=_without_thoughts(summary).strip() or "UNKNOWN",
        structured=read_fields(reply),
        summary_usage=summary_usage,
        structured_usage=structured_usage,
    )


def read_fields(reply: str) -> dict[str, str]:
    """The known fields in a reply that should be one JSON object, as much of it as can be read."""
    text = _without_thoughts(reply)
    found: dict[str, object] = {}
    for start in islice((match.start() for match in _OBJECT.finditer(text)), _MOST_OBJECTS):
        try:
            value, _ = json.JSONDecoder(strict=False).raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and any(name in value for name in MODEL_FIELDS):
            found = value
            break
    else:
        found = {name: _unescaped(value) for name, value in _PAIR.findall(text)}
    return {name: text for name in MODEL_FIELDS if (text := _as_text(found.get(name)))}


def _without_thoughts(reply: str) -> str:
    text = re.sub(r"<think>.*?(</think>|\Z)", "", reply, flags=re.DOTALL)
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _unescaped(value: str) -> str:
    try:
        return str(json.loads(f'"{value}"', strict=False))
    except ValueError:
        return value


def _as_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "; ".join(text for item in value if (text := _plain(item)))
    return _plain(value)


def _plain(value: object) -> str:
    text = value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _asked(kind: str, record: HandoffRecord, ask: Ask) -> tuple[str, Usage]:
    limit = _FIRST_LIMIT
    while True:
        prompt = (
            f"{prompt_text(kind)}\n# Task\n\n{record.task.prompt}\n\n# Record\n\n{_bounded(record, limit)}"
        )
        try:
            return ask([HumanMessage(prompt)])
        except TooLong:
            if limit <= _LAST_LIMIT:
                return "", Usage()
            limit = max(limit // 2, _LAST_LIMIT)


def _bounded(record: HandoffRecord, limit: int) -> str:
    """The trace with long events and, if that is not enough, its middle cut out."""
    per_event = max(min(_EVENT_CHARS, limit // 8), 400)
    text = rendered(
        event
        if len(event.text) <= per_event
        else event.model_copy(update={"text": _middle_cut(event.text, per_event)})
        for event in record.trace
    )
    return text if len(text) <= limit else _middle_cut(text, limit)


def _middle_cut(text: str, limit: int) -> str:
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
