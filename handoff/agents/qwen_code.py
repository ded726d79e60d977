"""Qwen Code: Alibaba's coding agent (`qwen`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

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
    escape_slash_command,
    is_session_id,
)
from langgraph_takeover.handoff.agents.resume_markers import strip_resume_markers
from langgraph_takeover.handoff.agents.session_files import (
    chain_lines,
    derive_uuid,
    dump_json,
    name_directory,
    read_result_lines,
    write_json_lines,
)
from langgraph_takeover.handoff.agents.session_steps import SessionStep, list_session_steps
from langgraph_takeover.handoff.agents.shell_calls import write_shell_command, write_view_arguments
from langgraph_takeover.handoff.readers.external.qwen_code import parse_result
from langgraph_takeover.handoff.readers.external.sessions import ToolResult
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.conversation import History

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
