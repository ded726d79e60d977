"""The adapter of `small_agent.py`, written as a user would write one."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_takeover.agents import (
    AgentCommand,
    AgentOutput,
    AgentProgram,
    ExternalAgent,
    Launch,
    NativeCall,
    NativeSession,
    ProgramFiles,
    Setup,
)
from langgraph_takeover.handoff.agents.adapter import RESUME_MESSAGE, Api, Asker
from langgraph_takeover.handoff.agents.native_sessions import list_session_steps, write_shell_command
from langgraph_takeover.handoff.recordings.sessions import ToolResult
from langgraph_takeover.handoff.trace.conversation import History
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.sandbox.interface import ProgramMount

_EXIT = re.compile(r"exit (-?\d+)\n")
_RUNNING = re.compile(r"running as (\w+)")


class SmallAgent:
    """Implements `AgentAdapter`."""

    name = "small"
    api: Api = "chat"
    program = ProgramFiles(
        executable="small-agent", install="it is part of the tests", oldest="1.0.0", newest="1.0.0"
    )

    def setup(self, launch: Launch) -> Setup:
        return Setup()

    def command(self, launch: Launch) -> AgentCommand:
        session = launch.session_id or str(uuid.uuid4())
        path = f"{launch.home}/.small/{session}.json"
        is_pending = launch.session_id is not None and launch.message == RESUME_MESSAGE
        argv = (*launch.program, str(launch.port), launch.model, path)
        return AgentCommand(argv=argv, stdin="" if is_pending else launch.message)

    def classify(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asker:
        return "main" if body.get("tools") else "aside"

    def strip_markers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return list(messages)

    def session_glob(self, session_id: str, workspace: str) -> str:
        return f".small/{session_id}.json"

    def write_call(self, action: Action, workspace: str) -> NativeCall:
        return NativeCall(name="bash", arguments={"command": write_shell_command(action)})

    def write_session(self, history: History, launch: Launch) -> NativeSession:
        steps, account = list_session_steps(history)
        messages: list[dict[str, Any]] = [{"role": "user", "content": history.opening}]
        for step in steps:
            if step.action is None:
                messages += [
                    {"role": "assistant", "content": step.thought},
                    {"role": "user", "content": step.result},
                ]
                continue
            call = self.write_call(step.action, launch.workspace)
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
            calls = [{"id": step.call_id, "type": "function", "function": function}]
            messages += [
                {"role": "assistant", "content": step.thought, "tool_calls": calls},
                {"role": "tool", "tool_call_id": step.call_id, "content": step.result},
            ]
        session = str(uuid.uuid4())
        files = {f".small/{session}.json": json.dumps(messages)}
        return NativeSession(session_id=session, files=files, account=tuple(account))

    def read_result(
        self, name: str, arguments: Mapping[str, Any], text: str, *, is_error: bool
    ) -> ToolResult:
        code, running = _EXIT.match(text), _RUNNING.search(text)
        return ToolResult(
            text[code.end() :] if code else text,
            int(code[1]) if code else None,
            process_id=running[1] if running else None,
        )

    def read_output(self, stdout: str, exit_code: int | None) -> AgentOutput:
        lines = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
        done = [line["done"] for line in lines if "done" in line]
        session = next((line["session"] for line in lines if "session" in line), None)
        return AgentOutput(
            session_id=session, is_complete=bool(done) and exit_code in (0, None), message="".join(done)
        )


def build_small_agent() -> ExternalAgent:
    mount = ProgramMount(directory=Path(__file__).parent, inside="/opt/takeover/small")
    argv = ("python3", "/opt/takeover/small/small_agent.py")
    return ExternalAgent(
        adapter=SmallAgent(), program=AgentProgram(mounts=(mount,), argv=argv, version="1.0.0")
    )
