"""Which simple commands a shell command line runs, and which of them its exit code speaks for."""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from tree_sitter import Node

from handoff import heredocs, wrappers
from handoff.syntax import (
    BRANCHES,
    LOOPS,
    QUIET,
    REDIRECTS,
    Connector,
    Item,
    name_of,
    operands_of,
    parsed,
    split,
    statements,
    text_of,
    word_of,
)

_MAX_DEPTH = 6
_HARMLESS = {"echo", "printf", "true", ":", "cd", "export", "pwd", "date", "set", "source", "."}
_GIVING_UP = {"exit", "return", "false"}
_FILTERS = {"tail", "head", "tee", "cat", "sed", "less", "awk", "sort", "cut", "tr", "uniq"}


_PLAIN = re.compile(r" *[\w./@%+,:-]+(?: +[\w./=:,@%+-]+)*[ \n]*")
"""One command without quotes, operators and expansions: splitting it is parsing it."""
_NOT_PLAIN = {
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "function", "select",
    "in", "coproc", "bash", "sh", "zsh", "dash", "ksh", "eval", "export", "declare", "local", "readonly", "typeset",
    "unset", "unsetenv",
}  # fmt: skip


class Redirect(NamedTuple):
    """One redirection of a simple command: `2>`, `errors.txt`."""

    operator: str
    target: str


class SimpleCommand(NamedTuple):
    """One program that a command line runs, with wrappers such as `timeout 60` taken off."""

    argv: tuple[str, ...]
    environment: tuple[str, ...] = ()
    cwd: str | None = None
    """Where `cd` brought it; relative to where the shell stood, None where it stood or nobody can tell."""
    redirects: tuple[Redirect, ...] = ()
    stdin: str | None = None
    """The text of its here-document or here-string."""
    connector: Connector = ""
    """What joins it to the command before it."""
    stage: int = 0
    stages: int = 1
    """Its position in its pipeline, and how many commands that has."""
    exit_code_is_own: bool = True
    """The exit code of the whole line is this command's own."""
    success_is_own: bool = True
    """If the whole line exits with 0, this command did; true of every part of `a && b`."""
    repeats: bool = False
    """It stands in a loop."""

    @property
    def name(self) -> str:
        return posixpath.basename(self.argv[0]) if self.argv else ""

    @property
    def shows_output(self) -> bool:
        """Whether what it prints can reach the agent, rather than a file."""
        return not any(r.operator in (">", ">>", "&>", "&>>", "1>", "1>>", ">|") for r in self.redirects)


class _Say(Enum):
    """What the line's exit code says about a part: all, only success, or nothing."""

    ALL = 2
    SUCCESS = 1
    NOTHING = 0


class _Place(NamedTuple):
    connector: Connector
    stage: int
    stages: int
    say: _Say


@lru_cache(maxsize=256)
def parse(command: str) -> tuple[SimpleCommand, ...]:
    """The simple commands of a command line, in order; what cannot be parsed is left out."""
    if _PLAIN.fullmatch(command):
        stripped = wrappers.strip(command.split())
        if stripped.argv[0] not in _NOT_PLAIN:
            return (SimpleCommand(argv=stripped.argv, environment=stripped.environment),)
    reader = _Reader()
    # What is nested more deeply than anybody writes is read as far as it goes.
    with contextlib.suppress(RecursionError):
        reader.text(command, _Place("", 0, 1, _Say.ALL))
    return tuple(reader.found)


_SYNTAX_ERROR = re.compile(
    r"^(?:\S*sh|\S+\.sh): (?P<eval>eval: )?(?:-c: )?line (?P<number>\d{1,6}): (?:syntax error|unexpected EOF|`)",
    re.M,
)
_QUOTED = re.compile(r"^\S+: (?:eval: |-c: )?line \d+: `(.*)'$", re.M)


def executed(command: str, output: str) -> str:
    """The part of a command line that ran: bash reads line by line, and what it cannot read ends it."""
    told = "syntax error" in output or "unexpected EOF" in output
    error = _SYNTAX_ERROR.search(output) if told else None
    if error is None:
        return command
    lines = command.split("\n")
    quoted = _QUOTED.search(output)
    found = [number for number, line in enumerate(lines) if quoted and line == quoted[1]]
    if found:
        return "\n".join(lines[: found[0]])
    if error["eval"]:
        return ""  # a long-lived shell counts the lines of all that it was ever told
    before = int(error["number"]) - 1
    return "\n".join(lines[:before]) if before < len(lines) else command


class _Reader:
    """Walks syntax trees, and keeps what a shell would keep: directory, options, functions."""

    def __init__(self) -> None:
        self.found: list[SimpleCommand] = []
        self.cwd: str | None = None
        self.bodies: tuple[str, ...] = ()
        self.functions: dict[str, Node] = {}
        self.outer: tuple[Redirect, ...] = ()
        self.depth = 0
        self.loops = 0
        self.substitutes = False
        self.errexit = self.pipefail = False

    def text(self, text: str, place: _Place) -> None:
        if self.depth >= _MAX_DEPTH:
            return
        plain, bodies = heredocs.extract(text)
        outer_bodies, self.bodies = self.bodies, bodies
        outer_substitutes, self.substitutes = self.substitutes, "$(" in plain or "`" in plain or "(" in plain
        self.depth += 1
        items = statements(parsed(plain), place.connector)
        if len(items) == 1 and items[0].node.type == "command" and not items[0].background:
            self.command(items[0].node, items[0].redirects, place)
        else:
            self.sequence(items, place)
        self.depth -= 1
        self.substitutes = outer_substitutes
        self.bodies = outer_bodies

    def sequence(self, items: Sequence[Item], place: _Place) -> None:
        parts = split(items, (";", "&"))
        for number, part in enumerate(parts):
            following = parts[number + 1][0].connector if number + 1 < len(parts) else ""
            if part[-1].background:
                say = _Say.NOTHING
            elif following == "":
                say = place.say
            elif following == ";" and self.errexit and place.say is not _Say.NOTHING:
                say = _Say.SUCCESS
            else:
                say = _Say.NOTHING
            self.chain(split(part, ("&&", "||")), place._replace(say=say))

    def chain(self, pipelines: Sequence[Sequence[Item]], place: _Place) -> None:
        for number, pipeline in enumerate(pipelines):
            say = _Say.NOTHING if pipeline[0].connector == "||" else place.say
            for later in pipelines[number + 1 :]:
                say = _after(say, later)
            self.pipeline(pipeline, place._replace(say=say))

    def pipeline(self, items: Sequence[Item], place: _Place) -> None:
        if len(items) == 1:
            self.atom(items[0], place._replace(connector=items[0].connector))
            return
        cwd = self.cwd
        for stage, item in enumerate(items):
            kept = self.pipefail and all(name_of(i.node) in _FILTERS for i in items[stage + 1 :])
            say = place.say if stage == len(items) - 1 or kept else _Say.NOTHING
            self.atom(item, _Place(item.connector, stage, len(items), say))
            self.cwd = cwd

    def atom(self, item: Item, place: _Place) -> None:
        node, kind = item.node, item.node.type
        outer = self.outer
        if kind in ("command", "test_command"):
            self.command(node, item.redirects, place)
            return
        self.outer = outer + self.redirects(item.redirects)[0]
        if kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None:
                self.functions[word_of(name)] = body
        elif kind == "subshell":
            cwd = self.cwd
            self.sequence(statements(node, place.connector), place)
            self.cwd = cwd
        elif kind == "negated_command":
            self.sequence(statements(node, place.connector), place._replace(say=_Say.NOTHING))
        elif kind in BRANCHES:
            self.loops += kind in LOOPS
            self.sequence(statements(node, place.connector), place._replace(say=_Say.NOTHING))
            self.loops -= kind in LOOPS
        elif kind in QUIET:
            self.substitutions(node)
        else:
            self.sequence(statements(node, place.connector), place)
        self.outer = outer

    def substitutions(self, node: Node) -> None:
        """What `$(…)` and `<(…)` run on the way to an argument."""
        for child in node.children:
            if child.type in ("command_substitution", "process_substitution"):
                cwd = self.cwd
                self.sequence(statements(child, ";"), _Place(";", 0, 1, _Say.NOTHING))
                self.cwd = cwd
            elif child.type != "subshell":
                self.substitutions(child)

    def command(self, node: Node, redirect_nodes: Sequence[Node], place: _Place) -> None:
        if self.substitutes:
            self.substitutions(node)
        words: list[str] = []
        assignments: list[str] = []
        inner: list[Node] = []
        for child in node.children:
            kind = child.type
            if kind == "variable_assignment":
                assignments.append(text_of(child))
            elif kind in REDIRECTS:
                inner.append(child)
            elif kind != "comment" and child.is_named:
                words.append(word_of(child))
        for redirect in (*inner, *redirect_nodes):
            words += map(word_of, operands_of(redirect)[1:])
        if node.type == "test_command":
            words = ["["]
        redirects, stdin = (
            self.redirects((*inner, *redirect_nodes)) if inner or redirect_nodes else ((), None)
        )
        stripped = wrappers.strip(words)
        argv = stripped.argv
        if not argv:
            return
        script = wrappers.inline_shell(argv, stdin)
        if script is not None:
            self.nested(script, redirects, place)
        elif argv[0] in self.functions and self.depth < _MAX_DEPTH:
            self.depth += 1
            self.sequence(statements(self.functions[argv[0]], place.connector), place)
            self.depth -= 1
        else:
            self.found.append(
                SimpleCommand(
                    argv=argv,
                    environment=(*assignments, *stripped.environment),
                    cwd=self.cwd,
                    redirects=self.outer + redirects,
                    stdin=stdin,
                    connector=place.connector,
                    stage=place.stage,
                    stages=place.stages,
                    exit_code_is_own=place.say is _Say.ALL,
                    success_is_own=place.say is not _Say.NOTHING,
                    repeats=self.loops > 0,
                )
            )
            self.builtin(argv)

    def nested(self, script: str, redirects: tuple[Redirect, ...], place: _Place) -> None:
        kept = (self.outer, self.cwd, self.errexit, self.pipefail)
        self.outer += redirects
        before = len(self.found)
        self.text(script, place)
        self.found[before:] = [
            c if c.stages > 1 else c._replace(stage=place.stage, stages=place.stages)
            for c in self.found[before:]
        ]
        self.outer, self.cwd, self.errexit, self.pipefail = kept

    def builtin(self, argv: tuple[str, ...]) -> None:
        if argv[0] in ("cd", "pushd"):
            paths = [a for a in argv[1:] if a == "-" or not a.startswith("-")]
            known = bool(paths) and paths[0] != "-" and "$" not in paths[0]
            self.cwd = resolve(paths[0], self.cwd) if known else None
        elif argv[0] == "set":
            flags = "".join(argv[1:])
            self.errexit = self.errexit or bool(re.search(r"(^|\s)-[a-z]*e", " ".join(argv[1:])))
            self.pipefail = self.pipefail or ("pipefail" in flags and "+o" not in argv)

    def redirects(self, nodes: Iterable[Node]) -> tuple[tuple[Redirect, ...], str | None]:
        found: list[Redirect] = []
        stdin: str | None = None
        for node in nodes:
            words = operands_of(node)
            target = word_of(words[0]) if words else ""
            if node.type == "herestring_redirect":
                stdin = target
            elif target.startswith(heredocs.PLACEHOLDER):
                number = target.removeprefix(heredocs.PLACEHOLDER)
                stdin = (
                    self.bodies[int(number)] if number.isdigit() and int(number) < len(self.bodies) else ""
                )
            else:
                operator = "".join(text_of(c) for c in node.children if c not in words)
                found.append(Redirect(operator=operator, target=target))
        return tuple(found), stdin


def resolve(path: str, cwd: str | None) -> str:
    """A path as written, seen from where the shell stood; `~` and absolute paths stay what they are."""
    if path.startswith(("/", "~")) or cwd is None:
        return posixpath.normpath(path) if path else path
    return posixpath.normpath(posixpath.join(cwd, path))


def _after(say: _Say, later: Sequence[Item]) -> _Say:
    """What is still known of a command's exit code once a later part of its chain may have run."""
    name = name_of(later[0].node)
    if later[0].connector == "||":
        return say if name in _GIVING_UP else _Say.NOTHING
    if name in _HARMLESS or say is _Say.NOTHING:
        return say
    return _Say.SUCCESS
