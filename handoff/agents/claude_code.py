"""Claude Code: Anthropic's coding agent (`claude`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    format_time,
    name_directory,
    read_result_lines,
    write_json_lines,
)
from langgraph_takeover.handoff.agents.session_steps import SessionStep, list_session_steps
from langgraph_takeover.handoff.agents.shell_calls import write_shell_command, write_view_arguments
from langgraph_takeover.handoff.readers.external.claude_code import SYNTHETIC_MODEL, parse_result
from langgraph_takeover.handoff.readers.external.sessions import ToolResult
from langgraph_takeover.handoff.trace.action import Action
from langgraph_takeover.handoff.trace.conversation import EXIT_CODE_NOT_RECORDED, History

_ENVIRONMENT = {
    "ANTHROPIC_API_KEY": "none",
    "API_FORCE_IDLE_TIMEOUT": "0",
    "API_TIMEOUT_MS": "86400000",
    # With `--add-dir`, it reads the repository's CLAUDE.md, but not its settings.
    "CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1",
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "100000000",
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "CLAUDE_CODE_RESUME_PROMPT": RESUME_MESSAGE,
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_COMPACT": "1",
    "IS_SANDBOX": "1",
}
_OPTIONS = (
    "-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions", "--disable-slash-commands",
    "--tools", "Bash,Edit,Read,Write", "--setting-sources", "", "--strict-mcp-config",
)  # fmt: skip
_INTERRUPTED_REPLY = "No response requested."
"""Claude Code writes this reply itself where a resumed history ends with a user's message or a result."""
_MAX_DIRECTORY_CHARS = 200
_USAGE = {"input_tokens": 0, "output_tokens": 0}


class ClaudeCode:
    """Implements `AgentAdapter`. Its session file lags behind a request by up to 0.1 s.

    Its Edit and Write tools demand that the session has read the file before, so edits are written as shell commands.
    """

    name = "claude-code"
    api: Api = "messages"
    program = ProgramFiles(
        executable="claude",
        packaged=(PackagedProgram(directory="@anthropic-ai/claude-code-linux-*", file="claude"),),
        install="npm install -g @anthropic-ai/claude-code",
        oldest="2.1.0",
        newest="2.1.332",
    )

    def setup(self, launch: Launch) -> Setup:
        environment = {**_ENVIRONMENT, "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{launch.port}"}
        # Otherwise it writes this file about ten seconds after its start.
        return Setup(files={".claude/.last-cleanup": format_time(launch.started_at)}, environment=environment)

    def command(self, launch: Launch) -> AgentCommand:
        session = ("--session-id", derive_uuid(launch))
        if launch.session_id is not None:
            session = ("--resume", launch.session_id)
        argv = (*launch.program, *_OPTIONS, "--add-dir", launch.workspace, "--model", launch.model, *session)
        return AgentCommand(argv=argv, stdin=escape_slash_command(launch.message))

    def classify(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asker:
        if not body.get("tools"):
            return "aside"
        return "child" if "x-claude-code-agent-id" in headers else "main"

    def strip_markers(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return strip_resume_markers(messages, _INTERRUPTED_REPLY)

    def session_glob(self, session_id: str, workspace: str) -> str:
        return f".claude/projects/*/{session_id}.jsonl" if is_session_id(session_id) else ""

    def write_call(self, action: Action, workspace: str) -> NativeCall | None:
        if action.tool == "finish":
            return None
        if view := write_view_arguments(action, workspace):
            return NativeCall(name="Read", arguments=view)
        return NativeCall(name="Bash", arguments={"command": write_shell_command(action)})

    def write_session(self, history: History, launch: Launch) -> NativeSession:
        session_id = derive_uuid(launch, history.opening)
        steps, account = list_session_steps(history)
        messages: list[dict[str, Any]] = [_user(history.opening)] if history.opening else []
        # Without a model 2.1.197 never asks; a foreign one "could not be restored".
        model = launch.model if launch.model.startswith("claude-") else SYNTHETIC_MODEL
        for number, step in enumerate(steps):
            # A message id of its own keeps neighbouring replies apart.
            head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model}
            text = [{"type": "text", "text": step.thought}] if step.thought else []
            call = self.write_call(step.action, launch.workspace) if step.action else None
            if call is None:
                messages.append({**head, "content": text, "stop_reason": "end_turn", "usage": _USAGE})
                messages += [_user(step.result)] if step.result else []
                continue
            use = {"type": "tool_use", "id": step.call_id, "name": call.name, "input": dict(call.arguments)}
            result = {"type": "tool_result", "tool_use_id": step.call_id, **_write_result(step)}
            blocks = [*text, use]
            messages += [
                {**head, "content": [block], "stop_reason": "tool_use", "usage": _USAGE} for block in blocks
            ]
            messages.append(_user([result]))
        path = f".claude/projects/{name_directory(launch.workspace, _MAX_DIRECTORY_CHARS)}/{session_id}.jsonl"
        lines = write_json_lines(chain_lines(map(_line, messages), session_id, launch, self.program.newest))
        return NativeSession(session_id=session_id, files={path: lines}, account=tuple(account))

    def read_result(
        self, name: str, arguments: Mapping[str, Any], text: str, *, is_error: bool
    ) -> ToolResult:
        return parse_result(name, arguments, text, {"is_error": is_error})

    def read_output(self, stdout: str, exit_code: int | None) -> AgentOutput:
        return read_result_lines(stdout, exit_code)


def _write_result(step: SessionStep) -> dict[str, Any]:
    """Return a result; without a line about the exit code it says that the command succeeded."""
    code = step.exit_code
    if code is not None and 0 < code < 1000:
        return {"content": f"Exit code {code}\n{step.result}", "is_error": True}
    if step.hides_exit_code or code not in (None, 0):
        return {"content": f"{step.result}\n{EXIT_CODE_NOT_RECORDED}"}
    return {"content": step.result, "is_error": True} if step.refused else {"content": step.result}


def _user(content: str | list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _line(message: dict[str, Any]) -> dict[str, Any]:
    return {"type": message["role"], "message": message, "isSidechain": False, "userType": "external"}
