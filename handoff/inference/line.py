"""One command line of a run at work on its files: which of its parts ran, and what they share."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from handoff.commands import SimpleCommand, parse
from handoff.inference import content as contents
from handoff.inference.content import Content

if TYPE_CHECKING:
    from handoff.inference.files import Files

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_SILENT_FAILURES = {"sed", "mv", "cp", "git", "perl"}


class Part(NamedTuple):
    """One simple command of the line, its words with the line's own variables put in."""

    simple: SimpleCommand
    position: int
    words: tuple[str, ...]
    cwd: str


class Line:
    """A command line, what it printed, and the files that it works on."""

    def __init__(
        self,
        files: Files,
        command: str,
        text: str,
        exit_code: int | None,
        *,
        timed_out: bool,
        nested: Callable[[str], set[str]],
    ) -> None:
        self.files, self.command, self.text = files, command, text
        self.exit_code, self.timed_out = exit_code, timed_out
        self.commands = parse(command)
        self.touched: set[str] = set()
        self._nested = nested
        self._values = _values(command) if "$" in command else {}
        self._stopped = False

    def part(self, position: int) -> Part:
        simple = self.commands[position]
        words = tuple(word for written in simple.argv[1:] for word in self.expanded(written))
        return Part(simple, position, words, self.directory(simple))

    def ran(self, position: int) -> bool:
        """Whether this part of the line came to its turn and did not fail, as far as can be told."""
        simple = self.commands[position]
        if simple.connector in ("", ";", "&"):
            self._stopped = False
        if self._stopped and simple.connector == "&&":
            return False
        if simple.connector == "||":
            before = self.commands[position - 1] if position else simple
            return self._failed(before, position - 1) and not self._failed(simple, position)
        if self._failed(simple, position):
            self._stopped = True
            return False
        return True

    def _failed(self, simple: SimpleCommand, position: int) -> bool:
        if self.exit_code == 0 and simple.success_is_own:
            return False
        name = simple.name
        complained = re.search(rf"^(?:\S*sh: )?(?:line \d+: )?{re.escape(name)}: ", self.text, re.M)
        if complained and name not in ("python", "python3"):
            return True
        if name == "git" and re.search(r"^(?:error|fatal): ", self.text, re.M):
            return True
        last = position == len(self.commands) - 1
        silent = name in _SILENT_FAILURES and last
        return silent and simple.exit_code_is_own and self.exit_code not in (0, None)

    def grouped(self, part: Part) -> bool:
        """Whether a redirection of this part is that of a whole `{ …; }`, so that others print into it too."""
        targets = {r.target for r in part.simple.redirects if ">" in r.operator}
        others = [c for n, c in enumerate(self.commands) if n != part.position]
        return any(r.target in targets for c in others for r in c.redirects if r.operator == ">")

    def nested(self, command: str) -> None:
        """Let a command line run that this one runs."""
        self.touched |= self._nested(command)

    def directory(self, simple: SimpleCommand) -> str:
        here = self.files.cwd or ""
        return here if simple.cwd is None else posixpath.join(here, simple.cwd)

    def expanded(self, word: str) -> list[str]:
        """A word with loop variables and assignments of the same line put in."""
        match = _VARIABLE.search(word) if self._values and "$" in word else None
        values = self._values.get(match[1], []) if match else []
        return [word.replace(match[0], value) for value in values] if match and values else [word]

    def existing(self, path: str) -> Content:
        return self.files.content(path) or contents.of_text("")

    def change(self, path: str, held: Content) -> None:
        """An edit of a file that must have been there."""
        self.files.known_at_base(path)
        self.write(path, held)

    def write(self, path: str, held: Content | None) -> None:
        self.files.write(path, held)
        self.touched.add(path)

    def put(self, path: str, held: Content | None, *, append: bool) -> None:
        """What is printed goes into a file; None stands for a text that nobody knows."""
        if append and (held is None or not held.origin):
            before = self.existing(path) if self.files.exists(path) else contents.of_text("")
            lines = [p for p in held.pieces if isinstance(p, str)] if held else []
            held = contents.appended(before, lines) if held else contents.opaque(before, "append")
        elif held is None:
            held = contents.unknown(f"made:{contents.fingerprint(self.command, path, self.files.digest())}")
        self.write(path, held)


def operands(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def _values(command: str) -> dict[str, list[str]]:
    """The words that variables stand for: assigned in the line, or walked through by `for`."""
    found: dict[str, list[str]] = {}
    for name, words in re.findall(r"\bfor (\w+) in ([^;\n]+)", command):
        found[name] = [w.strip("'\"") for w in words.split() if "$" not in w and "`" not in w]
    assigned = r"(?:^|[;&\s])(\w+)=(\"[^\"$`]*\"|'[^']*'|[^\s;&|\"'$`]+)(?=[\s;&]|$)"
    for name, value in re.findall(assigned, command):
        found.setdefault(name, [value.strip("'\"")])
    return found
