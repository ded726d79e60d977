"""mini-swe-agent: the small agent of SWE-agent's authors (`mini`). It cannot resume; our driver adds that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.agents.adapter import (
    RESUME_MESSAGE,
    AgentCommand,
    AgentOutput,
    Api,
    Asker,
    Launch,
    NativeCall,
    NativeSession,
    ProgramFiles,
    Setup,
    is_session_id,
)
from langgraph_takeover.handoff.agents.session_files import derive_uuid, dump_json, read_json_lines
from langgraph_takeover.handoff.agents.session_steps import list_session_steps
from langgraph_takeover.handoff.agents.shell_calls import write_shell_command
from langgraph_takeover.handoff.readers.external.sessions import ToolResult
from langgraph_takeover.handoff.readers.mini_swe_agent import parse_result
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.conversation import History

_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_DIRECTORY = ".mini-swe-agent"
_DRIVER = Path(__file__).with_name("mini_driver.py").read_text(encoding="utf-8")


class MiniSweAgent:
    """Implements `AgentAdapter`. Its session file is complete before a request arrives."""

    name = "mini"
    api: Api = "chat"
    program = ProgramFiles(
        executable="mini",
        interpreter="python",
        version_argv=("-c", "import importlib.metadata as m; print(m.version('mini-swe-agent'))"),
        install="pip install mini-swe-agent",
        oldest="2.4.0",
        newest="2.4.6",
    )

    def setup(self, launch: Launch) -> Setup:
        environment = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
            "MSWEA_SILENT_STARTUP": "1",
            "OPENAI_API_BASE": f"http://127.0.0.1:{launch.port}/v1",
            "OPENAI_API_KEY": "none",
        }
        return Setup(files={f"{_DIRECTORY}/driver.py": _DRIVER}, environment=environment)

    def command(self, launch: Launch) -> AgentCommand:
        directory = f"{launch.home}/{_DIRECTORY}"
        session = launch.session_id or derive_uuid(launch)
        argv = (
            *launch.program, f"{directory}/driver.py", f"openai/{launch.model}", f"{directory}/{session}.json"
        )  # fmt: skip
        # Resumed without a message, its first request is the pending one.
        is_pending = launch.session_id is not None and launch.message == RESUME_MESSAGE
        return AgentCommand(argv=argv, stdin="" if is_pending else launch.message)

    def classify(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asker:
        return "main" if body.get("tools") else "aside"

    def strip_markers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return list(messages)

    def session_glob(self, session_id: str, workspace: str) -> str:
        return f"{_DIRECTORY}/{session_id}.json" if is_session_id(session_id) else ""

    def write_call(self, action: Action, workspace: str) -> NativeCall | None:
        if action.tool == "finish":
            return NativeCall(name="bash", arguments={"command": _SUBMIT})
        return NativeCall(name="bash", arguments={"command": write_shell_command(action)})

    def write_session(self, history: History, launch: Launch) -> NativeSession:
        session_id = derive_uuid(launch, history.opening)
        steps, account = list_session_steps(history)
        messages: list[dict[str, Any]] = [{"role": "user", "content": history.opening}]
        for step in steps:
            call = self.write_call(step.action, launch.workspace) if step.action else None
            if call is None:
                messages.append({"role": "assistant", "content": step.thought})
                messages += [{"role": "user", "content": step.result}] if step.result else []
                continue
            function = {"name": call.name, "arguments": json.dumps(call.arguments)}
            calls = [{"id": step.call_id, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": step.thought, "tool_calls": calls})
            result = step.result
            if step.exit_code is not None:
                result = json.dumps(
                    {"returncode": step.exit_code, "output": result}, indent=2, ensure_ascii=False
                )
            messages.append({"role": "tool", "tool_call_id": step.call_id, "content": result})
        content = dump_json({"messages": messages, "trajectory_format": "mini-swe-agent-1.1"})
        files = {f"{_DIRECTORY}/{session_id}.json": content}
        return NativeSession(session_id=session_id, files=files, account=tuple(account))

    def read_result(
        self, name: str, arguments: Mapping[str, Any], text: str, *, is_error: bool
    ) -> ToolResult:
        return parse_result(name, arguments, text)

    def read_output(self, stdout: str, exit_code: int | None) -> AgentOutput:
        session_id, message, status = None, "", ""
        for line in read_json_lines(stdout):
            if line.get("type") == "session":
                session_id = line.get("session_id")
            elif line.get("type") == "result":
                status, message = str(line.get("status")), str(line.get("message") or line.get("status"))
        is_complete = status == "Submitted"
        return AgentOutput.from_untrusted(session_id, message, is_complete=is_complete, exit_code=exit_code)
