"""Reader of opencode: the document that `opencode export ID` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from langgraph_takeover.handoff.readers.external.sessions import (
    SessionBuilder,
    ToolResult,
    parse_exit_code,
    parse_usage_parts,
)
from langgraph_takeover.handoff.readers.recorded_run import (
    RecordedRun,
    extract_text,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.text.tool_wrappers import OPENCODE_FOOTER, strip_wrapper
from langgraph_takeover.handoff.trace.events import Usage

_SHELL_TOOL = "bash"
_PART_TYPES = {
    "text", "reasoning", "tool", "file", "agent", "subtask", "step-start", "step-finish", "snapshot", "patch", "retry",
    "compaction",
}  # fmt: skip
_TIMEOUT = re.compile(r"exceeding timeout|timed out|aborted")
_SHOWN_LINE = re.compile(r"^(?:0*(\d{1,9}): ?|0*(\d{1,9})\| ?)(.*)$", re.M)
_LINES_CHARS = 2_000_000


def is_export(data: Any) -> bool:
    """Whether the document is an exported session."""
    if not isinstance(data, Mapping) or not isinstance(data.get("messages"), list):
        return False
    return "id" in to_mapping(data.get("info")) and any(
        isinstance(message, Mapping)
        and isinstance(message.get("parts"), list)
        and "role" in to_mapping(message.get("info"))
        for message in data["messages"][:5]
    )


def read(data: Mapping[str, Any], name: str) -> RecordedRun:
    """Read the parts of all messages in order, up to those that the user reverted; a compaction's summary is left out."""
    info = to_mapping(data.get("info"))
    session = SessionBuilder(str(info.get("id") or name), "opencode", keeps_directory=False)
    session.agent, session.agent_version = "opencode", str(info.get("version") or "")
    session.workspace = str(info.get("directory") or "")
    live, withdrawn = _split_reverted(to_mappings(data.get("messages")), to_mapping(info.get("revert")))
    _read_messages(session, live)
    if withdrawn:
        _read_messages(session.start_withdrawn(), withdrawn)
    return session.build()


def _split_reverted(
    messages: list[Mapping[str, Any]], revert: Mapping[str, Any]
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The messages before the reverted ones, and these; a revert may begin at a part of a message."""
    ids = [to_mapping(message.get("info")).get("id") for message in messages]
    if revert.get("messageID") is None or revert["messageID"] not in ids:
        return messages, []
    start = ids.index(revert["messageID"])
    parts = to_mappings(messages[start].get("parts"))
    part_ids = [part.get("id") for part in parts]
    cut = part_ids.index(revert["partID"]) if revert.get("partID") in part_ids else 0
    kept = [{**messages[start], "parts": parts[:cut]}] if cut else []
    return [*messages[:start], *kept], [{**messages[start], "parts": parts[cut:]}, *messages[start + 1 :]]


def _read_messages(session: SessionBuilder, messages: list[Mapping[str, Any]]) -> None:
    for message in messages:
        about, parts = to_mapping(message.get("info")), to_mappings(message.get("parts"))
        if about.get("role") == "user":
            texts = [
                part
                for part in parts
                if part.get("type") in ("text", "file") and part.get("synthetic") is not True
            ]
            session.add_prompt(*map(extract_text, texts))
        elif about.get("role") == "assistant" and about.get("summary") is not True:
            session.model = session.model or str(about.get("modelID") or "")
            session.start_reply()
            for part in parts:
                _read_part(session, part)
            session.add_usage(_parse_usage(about.get("tokens")))
        for part in parts:
            if str(part.get("type")) not in _PART_TYPES:
                session.add_unknown(str(part.get("type")))


def _read_part(session: SessionBuilder, part: Mapping[str, Any]) -> None:
    kind = part.get("type")
    if kind == "reasoning":
        session.add_thought(extract_text(part.get("text")))
    elif kind == "text" and part.get("synthetic") is not True:
        session.add_message(extract_text(part.get("text")))
    elif kind == "tool":
        call_id, name, state = (
            str(part.get("callID")),
            str(part.get("tool") or ""),
            to_mapping(part.get("state")),
        )
        arguments = to_mapping(state.get("input"))
        session.separate_calls()
        session.add_call(call_id, name, arguments)
        if state.get("status") in ("completed", "error"):
            content = state.get("output", state.get("error"))
            session.add_result(call_id, extract_text(content), parse_result(name, arguments, content, state))


def parse_result(name: str, arguments: Mapping[str, Any], content: Any, details: Any = None) -> ToolResult:
    """Parse what the model saw of a call; `details` is the state of the tool in the session, if known."""
    text = extract_text(content)
    state = to_mapping(details)
    metadata = to_mapping(state.get("metadata"))
    refused = state.get("status") == "error" or name == "invalid"
    if name != _SHELL_TOOL:
        return ToolResult(_number_lines(text) if name == "read" else text, refused=refused)
    footer = OPENCODE_FOOTER.search(text, max(len(text) - 4_000, 0))
    timed_out = footer is not None and _TIMEOUT.search(footer["notice"]) is not None
    code = parse_exit_code(metadata.get("exit"))
    return ToolResult(strip_wrapper(text), None if timed_out else code, refused=refused, timed_out=timed_out)


def _number_lines(text: str) -> str:
    """The text of a read file with tabs after the line numbers."""
    text = text[:_LINES_CHARS].partition("<content>\n")[2] or text[:_LINES_CHARS]
    return _SHOWN_LINE.sub(lambda line: f"{line[1] or line[2]}\t{line[3]}", text)


def _parse_usage(counts: Any) -> Usage | None:
    raw = to_mapping(counts)
    cache = to_mapping(raw.get("cache"))
    return parse_usage_parts(raw.get("input"), cache.get("read"), cache.get("write"), raw.get("output"))
