"""Reader of pi and of OpenClaw: the files in `~/.pi/agent/sessions` and `~/.openclaw/agents`, and the output of `--mode json`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langgraph_takeover.handoff.recordings.branches import RowKind, TreeRow, find_live_rows
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedRun,
    extract_text,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.recordings.sessions import (
    SessionBuilder,
    ToolResult,
    number_lines,
    parse_arguments,
    parse_exit_code,
    parse_usage_parts,
)
from langgraph_takeover.handoff.recordings.tool_calls import may_carry_call

_KINDS: dict[str, RowKind] = {
    "user": "request",
    "assistant": "reply",
    "toolResult": "result",
    "bashExecution": "other",
}
_OTHER_ROWS = (
    "session", "message", "message_start", "message_update", "message_end", "tool_execution_start", "tool_execution_update",
    "tool_execution_end", "turn_start", "turn_end", "agent_start", "agent_end", "custom", "custom_message", "compaction",
    "branch_summary", "model_change", "thinking_level_change", "label", "session_info",
)  # fmt: skip
_OTHER_ROLES = ("custom", "branchSummary", "compactionSummary", "hookMessage", "system")
_SHELL_TOOLS = ("bash", "exec")
_NAMES = {"exec": "bash", "process": "write_stdin"}
"""Tools of OpenClaw; `process` reads or ends a command in the background."""
_EXIT_CODE = re.compile(r"\(?Command exited with code (-?\d{1,9})\)?\Z")
_TIMEOUT = re.compile(r"\(?Command (?:timed out after [^\n]{1,40}|aborted[^\n]{0,40})\Z")
_RUNNING = re.compile(r"Command still running \(session ([\w-]{1,60})")
_METADATA = re.compile(
    r"(?:Conversation info|Sender) \(untrusted metadata\):\n```json\n(?>(?:(?!```)[^\n]*\n)*)```\s*"
)
_SENT = re.compile(r"\[\w{3} \d{4}-\d\d-\d\d \d\d:\d\d [\w+:-]{1,10}\] ")
_END_CHARS, _LINES_CHARS = 400, 2_000_000


def is_session(data: Any) -> bool:
    """Whether the rows are those of a session or of a run's output."""
    if not isinstance(data, list):
        return False
    head = to_mappings(data[:200])
    return any(row.get("type") == "session" and "cwd" in row and "id" in row for row in head) and any(
        "role" in to_mapping(row.get("message")) for row in head
    )


def read(rows: Sequence[Any], name: str) -> RecordedRun:
    """Read the messages of the live branch in order; a compacted history keeps its earlier messages."""
    session = SessionBuilder(name, "pi", keeps_directory=False)
    mappings = to_mappings(list(rows))
    header = next((row for row in mappings if row.get("type") == "session"), {})
    session.agent = "pi"
    session.name = str(header.get("id") or name)
    session.workspace = str(header.get("cwd") or "")
    session.model = str(header.get("modelId") or "")
    for row in mappings:
        if row.get("type") not in _OTHER_ROWS and may_carry_call(row):
            session.add_unknown(str(row.get("type")))
    # A run's output has each message at its begin and at its end.
    kind = "message" if any(row.get("type") == "message" for row in mappings) else "message_end"
    entries = [
        row for row in mappings if row.get("type") == kind or (kind == "message" and "parentId" in row)
    ]
    live = find_live_rows([_read_tree_row(number, row) for number, row in enumerate(entries)])
    messages = [(row, is_live) for row, is_live in zip(entries, live, strict=True) if row.get("type") == kind]
    _read_messages(session, [row for row, is_live in messages if is_live])
    if withdrawn := [row for row, is_live in messages if not is_live]:
        _read_messages(session.start_withdrawn(), withdrawn)
    return session.build()


def _read_tree_row(number: int, row: Mapping[str, Any]) -> TreeRow:
    parent, message = row.get("parentId"), to_mapping(row.get("message"))
    role = str(message.get("role"))
    calls = [part.get("id") for part in to_mappings(message.get("content")) if part.get("type") == "toolCall"]
    is_summary = row.get("type") == "branch_summary"
    return TreeRow(
        # Rows without an id, as of old versions, form no tree.
        row["id"] if isinstance(row.get("id"), str) else f"#{number}",
        parent if isinstance(parent, str) else None,
        _KINDS.get(role, "other" if is_summary else "note"),
        is_root="parentId" in row and parent is None,
        calls=frozenset(str(each) for each in (*calls, message.get("toolCallId")) if each is not None),
    )


def _read_messages(session: SessionBuilder, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        message = to_mapping(row.get("message"))
        role, content = message.get("role"), message.get("content")
        if role == "user":
            text = _METADATA.sub("", extract_text(content)).lstrip()
            session.add_prompt(_SENT.sub("", text, count=1) if _SENT.match(text) else text)
        elif role == "assistant":
            session.model = session.model or str(message.get("model") or "")
            session.start_reply()
            for part in (
                to_mappings(content) if isinstance(content, list) else [{"type": "text", "text": content}]
            ):
                _read_part(session, part)
            usage = to_mapping(message.get("usage"))
            session.add_usage(
                parse_usage_parts(*(usage.get(key) for key in ("input", "cacheRead", "cacheWrite", "output")))
            )
        elif role == "toolResult":
            _read_result(session, message)
        elif role == "bashExecution":
            _read_user_command(session, message)
        elif role not in _OTHER_ROLES and may_carry_call(message):
            session.add_unknown(str(role))


def _read_part(session: SessionBuilder, part: Mapping[str, Any]) -> None:
    kind = part.get("type")
    if kind == "toolCall":
        name, arguments = str(part.get("name") or ""), parse_arguments(part.get("arguments"))
        if name == "process":
            stops = arguments.get("action") in ("kill", "remove")
            name = "killshell" if stops else name
            arguments = {**arguments, "chars": str(arguments.get("data") or "")}
        session.add_call(str(part.get("id")), _NAMES.get(name, name), arguments)
    elif kind == "thinking":
        session.add_thought(extract_text(part.get("thinking")))
    elif kind in ("text", "image"):
        session.add_message(extract_text(part))
    else:
        session.add_unknown(str(kind))


def _read_result(session: SessionBuilder, message: Mapping[str, Any]) -> None:
    call_id, text = str(message.get("toolCallId")), extract_text(message.get("content"))
    if (call := session.find_call(call_id)) is None:
        session.add_early_result(call_id, lambda: _read_result(session, message))
        return
    details = {"isError": message.get("isError"), **to_mapping(message.get("details"))}
    result = parse_result(str(message.get("toolName") or ""), call.arguments, text, details)
    session.add_result(call_id, result.output if result.exit_code is not None else text, result)


def parse_result(
    name: str, arguments: Mapping[str, Any], text: str, details: Mapping[str, Any]
) -> ToolResult:
    """Parse what the model saw of a call; `details` are those of the session's row, with its `isError`."""
    is_error = details.get("isError") is True or details.get("status") == "error"
    end = max(len(text) - _END_CHARS, 0)
    if name == "read":
        first = arguments.get("start", "1")
        numbered = number_lines(text[:_LINES_CHARS], int(first) if first.isdecimal() else 1)
        return ToolResult(text if is_error else numbered, refused=is_error)
    if name not in (*_SHELL_TOOLS, "process"):
        return ToolResult(text, refused=is_error)
    if running := _RUNNING.search(text, end):
        return ToolResult(text, process_id=running[1])
    if details.get("status") == "running" and details.get("sessionId"):
        return ToolResult(text, process_id=str(details["sessionId"]))
    stripped = text.rstrip()
    if ended := _TIMEOUT.search(stripped, end):
        return ToolResult(text[: ended.start()].rstrip("\n"), timed_out=True)
    found, recorded = _EXIT_CODE.search(stripped, end), parse_exit_code(details.get("exitCode"))
    output = text[: found.start()].rstrip("\n") if found else text
    if name == "process" or (is_error and found is None and recorded is None):
        return ToolResult(output, recorded if name == "process" else None, refused=is_error)
    return ToolResult("" if output == "(no output)" else output, int(found[1]) if found else recorded or 0)


def _read_user_command(session: SessionBuilder, message: Mapping[str, Any]) -> None:
    """Add a command that the user ran in the session: its output is part of the conversation."""
    output = extract_text(message.get("output"))
    session.separate_calls()
    session.add_thought("The user ran this command.")
    session.add_call("user", "bash", {"command": str(message.get("command") or "")})
    result = ToolResult(
        output, parse_exit_code(message.get("exitCode")), timed_out=message.get("cancelled") is True
    )
    session.add_result("user", output, result)
