"""Codex: how to run OpenAI's coding agent (`codex`), and the rollout files in `~/.codex/sessions`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.agents import codex_rollouts
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
    is_session_id,
)
from langgraph_takeover.handoff.agents.codex_rollouts import Payload, ScriptHistory, ScriptRecords
from langgraph_takeover.handoff.agents.codex_script_results import NestedCall
from langgraph_takeover.handoff.agents.native_sessions import (
    derive_uuid,
    format_time,
    list_session_steps,
    read_json_lines,
    strip_resume_markers,
    write_json_lines,
    write_shell_command,
)
from langgraph_takeover.handoff.recordings import tool_calls
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedRun,
    extract_text,
    parse_usage,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.recordings.sessions import (
    SessionBuilder,
    ToolResult,
    parse_arguments,
    parse_exit_code,
    separate_contexts,
)
from langgraph_takeover.handoff.shell.syntax import is_windows_path
from langgraph_takeover.handoff.text.tool_wrappers import CODEX_HEADER
from langgraph_takeover.handoff.trace.conversation import History
from langgraph_takeover.handoff.trace.events import Action, Usage

_ROW_TYPES = ("session_meta", "response_item", "turn_context")
_TURN_ENDS = ("task_complete", "turn_complete", "turn_aborted")
_CALL_TYPES = ("function_call", "custom_tool_call", "local_shell_call")
_RESULT_TYPES = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_OTHER_ROWS = {
    "compacted", "token_usage_record", "event_msg", "dynamic_tools_updated", "inter_agent_communication",
    "inter_agent_communication_metadata", "world_state", "security_risk_score", "realtime_item",
}  # fmt: skip
_OTHER_ITEMS = {
    "message", "agent_message", "reasoning", "ghost_snapshot", "compaction", "compaction_summary", "compaction_trigger",
    "context_compaction", "configuration_update", "additional_tools", "web_search_call", "tool_search_call",
    "tool_search_output", "image_generation_call",
}  # fmt: skip
"""Items that neither run a command nor edit a file."""
_NOTICES = re.compile(
    r"(?:exec|patch_apply|apply_patch|terminal|mcp|web_search|image_generation|view_image|dynamic_tool|request|elicitation"
    r"|guardian|collab|sub_agent|hook|item|raw_response|session|thread|task|turn|agent|user|token|plan|context|model|warning"
    r"|error|stream|background|realtime|environment|undo|entered|exited|deprecation|safety|skills?|list|get|shutdown)(?:_|$)"
)
"""The first words of events, which report what the items say."""
_HISTORY_MODES = (None, "legacy", "paginated")
_SHELL_TOOLS = {"exec_command", "write_stdin", "shell", "shell_command", "local_shell", "container.exec"}
_PATCH_TOOL = "apply_patch"
_TIMEOUT = re.compile(r"command timed out after \d|timeout expired|aborted by user")
_FAILED_CALL = re.compile(
    r"unsupported call|unsupported custom tool call|failed to parse|unable to |tool call error|execution error"
    r"|(?:exec|write_stdin|exec_command)[ \w]* (?:failed|rejected)|apply_patch verification failed|patch rejected|rejected by user"
)
_TRUNCATION = re.compile(
    r"Warning: truncated output \(original token count: \d+\)\n(?:Total output lines: \d+\n)?\n?"
)
_SHELL = re.compile(r"<shell>(\w{1,40})</shell>")
_MAX_CONTEXT_CHARS = 10_000
_NOTICE_CHARS = 300
_MAX_ID_CHARS = 100


def is_rollout(data: Any) -> bool:
    """Whether the rows are those of a rollout file."""
    return isinstance(data, list) and any(
        isinstance(row, Mapping)
        and row.get("type") in _ROW_TYPES
        and isinstance(row.get("payload"), Mapping)
        and "timestamp" in row
        for row in data[:50]
    )


def read(rows: Sequence[Any], name: str) -> RecordedRun:
    """Read the rows in order, without those that the user withdrew: turns rolled back, and rows marked by `codex_rollouts`.

    Compaction only adds a row, so the calls before it are read as well.
    """
    session = SessionBuilder(name, "codex", keeps_directory=False)
    payloads: list[Payload] = []
    rewound: list[Payload] = []
    for row in to_mappings(list(rows)):
        target = rewound if row.get(codex_rollouts.WITHDRAWN) else payloads
        target.append((str(row.get("type")), to_mapping(row.get("payload"))))
    live, withdrawn = _split_rolled_back(payloads)
    _read_payloads(session, live)
    for each in filter(None, (rewound, withdrawn)):
        _read_payloads(session.start_withdrawn(), each)
    return session.build()


def _split_rolled_back(payloads: Sequence[Payload]) -> tuple[list[Payload], list[Payload]]:
    """The rows that remain, and those of the turns that were rolled back. A turn begins with a request of the user."""
    live: list[tuple[int, Payload]] = []
    withdrawn: list[tuple[int, Payload]] = []
    turns: list[int] = []
    for number, (kind, payload) in enumerate(payloads):
        if kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            count = payload.get("num_turns")
            if turns and isinstance(count, int) and not isinstance(count, bool) and count > 0:
                start = turns[-min(count, len(turns))]
                withdrawn += live[start:]
                del live[start:], turns[-count:]
            continue
        if kind == "response_item" and _is_request(payload):
            turns.append(len(live))
        live.append((number, (kind, payload)))
    return [each for _, each in live], [each for _, each in sorted(withdrawn, key=lambda each: each[0])]


def _read_payloads(session: SessionBuilder, payloads: Sequence[Payload]) -> None:
    has_usage_records = any(kind == "token_usage_record" for kind, _ in payloads)
    awaits_reply = True
    scripts = _ScriptReader(session, payloads)
    for number, (kind, payload) in enumerate(payloads):
        if kind == "session_meta":
            _read_metadata(session, payload)
        elif kind == "turn_context":
            session.model = session.model or str(payload.get("model") or "")
            session.workspace = session.workspace or str(payload.get("cwd") or "")
        elif kind == "compacted":
            session.drop_summary()
            if not session.has_prompts:
                # The file was rewritten: what it had before is only in the compacted history.
                _read_kept_requests(session, payload)
        elif kind == "token_usage_record":
            session.add_usage(_parse_usage(payload.get("usage")))
        elif kind == "event_msg" and payload.get("type") in _TURN_ENDS:
            session.end_turn()
        elif kind == "event_msg" and payload.get("type") == "token_count" and not has_usage_records:
            session.add_usage(_parse_usage(to_mapping(payload.get("info")).get("last_token_usage")))
        elif kind == "response_item":
            is_input = payload.get("type") in _RESULT_TYPES or payload.get("role") == "user"
            if awaits_reply and not is_input:
                session.start_reply()
            awaits_reply = is_input
            if not scripts.read(number, payload):
                _read_item(session, payload)
        _note_unknown(session, kind, payload)


class _ScriptReader:
    """Adds the calls of scripts to a session, each as one of parallel calls."""

    def __init__(self, session: SessionBuilder, payloads: Sequence[Payload]) -> None:
        self._session = session
        self._records = ScriptRecords(payloads)
        self._ends: dict[int, list[tuple[str, NestedCall]]] = {}
        """The calls whose results stand in a row."""
        self._history = ScriptHistory()

    def read(self, row: int, item: Mapping[str, Any]) -> bool:
        """Add the calls of a script that begins in a row, or the results of one that ends; false for any other row."""
        for call_id, call in self._ends.pop(row, ()):
            result = ToolResult(call.text, call.exit_code, refused=call.refused, process_id=call.process_id)
            self._session.add_result(call_id, call.text, result)
        record = self._records.find(row)
        if record is None:
            return self._records.is_output(row)
        name, arguments = _read_call(item)
        later = self._records.find_later_commands(record)
        calls = self._history.read(name, arguments, record.outputs, record.observed, later)
        named = [(f"{item.get('call_id')}/{number}", call) for number, call in enumerate(calls)]
        for call_id, call in named:
            self._session.add_call(call_id, call.tool, call.arguments)
        if record.outputs:
            self._ends[record.end] = named
        return True


def _note_unknown(session: SessionBuilder, kind: str, payload: Mapping[str, Any]) -> None:
    """Count a row, an item or an event that is not known and may carry a call or its result."""
    form = str(payload.get("type"))
    if kind == "response_item":
        is_known = form in (*_CALL_TYPES, *_RESULT_TYPES, *_OTHER_ITEMS)
    elif kind == "event_msg":
        is_known = _NOTICES.match(form) is not None
    else:
        form, is_known = kind, kind in (*_ROW_TYPES, *_OTHER_ROWS)
    if not is_known and tool_calls.may_carry_call(payload):
        session.add_unknown(form)


def _read_metadata(session: SessionBuilder, payload: Mapping[str, Any]) -> None:
    if session.agent:
        return
    session.agent, session.agent_version = "codex", str(payload.get("cli_version") or "")
    session.name = str(payload.get("id") or session.name)
    session.workspace = str(payload.get("cwd") or "")
    session.uses_powershell = is_windows_path(session.workspace)
    if payload.get("history_mode") not in _HISTORY_MODES:
        session.add_unknown(f"history_mode {payload['history_mode']}")
    base = payload.get("history_base")
    if base and isinstance(base, Mapping):
        session.earlier_session = str(base.get("thread_id") or session.name)[:_MAX_ID_CHARS]
        session.add_unknown("history_base without its file")


def _read_item(session: SessionBuilder, item: Mapping[str, Any]) -> None:
    kind = item.get("type")
    if kind == "message":
        _read_message(session, item)
    elif kind == "reasoning":
        session.add_thought(_read_reasoning(item))
    elif kind in _CALL_TYPES:
        name, arguments = _read_call(item)
        session.add_call(str(item.get("call_id") or item.get("id")), name, arguments)
    elif kind in _RESULT_TYPES:
        call_id, content = str(item.get("call_id") or item.get("id")), item.get("output")
        call = session.find_call(call_id)
        if call is None:
            session.add_early_result(call_id, lambda: _read_item(session, item))
            return
        result = parse_result(call.tool, {}, content)
        session.add_result(call_id, _extract_output(content), result)


def _read_kept_requests(session: SessionBuilder, compacted: Mapping[str, Any]) -> None:
    for item in to_mappings(compacted.get("replacement_history")):
        if _is_request(item) and "\n".join(_list_texts(item)) != compacted.get("message"):
            _read_message(session, item)


def _read_message(session: SessionBuilder, item: Mapping[str, Any]) -> None:
    if item.get("role") == "assistant":
        session.add_message(extract_text(item.get("content")))
    elif item.get("role") == "user":
        texts = _list_texts(item)
        shells = [
            _SHELL.search(text[:_MAX_CONTEXT_CHARS]) for text in texts if "<environment_context>" in text
        ]
        for found in filter(None, shells):
            session.uses_powershell = found[1] in ("powershell", "pwsh")
        session.add_prompt(*texts)


def _list_texts(item: Mapping[str, Any]) -> list[str]:
    content = item.get("content")
    texts = [extract_text(part) for part in content] if isinstance(content, list) else [extract_text(content)]
    return [text for text in texts if text]


def _is_request(item: Mapping[str, Any]) -> bool:
    """Whether an item is a message of the user, also one without text, rather than a context of Codex."""
    if item.get("type") != "message" or item.get("role") != "user":
        return False
    texts = _list_texts(item)
    return not texts or any(separate_contexts(text, "codex").own for text in texts)


def _read_reasoning(item: Mapping[str, Any]) -> str:
    """Readable reasoning: the summary, or the text of an open model."""
    parts: Iterable[Any] = item.get("summary") or item.get("content") or ()
    return extract_text(list(parts)) if isinstance(parts, list) else ""


def _read_call(item: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if item.get("type") == "custom_tool_call":
        return str(item.get("name") or ""), {"input": item.get("input")}
    if item.get("type") == "local_shell_call":
        action = to_mapping(item.get("action"))
        directory = action.get("working_directory")
        return "local_shell", {"command": action.get("command"), "workdir": directory}
    return str(item.get("name") or ""), parse_arguments(item.get("arguments"))


def parse_result(name: str, arguments: Mapping[str, Any], content: Any, details: Any = None) -> ToolResult:
    """Parse what the model saw of a call; `arguments` and `details` are not used by Codex."""
    text = _extract_output(content)
    failed = _FAILED_CALL.match(text) is not None or to_mapping(content).get("success") is False
    if name not in _SHELL_TOOLS and name != _PATCH_TOOL:
        return ToolResult(text, refused=failed)
    legacy = parse_arguments(text) if text.startswith("{") else {}
    if isinstance(legacy.get("output"), str) and isinstance(legacy.get("metadata"), Mapping):
        return _end_command(legacy["output"], parse_exit_code(legacy["metadata"].get("exit_code")))
    header = CODEX_HEADER.match(text)
    if header is None:
        timed_out = _TIMEOUT.search(text[:_NOTICE_CHARS]) is not None
        return ToolResult(text, refused=failed and not timed_out, timed_out=timed_out)
    code = header["exit"] or header["code"]
    output = _TRUNCATION.sub("", text[header.end() :], count=1)
    return _end_command(output, None if code is None else int(code), header["process"])


def _end_command(output: str, exit_code: int | None, process_id: str | None = None) -> ToolResult:
    timed_out = _TIMEOUT.match(output[:_NOTICE_CHARS]) is not None
    return ToolResult(output, None if timed_out else exit_code, timed_out=timed_out, process_id=process_id)


def _extract_output(content: Any) -> str:
    """The text of a result, which is a string, a list of parts or an object with `content`."""
    if isinstance(content, Mapping):
        content = content.get("content")
    return extract_text(content)


def _parse_usage(counts: Any) -> Usage | None:
    usage = parse_usage(counts)
    cached = to_mapping(counts).get("cached_input_tokens")
    if usage is None or not isinstance(cached, int) or isinstance(cached, bool) or cached < 0:
        return usage
    return usage.model_copy(update={"cached_tokens": cached})


_CONFIG = """\
model = {model}
model_provider = "bridge"
model_context_window = 100000000
model_auto_compact_token_limit = 100000000
tool_output_token_limit = 100000
sandbox_mode = "danger-full-access"
approval_policy = "never"
check_for_update_on_startup = false
web_search = "disabled"
agents.enabled = false
analytics.enabled = false
features = {{ plugins = false, remote_plugin = false, apps = false, goals = false, enable_request_compression = false }}
[model_providers.bridge]
name = "bridge"
base_url = "http://127.0.0.1:{port}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = 86400000
"""


class Codex:
    """Implements `AgentAdapter`. Its session file is complete before a request arrives.

    It compacts its history once a reply reports more tokens than its own table allows for the model (258,400 for a name
    that it does not know), whatever its configuration says; the request for that is an `aside`.
    """

    name = "codex"
    api: Api = "responses"
    program = ProgramFiles(
        executable="codex",
        packaged=(PackagedProgram(directory="@openai/codex-linux-*/vendor/*", file="bin/codex"),),
        install="npm install -g @openai/codex",
        terminal=TerminalCommand(resume=("resume", SESSION, MESSAGE), reopen=("resume", SESSION)),
        oldest="0.160.0",
        newest="0.171.0",
    )

    def setup(self, launch: Launch) -> Setup:
        config = _CONFIG.format(model=json.dumps(launch.model, ensure_ascii=False), port=launch.port)
        return Setup(files={".codex/config.toml": config})

    def command(self, launch: Launch) -> AgentCommand:
        resume = () if launch.session_id is None else ("resume", launch.session_id)
        argv = (*launch.program, "exec", *resume, "--json", "--skip-git-repo-check", "-")
        return AgentCommand(argv=argv, stdin=launch.message)

    def classify(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asker:
        metadata = _read_turn_metadata(headers)
        if metadata.get("request_kind") != "turn":  # its tools may also stand in the input
            return "aside"
        return "main" if metadata.get("thread_source") == "user" else "child"

    def strip_markers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return strip_resume_markers(messages)

    def session_glob(self, session_id: str, workspace: str) -> str:
        return f".codex/sessions/*/*/*/rollout-*-{session_id}.jsonl" if is_session_id(session_id) else ""

    def write_call(self, action: Action, workspace: str) -> NativeCall | None:
        if action.tool == "finish":
            return None
        return NativeCall(name="exec_command", arguments={"cmd": write_shell_command(action)})

    def write_session(self, history: History, launch: Launch) -> NativeSession:
        session_id, now = derive_uuid(launch, history.opening), launch.started_at
        stamp = format_time(now)
        meta = {
            "id": session_id,
            "timestamp": stamp,
            "cwd": launch.workspace,
            "originator": "codex_exec",
            "cli_version": self.program.newest,
            "source": "exec",
            "thread_source": "user",
            # Its window refuses a session without one, or with one that its settings lack.
            "model_provider": launch.provider,
        }
        steps, account = list_session_steps(history)
        items = [_message("user", history.opening)] if history.opening else []
        for step in steps:
            if step.thought:
                items.append(_message("assistant", step.thought))
            call = self.write_call(step.action, launch.workspace) if step.action else None
            if call is None:
                items += [_message("user", step.result)] if step.result else []
                continue
            arguments = json.dumps(call.arguments)
            items.append(
                {"type": "function_call", "name": call.name, "arguments": arguments, "call_id": step.call_id}
            )
            head = "" if step.exit_code is None else f"Exit code: {step.exit_code}\nOutput:\n"
            output = f"{head}{step.result}"
            items.append({"type": "function_call_output", "call_id": step.call_id, "output": output})
        lines: list[dict[str, Any]] = [{"timestamp": stamp, "type": "session_meta", "payload": meta}]
        lines += [{"timestamp": stamp, "type": "response_item", "payload": item} for item in items]
        path = f".codex/sessions/{now:%Y/%m/%d}/rollout-{now:%Y-%m-%dT%H-%M-%S}-{session_id}.jsonl"
        return NativeSession(
            session_id=session_id, files={path: write_json_lines(lines)}, account=tuple(account)
        )

    def read_result(
        self, name: str, arguments: Mapping[str, Any], text: str, *, is_error: bool
    ) -> ToolResult:
        return parse_result(name, arguments, text)

    def read_output(self, stdout: str, exit_code: int | None) -> AgentOutput:
        session_id, message, is_complete = None, "", False
        for line in read_json_lines(stdout):
            kind, item, error = line.get("type"), to_mapping(line.get("item")), line.get("error")
            if kind == "thread.started":
                session_id = line.get("thread_id")
            elif kind == "item.completed" and item.get("type") in ("agent_message", "error"):
                message = str(item.get("text") or item.get("message"))
            elif kind in ("turn.failed", "error"):
                message = str(to_mapping(error).get("message") or error or line.get("message"))
            is_complete = kind == "turn.completed"
        return AgentOutput.from_untrusted(session_id, message, is_complete=is_complete, exit_code=exit_code)


def _message(role: str, text: str) -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _read_turn_metadata(headers: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        return to_mapping(parse_json(headers.get("x-codex-turn-metadata", "").encode()))
    except ValueError:
        return {}
