"""opencode: how to run the coding agent of SST (`opencode`), and the document that `opencode export ID` prints."""

from __future__ import annotations

import hashlib
import re
import shlex
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
)
from langgraph_takeover.handoff.agents.native_sessions import (
    SessionStep,
    derive_uuid,
    dump_json,
    list_session_steps,
    read_json_lines,
    strip_resume_markers,
    write_shell_command,
    write_view_arguments,
)
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedRun,
    extract_text,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.recordings.sessions import (
    SessionBuilder,
    ToolResult,
    parse_exit_code,
    parse_usage_parts,
)
from langgraph_takeover.handoff.text.tool_wrappers import OPENCODE_FOOTER, strip_wrapper
from langgraph_takeover.handoff.trace.conversation import History
from langgraph_takeover.handoff.trace.events import Action, Usage

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


_TOKENS = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
_MILLISECONDS_OF_A_DAY = 86_400_000


class OpenCodeSession:
    """Collects messages; `export` returns the document that `opencode import` reads."""

    def __init__(self, launch: Launch, opening: str) -> None:
        self._launch, self._opening = launch, opening
        self._now = int(launch.started_at.timestamp() * 1000)
        self._ids = 0
        self._last_user = ""
        self._messages: list[dict[str, Any]] = []
        self.id = f"ses_{self._digits('session', 26)}"

    def add_user(self, text: str) -> None:
        """Add a message of the user."""
        model = {"providerID": "bridge", "modelID": self._launch.model}
        info = {"role": "user", "agent": "build", "model": model, "time": {"created": self._now}}
        self._last_user = self._add(info, {"type": "text", "text": text})

    def add_reply(self, step: SessionStep, call: NativeCall | None) -> None:
        """Add a reply with its text, its call and the result of the call."""
        parts: list[dict[str, Any]] = [{"type": "step-start"}]
        time = {"start": self._now, "end": self._now}
        if step.thought:
            parts.append({"type": "text", "text": step.thought, "time": time})
        if call is not None:
            state: dict[str, Any] = {"status": "error", "error": step.result}
            if not step.refused:
                metadata = {} if step.exit_code is None else {"exit": step.exit_code}
                state = {
                    "status": "completed",
                    "output": step.result,
                    "title": call.name,
                    "metadata": metadata,
                }
            state |= {"input": dict(call.arguments), "time": time}
            parts.append({"type": "tool", "tool": call.name, "callID": step.call_id, "state": state})
        reason = "stop" if call is None else "tool-calls"
        parts.append({"type": "step-finish", "reason": reason, "tokens": _TOKENS, "cost": 0})
        info = {
            "role": "assistant",
            "parentID": self._last_user,
            "mode": "build",
            "agent": "build",
            "providerID": "bridge",
            "modelID": self._launch.model,
            "path": {"cwd": self._launch.workspace, "root": self._launch.workspace},
            "tokens": _TOKENS,
            "cost": 0,
            "finish": reason,
            "time": {"created": self._now, "completed": self._now},
        }
        self._add(info, *parts)

    def export(self, version: str) -> dict[str, Any]:
        """Return the session."""
        info = {
            "id": self.id,
            "slug": "takeover",
            "projectID": "global",
            "directory": self._launch.workspace,
            "title": "Takeover",
            "version": version,
            "time": {"created": self._now, "updated": self._now},
        }
        return {"info": info, "messages": self._messages}

    def _add(self, info: dict[str, Any], *parts: dict[str, Any]) -> str:
        message = f"msg_{self._next_id()}"
        own = {"sessionID": self.id, "messageID": message}
        self._messages.append(
            {
                "info": {**info, "id": message, "sessionID": self.id},
                "parts": [{**part, **own, "id": f"prt_{self._next_id()}"} for part in parts],
            }
        )
        return message

    def _next_id(self) -> str:
        """Return an id that sorts after the previous ones and before those of the run to come."""
        self._ids += 1
        # Its own ids start with a counter in a time: milliseconds times 4096, in 48 bits.
        time = ((self._now - _MILLISECONDS_OF_A_DAY) * 0x1000 + self._ids) & 0xFFFF_FFFF_FFFF
        return f"{time:012x}{self._digits(str(self._ids), 14)}"

    def _digits(self, name: str, count: int) -> str:
        seed = derive_uuid(self._launch, self._opening, name)
        return hashlib.sha256(seed.encode()).hexdigest()[:count]


_IMPORTS = ".takeover-import"
_PLUGIN = {"dependencies": {"@opencode-ai/plugin": "*"}}
_NO_INSTALLATION = {
    "node_modules/.keep": "",
    "package.json": dump_json(_PLUGIN),
    "package-lock.json": dump_json({"lockfileVersion": 3, "packages": {"": _PLUGIN}}),
}
"""Files that keep it from installing its plug-in library from npm at each start."""
_ENVIRONMENT = {
    "OPENCODE_DISABLE_AUTOCOMPACT": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
    "OPENCODE_DISABLE_PRUNE": "1",
    "OPENCODE_PURE": "1",
}


class OpenCode:
    """Implements `AgentAdapter`. It keeps sessions in a database; a written session is imported before its start.

    Its model does not see exit codes, but its output has them. It imports `.opencode/plugin/*.js` of the repository whatever
    its settings say.
    """

    name = "opencode"
    api: Api = "chat"
    program = ProgramFiles(
        executable="opencode",
        packaged=(PackagedProgram(directory="opencode-linux-*", file="bin/opencode"),),
        address_space_mb=8192,
        install="npm install -g opencode-ai",
        terminal=TerminalCommand(start=("--prompt", MESSAGE), reopen=("--session", SESSION)),
        oldest="1.18.0",
        newest="1.18.33",
    )

    def setup(self, launch: Launch) -> Setup:
        url = f"http://127.0.0.1:{launch.port}/v1"
        no_limits = {"timeout": False, "headerTimeout": False, "chunkTimeout": False}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": url, "apiKey": "none", **no_limits},
            "models": {launch.model: {"limit": {"context": 100_000_000, "output": 32_000}}},
        }
        config = {
            "model": f"bridge/{launch.model}",
            "enabled_providers": ["bridge"],
            "provider": {"bridge": provider},
            "autoupdate": False,
            "share": "disabled",
            "permission": "allow",
            "compaction": {"auto": False, "prune": False},
            "snapshot": False,
            "lsp": False,
            "formatter": False,
            "agent": {"title": {"disable": True}},
            # Without settings of the repository, it does not look for this file.
            "instructions": [f"{launch.workspace}/AGENTS.md"],
            "tools": {"task": False, "webfetch": False},
        }
        files = {**_NO_INSTALLATION, "opencode.json": dump_json(config)}
        return Setup(
            files={f".config/opencode/{name}": text for name, text in files.items()}, environment=_ENVIRONMENT
        )

    def command(self, launch: Launch) -> AgentCommand:
        run = (*launch.program, "run", "--format", "json")
        if launch.session_id is None:
            return AgentCommand(argv=(*run, "--title", "Takeover"), stdin=launch.message)
        file = shlex.quote(f"{launch.home}/{_IMPORTS}/{launch.session_id}.json")
        load = f"{shlex.join((*launch.program, 'import'))} {file} </dev/null >&2 && rm {file} || exit"
        resume = shlex.join((*run, "--session", launch.session_id))
        script = f"if [ -f {file} ]; then {load}; fi; exec {resume}"
        return AgentCommand(argv=("/bin/sh", "-c", script), stdin=launch.message)

    def classify(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asker:
        if not body.get("tools"):
            return "aside"
        return "child" if "x-parent-session-id" in headers else "main"

    def strip_markers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return strip_resume_markers(messages)

    def session_glob(self, session_id: str, workspace: str) -> str:
        return ""

    def write_call(self, action: Action, workspace: str) -> NativeCall | None:
        if action.tool == "finish":
            return None
        if view := write_view_arguments(action, workspace, path_name="filePath"):
            return NativeCall(name="read", arguments=view)
        arguments = {"command": write_shell_command(action), "description": action.tool}
        return NativeCall(name="bash", arguments=arguments)

    def write_session(self, history: History, launch: Launch) -> NativeSession:
        steps, account = list_session_steps(history)
        session = OpenCodeSession(launch, history.opening)
        session.add_user(history.opening)
        for step in steps:
            call = self.write_call(step.action, launch.workspace) if step.action else None
            session.add_reply(step, call)
            if call is None and step.result:
                session.add_user(step.result)
        path = f"{_IMPORTS}/{session.id}.json"
        content = dump_json(session.export(self.program.newest))
        return NativeSession(session_id=session.id, files={path: content}, account=tuple(account))

    def read_result(
        self, name: str, arguments: Mapping[str, Any], text: str, *, is_error: bool
    ) -> ToolResult:
        return parse_result(name, arguments, text)

    def read_output(self, stdout: str, exit_code: int | None) -> AgentOutput:
        session_id, message, is_complete = None, "", False
        exit_codes: dict[str, int] = {}
        for line in read_json_lines(stdout):
            session_id = line.get("sessionID") or session_id
            part, error = to_mapping(line.get("part")), line.get("error")
            is_complete = part.get("reason") == "stop"
            if line.get("type") == "text":
                message = str(part.get("text"))
            elif line.get("type") == "tool_use":
                code = parse_exit_code(to_mapping(to_mapping(part.get("state")).get("metadata")).get("exit"))
                exit_codes |= {} if code is None else {str(part.get("callID")): code}
            elif line.get("type") == "error":
                message = str(to_mapping(to_mapping(error).get("data")).get("message") or error)
        return AgentOutput.from_untrusted(
            session_id, message, is_complete=is_complete, exit_code=exit_code, call_exit_codes=exit_codes
        )
