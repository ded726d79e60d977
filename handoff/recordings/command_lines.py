"""Simulation of one command line on the inferred files."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from langgraph_takeover.handoff.recordings.inferred_content import (
    Content,
    add_opaque_change,
    append_lines,
    fingerprint,
    known_content,
    unknown_content,
)
from langgraph_takeover.handoff.shell.syntax import SimpleCommand, resolve_path
from langgraph_takeover.handoff.shell.syntax_reader import parse_command

if TYPE_CHECKING:
    from langgraph_takeover.handoff.recordings.inferred_files import InferredFiles

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_SILENT_PROGRAMS = {"sed", "mv", "cp", "install", "git", "perl", "ed", "apply_patch"}
_COPY_PROGRAMS = {"mv", "cp", "install"}
_ERROR_LINES = {
    "git": re.compile(r"^(?:error|fatal): (.*)", re.M),
    "perl": re.compile(
        r"^(?:Can't (?:open|do inplace edit|rename|remove|find)\b|syntax error at -e|Execution of -e aborted)(.*)",
        re.M,
    ),
    "ed": re.compile(r"^(?:\?|(.*): (?:No such file|Permission denied|Is a directory).*)$", re.M),
    "black": re.compile(r"^error: cannot format (.*?): ", re.M),
    "patch": re.compile(
        r"^(?:(?:patch: )?\*\*\*\* |can't find file to )(.*)|^File (\S+) is read-only; refusing to patch",
        re.M,
    ),
}
"""Errors that a program prints without its name."""
_PYTHON_ERROR = re.compile(
    r"^(?:\S*sh: )?(?:(?:line )?\d+: )?\S*(?:python|pypy)[\d.]*: ((?:command not found|not found|can't open file"
    r"|can't find|No module named|No such file|Permission denied|cannot execute|Error while finding).*)",
    re.M,
)
_CONTINUING_PROGRAMS = _COPY_PROGRAMS | {
    "tee",
    "touch",
    "sed",
    "perl",
    "ruby",
    "rm",
    "unlink",
    "cat",
    "black",
}
"""Programs that continue with their next file after an error."""
_SHELL_REFUSAL = re.compile(
    r"^\S+: (?:(?:line )?\d+: )?(?:cannot|can't) create (?P<dash>\S.*): \S.*$"
    r"|^\S*ksh(?:\[\d+\])?: (?:line \d+: )?(?P<ksh>\S.*): cannot create\b.*$"
    r"|^zsh:(?:\d+:)? (?:no such file or directory|permission denied|is a directory|not a directory|file exists"
    r"|read-only file system): (?P<zsh>\S.*)$"
    r"|^(?:fish|warning): (?:An error occurred while redirecting file|The file) '(?P<fish>[^'\n]+)'"
    r"|^\S+: (?:eval: )?line \d+: (?P<script>\S.*): (?:No such file or directory|Permission denied"
    r"|Is a directory|Not a directory|Read-only file system|ambiguous redirect|cannot overwrite existing file|Text file busy"
    r"|Operation not permitted|No space left on device|Disk quota exceeded|File name too long|File exists|restricted: .*"
    r"|Too many levels of symbolic links)$"
    r"|(?:Could not find a part of the path|Access to the path) '(?P<windows>[^'\n]{1,1000})'"
    # Bash in any language names the target between colons.
    r"|^\S*sh: (?:\w+ \d+: )?(?P<bash>[^\s:][^:\n]*): \S.*$",
    re.M,
)
"""What a shell prints when it cannot open the target of a redirection."""
_HEREDOC_REFUSAL = re.compile(r"^\S*sh: (?:line \d+: )?cannot create temp file for here.document: ", re.M)
_SUDO_REFUSAL = re.compile(
    r"^(?:\S*sh: (?:(?:line )?\d+: )?)?sudo: (?:command not found|not found|a password is required|a terminal is required"
    r"|no tty present|effective uid|\S+: command not found)",
    re.M,
)
_COLOR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")


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
        self.messages = _COLOR.sub("", text).replace("\r\n", "\n") if "\x1b" in text or "\r" in text else text
        """The output without colors and Windows line ends, for the messages of programs."""
        self.commands = parse_command(command)
        self.touched_paths: set[str] = set()
        self._run_nested = run_nested
        self._variables = _parse_variables(command) if "$" in command else {}
        self._is_stopped = False
        self._refused_targets: dict[int, set[str]] = {}
        self._named_words: dict[str, set[str] | None] = {}

    def expand_command(self, position: int) -> ExpandedCommand:
        """A command with its words, without those of which its error messages say that they failed."""
        simple = self.commands[position]
        words = tuple(word for argument in simple.argv[1:] for word in self.expand_word(argument))
        if not self._is_certain(simple):
            failed_words = self._find_failed_words(simple) or ()
            words = tuple(word for word in words if word not in failed_words)
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
        if self._is_certain(command):
            return False
        refused = self.list_refused_targets(position)
        if any({*self.expand_word(r.target)} <= refused for r in command.redirects if r.target):
            return True
        if (
            command.stdin is not None
            and "cannot create temp" in self.messages
            and _HEREDOC_REFUSAL.search(self.messages)
        ):
            return True
        if "sudo: " in self.messages and _SUDO_REFUSAL.search(self.messages):
            return (
                re.search(rf"\bsudo\b[^;|&\n]{{0,200}}\b{re.escape(command.name)}\b", self.command)
                is not None
            )
        failed_words = self._find_failed_words(command)
        if failed_words is not None:
            is_whole = not failed_words or command.name not in _CONTINUING_PROGRAMS
            return is_whole or (command.name in _COPY_PROGRAMS and command.argv[-1] in failed_words)
        is_last = position == len(self.commands) - 1
        has_silent_failure = command.name in _SILENT_PROGRAMS and is_last
        return has_silent_failure and command.exit_code_is_own and self.exit_code not in (0, None)

    def _is_certain(self, command: SimpleCommand) -> bool:
        """Whether the exit code of the line proves that a command succeeded."""
        return self.exit_code == 0 and command.success_is_own and not command.is_repeated

    def _find_failed_words(self, command: SimpleCommand) -> set[str] | None:
        """Words of a command that its error messages name; empty if it failed as a whole, None without an error."""
        if command.name not in self._named_words:
            self._named_words[command.name] = self._find_named_words(command.name)
        named = self._named_words[command.name]
        return named and ({word for word in command.argv[1:] if word in named} or None)

    def _find_named_words(self, name: str) -> set[str] | None:
        """Words of all commands of a name that their error messages name; empty if one names none, None without one."""
        if name.startswith(("python", "pypy")):
            may_have_error = "python" in self.messages or "pypy" in self.messages
            errors = _PYTHON_ERROR.findall(self.messages) if may_have_error else []
        else:
            pattern = rf"^(?:\S*sh: )?(?:(?:line )?\d+: )?{re.escape(name)}: (.*)"
            errors = re.findall(pattern, self.messages, re.M) if f"{name}: " in self.messages else []
            if name in _ERROR_LINES:
                errors += [match[0] for match in _ERROR_LINES[name].finditer(self.messages)]
        if not errors:
            return None
        words = {word for command in self.commands if command.name == name for word in command.argv[1:]}
        named_words: set[str] = set()
        for error in errors:
            named = {word for word in words if _names_word(error, word)}
            if not named:
                return set()
            named_words |= named
        return named_words

    @cached_property
    def _refusals(self) -> Counter[str]:
        found = (next(filter(None, match.groups())) for match in _SHELL_REFUSAL.finditer(self.messages))
        return Counter(posixpath.normpath(name.strip("'\"").replace("\\", "/")) for name in found)

    def list_refused_targets(self, position: int) -> set[str]:
        """Targets of a command's redirections that the shell reported as refused; each report counts once."""
        if position in self._refused_targets:
            return self._refused_targets[position]
        refused = self._refused_targets.setdefault(position, set())
        command = self.commands[position]
        if self._is_certain(command):
            return refused
        for redirect in command.redirects:
            for target in self.expand_word(redirect.target):
                name = posixpath.normpath(target)
                if "$" in name or name.startswith("~") or "the path '" in self.messages:
                    base = posixpath.basename(name)
                    name = next((each for each in self._refusals if posixpath.basename(each) == base), name)
                if self._refusals[name] > 0:
                    self._refusals[name] -= 1
                    refused.add(target)
        return refused

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
        shell_directory = self.files.shell_directory
        return shell_directory if command.cwd is None else resolve_path(command.cwd, shell_directory)

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


def _names_word(error: str, word: str) -> bool:
    """Whether an error message names an argument other than an option."""
    return (
        len(word) > 1
        and not word.startswith("-")
        and word in error
        and re.search(rf"(?<![\w./-]){re.escape(word)}(?![\w-])", error) is not None
    )


def list_operands(words: Sequence[str]) -> list[str]:
    """The arguments except the options."""
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
