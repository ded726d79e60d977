"""A person at a terminal in the model's place: their input becomes actions and events."""

from __future__ import annotations

import os
import posixpath
import readline  # noqa: F401  line editing and history for `input`
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from langgraph_takeover.handoff.ledger.acceptance import is_confirmation_request
from langgraph_takeover.handoff.records.envelope import Understanding
from langgraph_takeover.nodes.model.model_errors import PermanentModelError
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox

HELP_TEXT = """\
Every line is a command in the restored sandbox's own shell; changes are recorded.
  edit FILE              edit a file in $EDITOR
  give AGENT [message]   take a snapshot, and hand it to an agent
  done [message]         finish the task
  exit                   leave; `take` resumes here"""
_QUESTIONS = {
    "goal": "What must be true when the task is done? ",
    "next_step": "What will you do first? ",
    "verify_first": "Which claim will you check before you rely on it? ",
}


class HumanLeftError(PermanentModelError):
    """The person left without handing over; the thread stays unchanged."""


class HumanModel(BaseChatModel):
    """A chat model whose replies a person types: `read_line` reads a command, `show_text` shows its output."""

    is_llm: ClassVar[bool] = False
    read_line: Callable[[str], str]
    """Raises EOFError at the end of the input."""
    show_text: Callable[[str], None]
    enter_sandbox: Callable[[], Sandbox]
    on_handoff: Callable[[str, str], None]
    """Called with the target and the message just before the handoff's snapshot."""

    @property
    def _llm_type(self) -> str:
        return "person"

    def bind_tools(self, tools: Any, **named: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **named: Any) -> ChatResult:
        last = messages[-1]
        if is_confirmation_request(last.text):
            reply = AIMessage(self._ask_understanding().model_dump_json())
        else:
            if last.type == "tool":
                self.show_text(last.text.removeprefix("[exit code 0]\n").rstrip("\n"))
            reply = self._ask_action()
        reply.usage_metadata = UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def _ask_understanding(self) -> Understanding:
        while True:
            try:
                return Understanding(
                    **{name: self._ask_line(question).strip() for name, question in _QUESTIONS.items()}
                )
            except ValueError:
                self.show_text(
                    "Answer each question in a few words (8 to 2,000 characters); the ledger shows the answers."
                )

    def _ask_action(self) -> AIMessage:
        while True:
            line = self._ask_line(f"{posixpath.basename(self.enter_sandbox().cwd()) or '/'}$ ")
            word, _, rest = line.strip().partition(" ")
            rest = rest.strip()
            if word == "exit":
                raise HumanLeftError
            if word == "help":
                self.show_text(HELP_TEXT)
            elif word == "give":
                agent, _, message = rest.partition(" ")
                if agent:
                    self.on_handoff(agent, message.strip())
                    return _build_message_call("handoff", message.strip())
                self.show_text("give: agent missing; write give AGENT [message]")
            elif word == "done":
                return _build_message_call("finish", rest)
            elif word == "edit":
                command = self._edit_file(rest)
                if command:
                    return _build_tool_call("shell", {"command": command})
            elif word:
                return _build_tool_call("shell", {"command": line})

    def _ask_line(self, prompt: str) -> str:
        """Read a line, and its continuation lines after a backslash."""
        try:
            line = self.read_line(prompt)
            while line.endswith("\\"):
                line = f"{line}\n{self.read_line('> ')}"
        except EOFError:
            raise HumanLeftError from None
        return line

    def _edit_file(self, name: str) -> str:
        """Return the command that writes the file as the person edited it; empty if nothing changed."""
        editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
        sandbox = self.enter_sandbox()
        if not name:
            self.show_text("edit: file missing; write edit FILE")
            return ""
        try:
            before = sandbox.read_file(posixpath.join(sandbox.cwd(), name))
        except FileAccessError as error:
            before = b""
            self.show_text(f"{error}; editing a new file")
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory, posixpath.basename(name) or "file")
            copy.write_bytes(before)
            try:
                subprocess.run([*editor, str(copy)], check=True)
                after = copy.read_bytes()
            except (OSError, subprocess.CalledProcessError) as error:
                self.show_text(
                    f"the editor failed: {error}; nothing was changed (choose another: set EDITOR)"
                )
                return ""
        if after == before:
            self.show_text("nothing was changed")
            return ""
        try:
            text = after.decode()
        except UnicodeDecodeError:
            self.show_text(f"{name} is not UTF-8 text and cannot be edited here; nothing was changed")
            return ""
        return "".join(_build_write_command(name, text))


def _build_write_command(name: str, text: str) -> Iterator[str]:
    """Yield the parts of a command that contains the file's text, so that the trace shows the edit."""
    end = f"END_{uuid4().hex[:8]}"
    lines = text if text.endswith("\n") or not text else f"{text}\n"
    yield f"cat > {shlex.quote(name)} <<'{end}'\n{lines}{end}"
    if lines != text:
        yield f"\ntruncate -s -1 {shlex.quote(name)}"


def _build_message_call(tool: str, message: str) -> AIMessage:
    return _build_tool_call(tool, {"message": message} if message else {})


def _build_tool_call(tool: str, arguments: dict[str, str]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call_{uuid4().hex[:12]}"}])
