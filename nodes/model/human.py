"""A person at a terminal in the model's place: what they type are actions, and become events like any other's."""

from __future__ import annotations

import os
import posixpath
import readline  # noqa: F401  gives `input` its history and its keys
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.envelope import Understanding
from langgraph_takeover.nodes.model.calls import PermanentModelError
from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox

HELP_TEXT = """\
Every line is a command in the frozen machine's own shell; what it changes is recorded.
  edit FILE              open a file in $EDITOR, and put it back
  give AGENT [message]   freeze the machine, and hand it to an agent
  done [message]         the task is done
  exit                   leave; `take` comes back to here"""
_QUESTIONS = {
    "goal": "What has to be true in the end? ",
    "next_step": "What do you do first? ",
    "verify_first": "What do you check before you rely on it? ",
}


class HumanLeftError(PermanentModelError):
    """The person went away without handing over; the thread stays as it is."""


class HumanModel(BaseChatModel):
    """Asks `read` for a line where a model is asked for a reply; `show` gets what it came to."""

    read_line: Callable[[str], str]
    """Raises EOFError at the end."""
    show_text: Callable[[str], None]
    enter_sandbox: Callable[[], Sandbox]
    on_handoff: Callable[[str, str], None]
    """Told whom the person hands over to, and what they say, just before the machine is frozen for it."""

    @property
    def _llm_type(self) -> str:
        return "person"

    def bind_tools(self, tools: Any, **named: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **named: Any) -> ChatResult:
        last = messages[-1]
        if load_prompt("confirm", "nodes") in last.text:
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
                    **{name: self._ask_line(asked).strip() for name, asked in _QUESTIONS.items()}
                )
            except ValueError:
                self.show_text("Say each in a few words: whoever looks at the ledger reads it.")

    def _ask_action(self) -> AIMessage:
        while True:
            line = self._ask_line(f"{posixpath.basename(self.enter_sandbox().cwd()) or '/'}$ ")
            word, _, rest = line.strip().partition(" ")
            if word == "exit":
                raise HumanLeftError
            if word == "help":
                self.show_text(HELP_TEXT)
            elif word == "give":
                agent, _, message = rest.strip().partition(" ")
                if agent:
                    self.on_handoff(agent, message.strip())
                    return _build_tool_call(
                        "handoff", {"message": message.strip()} if message.strip() else {}
                    )
                self.show_text("give AGENT [message]: name whom")
            elif word == "done":
                return _build_tool_call("finish", {"message": rest.strip()} if rest.strip() else {})
            elif word == "edit":
                command = self._edit_file(rest.strip())
                if command:
                    return _build_tool_call("shell", {"command": command})
            elif word:
                return _build_tool_call("shell", {"command": line})

    def _ask_line(self, prompt: str) -> str:
        """A line, with those that follow where it ends in a backslash."""
        try:
            line = self.read_line(prompt)
            while line.endswith("\\"):
                line = f"{line}\n{self.read_line('> ')}"
        except EOFError:
            raise HumanLeftError from None
        return line

    def _edit_file(self, name: str) -> str:
        """The command that puts a file there as the person's editor left it; empty where there is nothing to do."""
        editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
        machine = self.enter_sandbox()
        if not name:
            self.show_text("edit FILE: name it")
            return ""
        try:
            before = machine.read_file(posixpath.join(machine.cwd(), name))
        except FileAccessError as error:
            before = b""
            self.show_text(f"{error}; it is a new one")
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place, posixpath.basename(name) or "file")
            copy.write_bytes(before)
            try:
                subprocess.run([*editor, str(copy)], check=True)
                after = copy.read_bytes()
            except (OSError, subprocess.CalledProcessError) as error:
                self.show_text(f"the editor failed: {error}; nothing was changed. EDITOR names it")
                return ""
        if after == before:
            self.show_text("nothing was changed")
            return ""
        try:
            text = after.decode()
        except UnicodeDecodeError:
            self.show_text("what is no text cannot be edited here; nothing was changed")
            return ""
        return "".join(_build_write_command(name, text))


def _build_write_command(name: str, text: str) -> Iterator[str]:
    """A command whose text is the file's, so that whoever reads the trace sees the edit."""
    ends = f"END_{uuid4().hex[:8]}"
    whole = text if text.endswith("\n") or not text else f"{text}\n"
    yield f"cat > {shlex.quote(name)} <<'{ends}'\n{whole}{ends}"
    if whole != text:
        yield f"\ntruncate -s -1 {shlex.quote(name)}"


def _build_tool_call(tool: str, arguments: dict[str, str]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call_{uuid4().hex[:12]}"}])
