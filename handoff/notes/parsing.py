"""Parse the fields in a model's reply to a request for one JSON object."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from langgraph_takeover.base.untrusted_input import parse_prefix
from langgraph_takeover.handoff.records.record import Answer, Claim, StatedFields
from langgraph_takeover.handoff.text import skeleton
from langgraph_takeover.handoff.text.note_fields import (
    MAX_STATED_FILES,
    MODEL_FIELDS,
    NONE_OBSERVED,
    STATED_FIELDS,
    UNKNOWN,
)

_MAX_OBJECTS = 50
_MAX_CLAIMS = 12
_MAX_EVENTS = 20
_MAX_PATH_CHARS = 1_000
_MAX_REPETITIONS = 2
_MIN_SENTENCE_WORDS = 3  # fewer are a code fence, a heading, a short command
_SENTENCE_END = re.compile(r"(?<=[.!?])\s++")
_OBJECT = re.compile(r'\{\s*"')
_FIELD = re.compile(rf'"({"|".join((*STATED_FIELDS, *MODEL_FIELDS))})"\s*:')
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?', re.DOTALL)
_CITED = re.compile(
    r"(?<!\s)\s*+[\[(]\s*(?:events?\s+)?(e\d{1,9}(?:\s*(?:[,;–-]|and)\s*e?\d{1,9})*)\s*[\])]", re.IGNORECASE
)
_RANGE = re.compile(r"e?(\d+)(?:\s*[–-]\s*e?(\d+))?", re.IGNORECASE)


class ParsedReply(NamedTuple):
    """The known fields of a reply."""

    stated: StatedFields
    claims: dict[str, tuple[Claim, ...]]
    """The fields in prose; those without content are absent."""


def parse_reply(reply: str) -> ParsedReply:
    """Parse the known fields, as far as the reply is readable; what is not stays unknown or absent."""
    text = clean_reply(reply)
    found = find_first_object(text, (*STATED_FIELDS, *MODEL_FIELDS))
    if found is None:
        # Truncated, or JSON only in appearance.
        _, *parts = _FIELD.split(text)
        found = {name: _recover_items(value) for name, value in zip(parts[::2], parts[1::2], strict=True)}
    stated = StatedFields(
        changed_files=_parse_paths(found.get("changed_files")),
        validation_passes=_parse_answer(found.get("validation_passes")),
        work_done=_parse_answer(found.get("work_done")),
    )
    return ParsedReply(
        stated, {name: claims for name in MODEL_FIELDS if (claims := _parse_claims(found.get(name)))}
    )


def _parse_paths(value: object) -> tuple[str, ...] | None:
    """Parse a list of paths; None for anything else, and for a list that says only that it is unknown."""
    values = value if isinstance(value, list) else [value]
    paths = [
        _replace_surrogates(each.strip())
        for each in values
        if isinstance(each, str) and 0 < len(each.strip()) <= _MAX_PATH_CHARS
    ]
    if any(each.upper() == UNKNOWN for each in paths) or (values and not paths):
        return None
    named = (each for each in paths if each.upper() not in (NONE_OBSERVED, "NONE"))
    return tuple(dict.fromkeys(named))[:MAX_STATED_FILES]


def _parse_answer(value: object) -> Answer:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        return "yes" if value else "no"
    answer = value.strip().casefold() if isinstance(value, str) else ""
    return "yes" if answer == "yes" else "no" if answer == "no" else "unknown"


def find_first_object(text: str, names: Collection[str]) -> dict[str, object] | None:
    """Find the first JSON object in a text that has any of these names."""
    for start in islice((match.start() for match in _OBJECT.finditer(text)), _MAX_OBJECTS):
        try:
            value, _ = parse_prefix(text, start)
        except ValueError:
            continue
        if isinstance(value, dict) and any(name in value for name in names):
            return value
    return None


def clean_reply(reply: str) -> str:
    """Remove what a model thought aloud before its reply, and halves of surrogate pairs."""
    return _replace_surrogates(skeleton.remove_thoughts(reply))


def _replace_surrogates(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def remove_repeats(text: str) -> str:
    """Remove the repetitions of a model that is caught in a loop."""
    seen: Counter[str] = Counter()
    kept: list[str] = []
    dropped = 0
    for line in text.splitlines():
        sentences = _SENTENCE_END.split(line.strip())
        new = []
        for sentence in sentences:
            key = sentence.casefold()
            seen[key] += len(key.split()) >= _MIN_SENTENCE_WORDS
            new += [sentence] if seen[key] <= _MAX_REPETITIONS else []
        dropped += len(sentences) - len(new)
        if new and (new[0] or (kept and kept[-1])):
            kept.append(line.rstrip() if len(new) == len(sentences) else " ".join(new))
    return "\n".join([*kept, *([f"[… {dropped:,} repetitions left out …]"] if dropped else [])])


def _recover_items(value: str) -> list[object]:
    """List the complete statements in a piece of JSON: objects if there are any, else strings."""
    found: list[object] = []
    for start in islice((match.start() for match in _OBJECT.finditer(value)), _MAX_CLAIMS):
        with contextlib.suppress(ValueError):
            found.append(parse_prefix(value, start)[0])
    return found or list(_find_strings(value))


def _find_strings(value: str) -> list[str]:
    """List the complete strings in a piece of JSON that are not names."""
    found = []
    for inner, is_name in _STRING.findall(value):
        if is_name or not inner:
            continue
        try:
            found.append(str(json.loads(f'"{inner}"', strict=False)))
        except ValueError:
            found.append(inner)
    return found


def _parse_claims(value: object) -> tuple[Claim, ...]:
    found: list[Claim] = []
    for item in value if isinstance(value, list) else [value]:
        if item is not None and item != "":
            found += _split_claims(_replace_surrogates(_to_text(item)))
    first: dict[str, Claim] = {}
    for claim in found:
        first.setdefault(claim.text.casefold(), claim)
    return tuple(first.values())[:_MAX_CLAIMS]


def _to_text(item: object) -> str:
    """Render a statement as text, with its events in brackets, in whatever form a model gave it."""
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        value = next(
            (item[key] for key in ("claim", "text", "statement") if isinstance(item.get(key), str)), None
        )
        events = item.get("events", item.get("event_ids"))
        if value is not None:
            cited = [f"e{str(each).lstrip('e')}" for each in events] if isinstance(events, list) else []
            return f"{value} [{', '.join(cited)}]" if cited else value
    return json.dumps(item, ensure_ascii=False)


def _split_claims(text: str) -> list[Claim]:
    """Split a text into statements, each ended by the events that it cites; text after the last has none."""
    found: list[Claim] = []
    begin, last = 0, None
    for cited in [*_CITED.finditer(text), None]:
        statement = text[begin : cited.start() if cited else len(text)].strip(" \n\t.;,")
        events = _parse_indices(cited[1]) if cited else ()
        begin = cited.end() if cited else len(text)
        if statement:
            found.append(Claim(text=statement, events=events))
        elif events and last is not None:
            found[-1] = Claim(text=last.text, events=(*last.events, *events)[:_MAX_EVENTS])
        last = found[-1] if found else None
    return found


def _parse_indices(cited: str) -> tuple[int, ...]:
    found: list[int] = []
    for first, last in _RANGE.findall(cited):
        end = int(last) if last and int(first) <= int(last) < int(first) + _MAX_EVENTS else int(first)
        found += range(int(first), end + 1)
    return tuple(dict.fromkeys(found))[:_MAX_EVENTS]
