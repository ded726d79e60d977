"""Reader of GitHub Copilot CLI: the files `events.jsonl` in `~/.copilot/session-state`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

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

_SHELLS = ("bash", "powershell")
_NAMES = {
    f"{action}_{shell}": name
    for shell in _SHELLS
    for action, name in (("read", "bashoutput"), ("write", "write_stdin"), ("stop", "killshell"))
} | {"powershell": "bash", "local_shell": "bash"}
_OTHER_EVENTS = re.compile(
    r"(?:session|assistant|model|system|hook|subagent|permission|skill|user_input|elicitation|external_tool|command|mcp|exit_plan_mode"
    r"|tool)\."
)
_EXIT = re.compile(r"\n?<(?:shellId: [\w-]{1,60} completed|exited) with exit code (-?\d{1,9})>\s*\Z")
_RUNNING = re.compile(
    r"<command (?:with (?:shell|session)Id: ([\w-]{1,60}) is still running"
    r"|started in [\w ]{1,40}(?:shell|session)Id: ([\w-]{1,60}))"
)
_NUMBERED = re.compile(r"^(\d{1,9})\. ?", re.M)
_END_CHARS, _LINES_CHARS = 1_000, 2_000_000


def is_session(data: Any) -> bool:
    """Whether the rows are the events of a session, or the output of `--output-format json`, which lacks the first ones."""
    return isinstance(data, list) and any(
        isinstance(row, Mapping)
        and row.get("type")
        in ("session.start", "user.message", "assistant.turn_start", "tool.execution_start")
        and isinstance(row.get("data"), Mapping)
        for row in data[:200]
    )


def read(rows: Sequence[Any], name: str) -> RecordedRun:
    """Read the events of the main agent in order; those of its subagents are left out."""
    session = SessionBuilder(name, "copilot-cli", keeps_directory=False)
    session.agent = "copilot-cli"
    for row in to_mappings(list(rows)):
        data = to_mapping(row.get("data"))
        if not (row.get("agentId") or data.get("parentToolCallId")):
            _read_event(session, str(row.get("type")), data)
    return session.build()


def _read_event(session: SessionBuilder, kind: str, data: Mapping[str, Any]) -> None:
    if kind in ("session.start", "session.resume"):
        session.name = str(data.get("sessionId") or session.name)
        session.agent_version = str(data.get("copilotVersion") or session.agent_version)
        session.model = session.model or str(data.get("selectedModel") or "")
        session.workspace = session.workspace or str(to_mapping(data.get("context")).get("cwd") or "")
    elif kind == "session.model_change":
        session.model = session.model or str(data.get("newModel") or "")
    elif kind == "user.message":
        _read_request(session, data)
    elif kind == "assistant.message":
        _read_reply(session, data)
    elif kind in ("tool.execution_start", "tool.user_requested"):
        call_id = str(data.get("toolCallId"))
        if session.find_call(call_id) is None:
            _add_call(session, call_id, data.get("toolName"), data.get("arguments"))
    elif kind == "tool.execution_complete":
        _read_result(session, data)
    elif kind == "session.usage_record":
        usage = to_mapping(data.get("usage"))
        session.model = session.model or str(usage.get("model") or "")
    elif kind == "system.notification":
        ended = to_mapping(data.get("kind"))
        if ended.get("type") == "shell_completed":
            session.background.end(str(ended.get("shellId")))
    elif not _OTHER_EVENTS.match(kind) and may_carry_call(data):
        session.add_unknown(kind)


def _read_request(session: SessionBuilder, data: Mapping[str, Any]) -> None:
    """Add a request of the user, with the names of its attachments; other sources are the agent itself."""
    if data.get("source") not in (None, "", "user"):
        return
    attached = [
        str(each.get("displayName") or each.get("path") or "")
        for each in to_mappings(data.get("attachments"))
    ]
    names = [f"[attached: {each}]" for each in attached if each]
    session.add_prompt("\n".join([extract_text(data.get("content")), *names]).strip())


def _read_reply(session: SessionBuilder, data: Mapping[str, Any]) -> None:
    session.start_reply()
    session.model = session.model or str(data.get("model") or "")
    session.add_thought(extract_text(data.get("reasoningText")))
    session.add_message(extract_text(data.get("content")))
    for call in to_mappings(data.get("toolRequests")):
        _add_call(session, str(call.get("toolCallId")), call.get("name"), call.get("arguments"))
    session.add_usage(parse_usage_parts(None, None, None, data.get("outputTokens")))


def _add_call(session: SessionBuilder, call_id: str, tool: Any, arguments: Any) -> None:
    name = _NAMES.get(str(tool), str(tool or ""))
    parsed = parse_arguments(arguments)
    if isinstance(arguments, str) and not parsed:
        parsed = {"input": arguments}  # of a tool without a schema, such as `apply_patch`
    if name == "write_stdin":
        parsed = {**parsed, "chars": str(parsed.get("input") or "")}
    session.add_call(call_id, name, parsed)


def _read_result(session: SessionBuilder, data: Mapping[str, Any]) -> None:
    call_id = str(data.get("toolCallId"))
    call = session.find_call(call_id)
    if call is None:
        session.add_early_result(call_id, lambda: _read_result(session, data))
        return
    content = to_mapping(data.get("result")).get("content", to_mapping(data.get("error")).get("message"))
    text = extract_text(content)
    result = parse_result(call.tool, call.arguments, text, data)
    session.add_result(call_id, result.output if result.exit_code is not None else text, result)


def parse_result(
    tool: str, arguments: Mapping[str, str], text: str, details: Mapping[str, Any]
) -> ToolResult:
    """Parse what the model saw of a call of our `tool`; `details` is the event of its end."""
    refused = details.get("success") is False
    if tool != "shell":
        is_view = tool == "editor" and arguments.get("command") == "view" and not refused
        return ToolResult(_number_lines(text, arguments) if is_view else text, refused=refused)
    end = max(len(text) - _END_CHARS, 0)
    if running := _RUNNING.search(text, end):
        return ToolResult(text, process_id=running[1] or running[2])
    found = _EXIT.search(text, end)
    recorded = parse_exit_code(to_mapping(details.get("shellExecution")).get("exitCode"))
    code = int(found[1]) if found else recorded
    return ToolResult(text[: found.start()] if found else text, code, refused=refused and code is None)


def _number_lines(text: str, arguments: Mapping[str, str]) -> str:
    """The lines of a shown file with tabs after their numbers; newer versions show no numbers."""
    text = text[:_LINES_CHARS]
    if _NUMBERED.match(text):
        return _NUMBERED.sub("\\1\t", text)
    first = arguments.get("start", "1")
    return number_lines(text, int(first) if first.isdecimal() else 1)
