"""Qwen Code: how to run Alibaba's coding agent (`qwen`), and the chat files in `~/.qwen/projects`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.agents.adapter import (
    MESSAGE,
    SESSION,
    AgentCommand,
    AgentOutput,
    Api,
    Asker,
    Launch,
    NativeCall,
    NativeSession,
    PackagedProgram,
    ProgramFiles,
    Setup,
    TerminalCommand,
    escape_slash_command,
    is_session_id,
)
from langgraph_takeover.handoff.agents.native_sessions import (
    SessionStep,
    chain_lines,
    derive_uuid,
    dump_json,
    list_session_steps,
    name_directory,
    read_result_lines,
    strip_resume_markers,
    write_json_lines,
    write_shell_command,
    write_view_arguments,
)
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
    parse_count,
    strip_reminders,
)
from langgraph_takeover.handoff.recordings.tool_calls import may_carry_call
from langgraph_takeover.handoff.text.tool_wrappers import find_qwen_footer, strip_qwen_wrapper
from langgraph_takeover.handoff.trace.conversation import History
from langgraph_takeover.handoff.trace.events import Action, Usage

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


_SETTINGS_FILE = ".qwen/system-settings.json"
"""Read as the settings of the system, which a repository cannot override."""
_SETTINGS = {
    "$version": 4,
    "disableAllHooks": True,
    "general": {"enableAutoUpdate": False, "gitCoAuthor": {"commit": False, "pr": False}},
    "mcp": {"serverCommand": ""},
    "memory": {"enableManagedAutoMemory": False},
    "model": {
        "maxSessionTurns": -1,
        "sessionTokenLimit": -1,
        "skipLoopDetection": True,
        "chatCompression": {"contextPercentageThreshold": 0},
        "generationConfig": {"contextWindowSize": 100_000_000, "maxRetries": 0, "timeout": 86_400_000},
    },
    "modelProviders": {"openai": []},
    "privacy": {"usageStatisticsEnabled": False},
    "proxy": "",
    "telemetry": {"enabled": False},
    "tools": {
        "callCommand": "",
        "discoveryCommand": "",
        "exclude": ["agent", "monitor", "send_message", "task_stop", "web_fetch"],
        "sandbox": False,
    },
}
_NO_PROXY = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), ""),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "*"),
}
"""A file `.env` of the repository sets only variables that are not there, or empty, as of 0.24."""

_API_ERROR = "[API Error: "
"""Start of the result of a run that ended because of a failed request; its mark says success."""


class QwenCode:
    """Implements `AgentAdapter`. Its session file lags behind a request by up to 15 ms."""

    name = "qwen-code"
    api: Api = "chat"
    program = ProgramFiles(
        executable="qwen",
        packaged=(PackagedProgram(directory="", file="cli.js"),),
        interpreter="node",
        address_space_mb=40_960,
        install="npm install -g @qwen-code/qwen-code",
        terminal=TerminalCommand(
            start=("-i", MESSAGE), resume=("--resume", SESSION, "-i", MESSAGE), reopen=("--resume", SESSION)
        ),
        oldest="0.15.0",
        newest="0.24.4",
    )

    def setup(self, launch: Launch) -> Setup:
        environment = {
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{launch.port}/v1",
            "OPENAI_MODEL": launch.model,
            "QWEN_CODE_API_TIMEOUT_MS": "86400000",
            "QWEN_CODE_NO_RELAUNCH": "1",
            "QWEN_CODE_SYSTEM_SETTINGS_PATH": f"{launch.home}/{_SETTINGS_FILE}",
            "QWEN_DEBUG_LOG_FILE": "0",
            **_NO_PROXY,
        }
        return Setup(files={_SETTINGS_FILE: dump_json(_SETTINGS)}, environment=environment)

    def command(self, launch: Launch) -> AgentCommand:
        session = ("--session-id", derive_uuid(launch))
        if launch.session_id is not None:
            session = ("--resume", launch.session_id)
        options = (
            "--yolo", "--model", launch.model, "--auth-type", "openai", "--output-format", "stream-json",
            "--allowed-mcp-server-names", "",
        )  # fmt: skip
        return AgentCommand(
            argv=(*launch.program, *options, *session), stdin=escape_slash_command(launch.message)
        )

    def classify(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asker:
        return "main" if body.get("tools") else "aside"

    def strip_markers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return strip_resume_markers(messages)

    def session_glob(self, session_id: str, workspace: str) -> str:
        return f".qwen/projects/*/chats/{session_id}.jsonl" if is_session_id(session_id) else ""

    def write_call(self, action: Action, workspace: str) -> NativeCall | None:
        if action.tool == "finish":
            return None
        if view := write_view_arguments(action, workspace, first_line=0):
            return NativeCall(name="read_file", arguments=view)
        arguments = {"command": write_shell_command(action), "is_background": False}
        return NativeCall(name="run_shell_command", arguments=arguments)

    def write_session(self, history: History, launch: Launch) -> NativeSession:
        session_id = derive_uuid(launch, history.opening)
        steps, account = list_session_steps(history)
        lines = [_line("user", {"text": history.opening})] if history.opening else []
        for step in steps:
            text = [{"text": step.thought}] if step.thought else []
            call = self.write_call(step.action, launch.workspace) if step.action else None
            if call is None:
                lines.append(_line("assistant", *text))
                lines += [_line("user", {"text": step.result})] if step.result else []
                continue
            request = {"id": step.call_id, "name": call.name, "args": dict(call.arguments)}
            shown = {"error" if step.refused else "output": _write_result(step)}
            response = {"id": step.call_id, "name": call.name, "response": shown}
            lines.append(_line("assistant", *text, {"functionCall": request}))
            lines.append(_line("tool_result", {"functionResponse": response}))
        path = f".qwen/projects/{name_directory(launch.workspace)}/chats/{session_id}.jsonl"
        content = write_json_lines(chain_lines(lines, session_id, launch, self.program.newest))
        return NativeSession(session_id=session_id, files={path: content}, account=tuple(account))

    def read_result(
        self, name: str, arguments: Mapping[str, Any], text: str, *, is_error: bool
    ) -> ToolResult:
        return parse_result(name, arguments, text)

    def read_output(self, stdout: str, exit_code: int | None) -> AgentOutput:
        output = read_result_lines(stdout, exit_code)
        is_error = output.message.startswith(_API_ERROR)
        return output.model_copy(update={"is_complete": output.is_complete and not is_error})


def _write_result(step: SessionStep) -> str:
    if step.exit_code is None or step.action is None:
        return step.result
    return (
        f"Command: {step.action.arguments.get('command', '')}\nDirectory: (root)\nOutput: {step.result}\n"
        f"Error: (none)\nExit Code: {step.exit_code}\nSignal: (none)"
    )


def _line(kind: str, *parts: dict[str, Any]) -> dict[str, Any]:
    role = "model" if kind == "assistant" else "user"
    return {"type": kind, "message": {"role": role, "parts": list(parts)}}
