"""Codex: OpenAI's coding agent (`codex`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.agents.adapter import (
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
    is_session_id,
)
from langgraph_takeover.handoff.agents.resume_markers import strip_resume_markers
from langgraph_takeover.handoff.agents.session_files import (
    derive_uuid,
    format_time,
    read_json_lines,
    write_json_lines,
)
from langgraph_takeover.handoff.agents.session_steps import list_session_steps
from langgraph_takeover.handoff.agents.shell_calls import write_shell_command
from langgraph_takeover.handoff.readers.external.codex import parse_result
from langgraph_takeover.handoff.readers.external.sessions import ToolResult
from langgraph_takeover.handoff.readers.recorded_run import to_mapping
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.conversation import History

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
        metadata = _read_metadata(headers)
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


def _read_metadata(headers: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        return to_mapping(parse_json(headers.get("x-codex-turn-metadata", "").encode()))
    except ValueError:
        return {}
