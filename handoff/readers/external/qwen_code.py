"""Reader of Qwen Code: the chat files in `~/.qwen/projects`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_takeover.handoff.readers.external.branches import RowKind, TreeRow, find_live_rows
from langgraph_takeover.handoff.readers.external.sessions import (
    SessionBuilder,
    ToolResult,
    number_lines,
    parse_count,
    strip_reminders,
)
from langgraph_takeover.handoff.readers.recorded_run import (
    RecordedRun,
    extract_text,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.readers.tool_names import may_carry_call
from langgraph_takeover.handoff.text.tool_wrappers import find_qwen_footer, strip_qwen_wrapper
from langgraph_takeover.handoff.trace.events import Usage

_ROW_TYPES = ("user", "assistant", "tool_result")
_OTHER_ROWS = ("system",)
_PART_FIELDS = {"text", "thought", "functionCall", "functionResponse", "inlineData", "fileData"}
_SHELL_TOOL = "run_shell_command"
_TIMEOUT = re.compile(r"Command (?:timed out after|was (?:aborted|cancelled|canceled))")
_BACKGROUND = re.compile(r"Background shell started\.\nid: (\w{1,40})")
_INTRODUCTION = "This is the Qwen Code"
_SHOWN_LINES = re.compile(
    r"(?:\[?Showing lines|Read lines) (\d{1,9})-\d{1,9} of \d{1,9} total lines\.?\]?\n+(?:---\n+)?"
)
_NOTICE_CHARS = 400
_LINES_CHARS = 2_000_000


def is_chat(data: Any) -> bool:
    """Whether the rows are those of a chat file."""
    return isinstance(data, list) and any(_is_message(row) for row in data[:200])


def _is_message(row: Any) -> bool:
    return (
        isinstance(row, Mapping)
        and row.get("type") in _ROW_TYPES
        and "sessionId" in row
        and isinstance(to_mapping(row.get("message")).get("parts"), list)
    )


def read(rows: Sequence[Any], name: str) -> RecordedRun:
    """Read the messages of the live branch in order; a compressed history keeps its earlier rows."""
    session = SessionBuilder(name, "qwen-code", keeps_directory=False)
    by_id: dict[str, Mapping[str, Any]] = {}
    for number, row in enumerate(to_mappings(list(rows))):
        # Rows without an id, as of old versions, form no tree. A resumed session may repeat rows.
        uuid = row["uuid"] if isinstance(row.get("uuid"), str) else f"#{number}"
        by_id.setdefault(uuid, {**row, "uuid": uuid})
    linked = list(by_id.values())
    for row in linked:
        if row.get("type") not in (*_ROW_TYPES, *_OTHER_ROWS) and may_carry_call(row):
            session.add_unknown(str(row.get("type")))
    live = find_live_rows([_read_tree_row(row) for row in linked])
    messages = [(row, is_live) for row, is_live in zip(linked, live, strict=True) if _is_message(row)]
    _read_rows(session, [row for row, is_live in messages if is_live])
    if withdrawn := [row for row, is_live in messages if not is_live]:
        _read_rows(session.start_withdrawn(), withdrawn)
    return session.build()


def _read_tree_row(row: Mapping[str, Any]) -> TreeRow:
    parent = row.get("parentUuid")
    parts = to_mappings(to_mapping(row.get("message")).get("parts"))
    calls = (to_mapping(part.get("functionCall", part.get("functionResponse"))).get("id") for part in parts)
    kinds: dict[str, RowKind] = {"user": "request", "assistant": "reply", "tool_result": "result"}
    return TreeRow(
        str(row["uuid"]),
        parent if isinstance(parent, str) else None,
        # A rewind begins a branch anywhere, as a request does.
        "request" if row.get("subtype") == "rewind" else kinds.get(str(row.get("type")), "note"),
        is_root="parentUuid" in row and parent is None,
        calls=frozenset(str(each) for each in calls if each is not None),
    )


def _read_rows(session: SessionBuilder, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        if not session.agent:
            session.agent, session.agent_version = "qwen-code", str(row.get("version") or "")
            session.name = str(row.get("sessionId") or session.name)
            session.workspace = str(row.get("cwd") or "")
        parts = to_mappings(to_mapping(row.get("message"))["parts"])
        _note_unknown(session, parts)
        if row["type"] == "assistant":
            session.model = session.model or str(row.get("model") or "")
            session.start_reply()
            for part in parts:
                _read_part(session, part)
            session.add_usage(_parse_usage(row.get("usageMetadata")))
        elif row["type"] == "tool_result":
            for part in parts:
                _read_result(session, part, row.get("toolCallResult"))
        else:
            texts = [extract_text(part) for part in parts]
            session.background.add_notification("\n".join(texts))
            session.add_prompt(*(text for text in texts if not text.startswith(_INTRODUCTION)))


def _note_unknown(session: SessionBuilder, parts: Sequence[Mapping[str, Any]]) -> None:
    """Count the parts of a message that have none of the known fields."""
    for part in parts:
        if _PART_FIELDS.isdisjoint(part):
            session.add_unknown(next(iter(part), ""))


def _read_part(session: SessionBuilder, part: Mapping[str, Any]) -> None:
    call = part.get("functionCall")
    if isinstance(call, Mapping):
        session.add_call(str(call.get("id")), str(call.get("name") or ""), to_mapping(call.get("args")))
    elif part.get("thought") is True:
        session.add_thought(extract_text(part.get("text")))
    elif "text" in part:
        session.add_message(extract_text(part.get("text")))


def _read_result(session: SessionBuilder, part: Mapping[str, Any], details: Any) -> None:
    response = to_mapping(part.get("functionResponse"))
    call_id, content = str(response.get("id")), response.get("response")
    call = session.find_call(call_id)
    if call is None:
        session.add_early_result(call_id, lambda: _read_result(session, part, details))
        return
    result = parse_result(str(response.get("name") or ""), call.arguments, content, details)
    session.add_result(call_id, _extract_response(content), result)


def parse_result(name: str, arguments: Mapping[str, Any], content: Any, details: Any = None) -> ToolResult:
    """Parse what the model saw of a call; `details` is the field `toolCallResult` of the session's row."""
    text = _extract_response(content)
    is_error = to_mapping(details).get("status") in ("error", "cancelled") or "error" in to_mapping(content)
    if name != _SHELL_TOOL:
        return ToolResult(_number_lines(text) if name == "read_file" else text, refused=is_error)
    background = _BACKGROUND.match(text)
    if background:
        return ToolResult("", process_id=background[1])
    if _TIMEOUT.match(text[:_NOTICE_CHARS]):
        return ToolResult(text.partition("\n")[2], timed_out=True)
    footer = find_qwen_footer(text)
    code = int(footer["code"]) if footer and footer["code"] != "(none)" else None
    return ToolResult(strip_qwen_wrapper(text), code, refused=is_error and footer is None)


def _extract_response(content: Any) -> str:
    """The text of a response, which is text or an object with `output` or `error`."""
    if isinstance(content, Mapping):
        content = content.get("output", content.get("error", content.get("content")))
    return extract_text(content)


def _number_lines(text: str) -> str:
    """The lines of a read file with their numbers, as other agents print them."""
    text = strip_reminders(text[:_LINES_CHARS]) if "<system-reminder>" in text else text[:_LINES_CHARS]
    shown = _SHOWN_LINES.match(text)
    return number_lines(text[shown.end() :] if shown else text, int(shown[1]) if shown else 1)


def _parse_usage(counts: Any) -> Usage | None:
    numbers = {key: parse_count(value) for key, value in to_mapping(counts).items()}
    prompt, completion = numbers.get("promptTokenCount"), numbers.get("candidatesTokenCount")
    if prompt is None and completion is None:
        return None
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=numbers.get("cachedContentTokenCount"),
        completion_tokens=completion,
    )
