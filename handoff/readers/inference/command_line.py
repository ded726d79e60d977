"""Simulation of one command line on the inferred files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from langgraph_takeover.handoff.readers.inference.content import (
    Content,
    add_opaque_change,
    fingerprint,
    known_content,
    unknown_content,
)
from langgraph_takeover.handoff.readers.inference.content_edits import append_lines
from langgraph_takeover.handoff.shell.command_parser import parse_command
from langgraph_takeover.handoff.shell.commands import SimpleCommand

if TYPE_CHECKING:
    from langgraph_takeover.handoff.readers.inference.files import InferredFiles

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_SILENT_PROGRAMS = {"sed", "mv", "cp", "git", "perl"}


class ExpandedCommand(NamedTuple):
    """One simple command of the line, with the variables of the line expanded."""

    command: SimpleCommand
    position: int
    words: tuple[str, ...]
    """The arguments, without the name of the program."""
    cwd: str


class CommandLine:
    """A command line, its output and the files that it changes."""

    def __init__(
        self,
        files: InferredFiles,
        command: str,
        text: str,
        exit_code: int | None,
        *,
        timed_out: bool,
        run_nested: Callable[[str], set[str]],
    ) -> None:
        self.files, self.command, self.text = files, command, text
        self.exit_code, self.timed_out = exit_code, timed_out
        self.commands = parse_command(command)
        self.touched_paths: set[str] = set()
        self._run_nested = run_nested
        self._variables = _parse_variables(command) if "$" in command else {}
        self._is_stopped = False

    def expand_command(self, position: int) -> ExpandedCommand:
        simple = self.commands[position]
        words = tuple(word for argument in simple.argv[1:] for word in self.expand_word(argument))
        return ExpandedCommand(simple, position, words, self.working_directory(simple))

    def did_run(self, position: int) -> bool:
        """Whether this command probably ran and succeeded."""
        simple = self.commands[position]
        if simple.connector in ("", ";", "&"):
            self._is_stopped = False
        if self._is_stopped and simple.connector == "&&":
            return False
        if simple.connector == "||":
            previous = self.commands[position - 1] if position else simple
            return self._did_fail(previous, position - 1) and not self._did_fail(simple, position)
        if self._did_fail(simple, position):
            self._is_stopped = True
            return False
        return True

    def _did_fail(self, command: SimpleCommand, position: int) -> bool:
        if self.exit_code == 0 and command.success_is_own:
            return False
        name = command.name
        has_error_message = re.search(rf"^(?:\S*sh: )?(?:line \d+: )?{re.escape(name)}: ", self.text, re.M)
        if has_error_message and name not in ("python", "python3"):
            return True
        if name == "git" and re.search(r"^(?:error|fatal): ", self.text, re.M):
            return True
        is_last = position == len(self.commands) - 1
        has_silent_failure = name in _SILENT_PROGRAMS and is_last
        return has_silent_failure and command.exit_code_is_own and self.exit_code not in (0, None)

    def is_grouped(self, part: ExpandedCommand) -> bool:
        """Whether a redirection belongs to a whole group `{ …; }`, so that other commands share it."""
        targets = {r.target for r in part.command.redirects if ">" in r.operator}
        others = [c for n, c in enumerate(self.commands) if n != part.position]
        return any(r.target in targets for c in others for r in c.redirects if r.operator == ">")

    def run_nested(self, command: str) -> None:
        """Apply a nested command line."""
        self.touched_paths |= self._run_nested(command)

    def working_directory(self, command: SimpleCommand) -> str:
        """The directory of a command; empty if unknown."""
        shell_directory = self.files.cwd or ""
        return shell_directory if command.cwd is None else posixpath.join(shell_directory, command.cwd)

    def expand_word(self, word: str) -> list[str]:
        """Expand the loop variables and assignments of the same line in a word."""
        match = _VARIABLE.search(word) if self._variables and "$" in word else None
        values = self._variables.get(match[1], []) if match else []
        return [word.replace(match[0], value) for value in values] if match and values else [word]

    def content_or_empty(self, path: str) -> Content:
        return self.files.content(path) or known_content("")

    def edit_file(self, path: str, content: Content) -> None:
        """Write a file that must already exist."""
        self.files.mark_base_file(path)
        self.write_file(path, content)

    def write_file(self, path: str, content: Content | None) -> None:
        """Write a file and mark it as touched; None removes the file."""
        self.files.write(path, content)
        self.touched_paths.add(path)

    def write_output(self, path: str, content: Content | None, *, append: bool) -> None:
        """Write printed text into a file; None means unknown text."""
        if append and (content is None or not content.origin):
            old_content = self.content_or_empty(path) if self.files.exists(path) else known_content("")
            lines = [p for p in content.pieces if isinstance(p, str)] if content else []
            content = (
                append_lines(old_content, lines) if content else add_opaque_change(old_content, "append")
            )
        elif content is None:
            content = unknown_content(f"created:{fingerprint(self.command, path, self.files.digest())}")
        self.write_file(path, content)


def list_operands(words: Sequence[str]) -> list[str]:
    """The arguments that are no options."""
    return [word for word in words if not word.startswith("-")]


def _parse_variables(command: str) -> dict[str, list[str]]:
    """Values of the variables of a line: assigned ones and those of `for` loops."""
    variables: dict[str, list[str]] = {}
    for name, words in re.findall(r"\bfor (\w+) in ([^;\n]+)", command):
        variables[name] = [w.strip("'\"") for w in words.split() if "$" not in w and "`" not in w]
    assignment = r"(?:^|[;&\s])(\w+)=(\"[^\"$`]*\"|'[^']*'|[^\s;&|\"'$`]+)(?=[\s;&]|$)"
    for name, value in re.findall(assignment, command):
        variables.setdefault(name, [value.strip("'\"")])
    return variables
