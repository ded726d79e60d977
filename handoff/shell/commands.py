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

from langgraph_takeover.handoff.shell import heredocs, wrappers
from langgraph_takeover.handoff.shell.syntax import (
    BRANCHES,
    DECLARATIONS,
    LOOPS,
    REDIRECTS,
    Connector,
    Statement,
    command_name,
    list_redirect_operands,
    list_statements,
    node_text,
    parse_syntax_tree,
    split_statements,
    word_text,
)

_MAX_DEPTH = 6
_HARMLESS_COMMANDS = {"echo", "printf", "true", ":", "cd", "export", "pwd", "date", "set", "source", "."}
_EXIT_COMMANDS = {"exit", "return", "false"}
_FILTER_PROGRAMS = {"tail", "head", "tee", "cat", "sed", "less", "awk", "sort", "cut", "tr", "uniq"}


_PLAIN_COMMAND = re.compile(r" *[\w./@%+,:-]+(?: +[\w./=:,@%+-]+)*[ \n]*")
"""One command without quotes, operators and expansions: splitting it is parsing it."""
_SHELL_KEYWORDS = {
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
    is_repeated: bool = False
    """It stands in a loop."""

    @property
    def name(self) -> str:
        return posixpath.basename(self.argv[0]) if self.argv else ""

    @property
    def shows_output(self) -> bool:
        """Whether what it prints can reach the agent, rather than a file."""
        return not any(r.operator in (">", ">>", "&>", "&>>", "1>", "1>>", ">|") for r in self.redirects)


class _ExitCodeMeaning(Enum):
    """What the line's exit code says about a part: all, only success, or nothing."""

    ALL = 2
    SUCCESS = 1
    NOTHING = 0


class _Context(NamedTuple):
    connector: Connector
    stage: int
    stages: int
    meaning: _ExitCodeMeaning


@lru_cache(maxsize=256)
def parse_command(command: str) -> tuple[SimpleCommand, ...]:
    """The simple commands of a command line, in order; what cannot be parsed is left out."""
    if _PLAIN_COMMAND.fullmatch(command):
        stripped = wrappers.unwrap_command(command.split())
        if stripped.argv[0] not in _SHELL_KEYWORDS:
            return (SimpleCommand(argv=stripped.argv, environment=stripped.environment),)
    reader = _SyntaxReader()
    # What is nested more deeply than anybody writes is read as far as it goes.
    with contextlib.suppress(RecursionError):
        reader.read_text(command, _Context("", 0, 1, _ExitCodeMeaning.ALL))
    return tuple(reader.commands)


_SYNTAX_ERROR = re.compile(
    r"^(?:\S*sh|\S+\.sh): (?P<eval>eval: )?(?:-c: )?line (?P<number>\d{1,6}): (?:syntax error|unexpected EOF|`)",
    re.M,
)
_QUOTED_LINE = re.compile(r"^\S+: (?:eval: |-c: )?line \d+: `(.*)'$", re.M)


def find_executed_part(command: str, output: str) -> str:
    """The part of a command line that ran: bash reads line by line, and what it cannot read ends it."""
    told = "syntax error" in output or "unexpected EOF" in output
    error = _SYNTAX_ERROR.search(output) if told else None
    if error is None:
        return command
    lines = command.split("\n")
    quoted = _QUOTED_LINE.search(output)
    found = [number for number, line in enumerate(lines) if quoted and line == quoted[1]]
    if found:
        return "\n".join(lines[: found[0]])
    if error["eval"]:
        return ""  # a long-lived shell counts the lines of all that it was ever told
    before = int(error["number"]) - 1
    return "\n".join(lines[:before]) if before < len(lines) else command


class _SyntaxReader:
    """Walks syntax trees, and keeps what a shell would keep: directory, options, functions."""

    def __init__(self) -> None:
        self.commands: list[SimpleCommand] = []
        self.cwd: str | None = None
        self.heredoc_bodies: tuple[str, ...] = ()
        self.functions: dict[str, Node] = {}
        self.outer_redirects: tuple[Redirect, ...] = ()
        self.depth = 0
        self.loop_depth = 0
        self.has_substitutions = False
        self.errexit = self.pipefail = False

    def read_text(self, text: str, context: _Context) -> None:
        if self.depth >= _MAX_DEPTH:
            return
        plain, bodies = heredocs.extract_heredocs(text)
        outer_bodies, self.heredoc_bodies = self.heredoc_bodies, bodies
        outer_substitutes, self.has_substitutions = (
            self.has_substitutions,
            "$(" in plain or "`" in plain or "(" in plain,
        )
        self.depth += 1
        items = list_statements(parse_syntax_tree(plain), context.connector)
        if len(items) == 1 and items[0].node.type == "command" and not items[0].background:
            self.read_command(items[0].node, items[0].redirects, context)
        else:
            self.read_sequence(items, context)
        self.depth -= 1
        self.has_substitutions = outer_substitutes
        self.heredoc_bodies = outer_bodies

    def read_sequence(self, items: Sequence[Statement], context: _Context) -> None:
        parts = split_statements(items, (";", "&"))
        for number, part in enumerate(parts):
            following = parts[number + 1][0].connector if number + 1 < len(parts) else ""
            if part[-1].background:
                say = _ExitCodeMeaning.NOTHING
            elif following == "":
                say = context.meaning
            elif following == ";" and self.errexit and context.meaning is not _ExitCodeMeaning.NOTHING:
                say = _ExitCodeMeaning.SUCCESS
            else:
                say = _ExitCodeMeaning.NOTHING
            self.read_chain(split_statements(part, ("&&", "||")), context._replace(meaning=say))

    def read_chain(self, pipelines: Sequence[Sequence[Statement]], context: _Context) -> None:
        for number, pipeline in enumerate(pipelines):
            say = _ExitCodeMeaning.NOTHING if pipeline[0].connector == "||" else context.meaning
            for later in pipelines[number + 1 :]:
                say = _find_meaning_after(say, later)
            self.read_pipeline(pipeline, context._replace(meaning=say))

    def read_pipeline(self, items: Sequence[Statement], context: _Context) -> None:
        if len(items) == 1:
            self.read_statement(items[0], context._replace(connector=items[0].connector))
            return
        cwd = self.cwd
        for stage, item in enumerate(items):
            kept = self.pipefail and all(command_name(i.node) in _FILTER_PROGRAMS for i in items[stage + 1 :])
            say = context.meaning if stage == len(items) - 1 or kept else _ExitCodeMeaning.NOTHING
            self.read_statement(item, _Context(item.connector, stage, len(items), say))
            self.cwd = cwd

    def read_statement(self, statement: Statement, context: _Context) -> None:
        node, kind = statement.node, statement.node.type
        outer = self.outer_redirects
        if kind in ("command", "test_command"):
            self.read_command(node, statement.redirects, context)
            return
        self.outer_redirects = outer + self.read_redirects(statement.redirects)[0]
        if kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is not None and body is not None:
                self.functions[word_text(name)] = body
        elif kind == "subshell":
            cwd = self.cwd
            self.read_sequence(list_statements(node, context.connector), context)
            self.cwd = cwd
        elif kind == "negated_command":
            self.read_sequence(
                list_statements(node, context.connector), context._replace(meaning=_ExitCodeMeaning.NOTHING)
            )
        elif kind in BRANCHES:
            self.loop_depth += kind in LOOPS
            self.read_sequence(
                list_statements(node, context.connector), context._replace(meaning=_ExitCodeMeaning.NOTHING)
            )
            self.loop_depth -= kind in LOOPS
        elif kind in DECLARATIONS:
            self.read_substitutions(node)
        else:
            self.read_sequence(list_statements(node, context.connector), context)
        self.outer_redirects = outer

    def read_substitutions(self, node: Node) -> None:
        """What `$(…)` and `<(…)` run on the way to an argument."""
        for child in node.children:
            if child.type in ("command_substitution", "process_substitution"):
                cwd = self.cwd
                self.read_sequence(list_statements(child, ";"), _Context(";", 0, 1, _ExitCodeMeaning.NOTHING))
                self.cwd = cwd
            elif child.type != "subshell":
                self.read_substitutions(child)

    def read_command(self, node: Node, redirect_nodes: Sequence[Node], context: _Context) -> None:
        if self.has_substitutions:
            self.read_substitutions(node)
        words: list[str] = []
        assignments: list[str] = []
        inner: list[Node] = []
        for child in node.children:
            kind = child.type
            if kind == "variable_assignment":
                assignments.append(node_text(child))
            elif kind in REDIRECTS:
                inner.append(child)
            elif kind != "comment" and child.is_named:
                words.append(word_text(child))
        for redirect in (*inner, *redirect_nodes):
            words += map(word_text, list_redirect_operands(redirect)[1:])
        if node.type == "test_command":
            words = ["["]
        redirects, stdin = (
            self.read_redirects((*inner, *redirect_nodes)) if inner or redirect_nodes else ((), None)
        )
        stripped = wrappers.unwrap_command(words)
        argv = stripped.argv
        if not argv:
            return
        script = wrappers.find_inline_script(argv, stdin)
        if script is not None:
            self.read_nested_script(script, redirects, context)
        elif argv[0] in self.functions and self.depth < _MAX_DEPTH:
            self.depth += 1
            self.read_sequence(list_statements(self.functions[argv[0]], context.connector), context)
            self.depth -= 1
        else:
            self.commands.append(
                SimpleCommand(
                    argv=argv,
                    environment=(*assignments, *stripped.environment),
                    cwd=self.cwd,
                    redirects=self.outer_redirects + redirects,
                    stdin=stdin,
                    connector=context.connector,
                    stage=context.stage,
                    stages=context.stages,
                    exit_code_is_own=context.meaning is _ExitCodeMeaning.ALL,
                    success_is_own=context.meaning is not _ExitCodeMeaning.NOTHING,
                    is_repeated=self.loop_depth > 0,
                )
            )
            self.apply_builtin(argv)

    def read_nested_script(self, script: str, redirects: tuple[Redirect, ...], context: _Context) -> None:
        kept = (self.outer_redirects, self.cwd, self.errexit, self.pipefail)
        self.outer_redirects += redirects
        before = len(self.commands)
        self.read_text(script, context)
        self.commands[before:] = [
            c if c.stages > 1 else c._replace(stage=context.stage, stages=context.stages)
            for c in self.commands[before:]
        ]
        self.outer_redirects, self.cwd, self.errexit, self.pipefail = kept

    def apply_builtin(self, argv: tuple[str, ...]) -> None:
        if argv[0] in ("cd", "pushd"):
            paths = [a for a in argv[1:] if a == "-" or not a.startswith("-")]
            known = bool(paths) and paths[0] != "-" and "$" not in paths[0]
            self.cwd = resolve_path(paths[0], self.cwd) if known else None
        elif argv[0] == "set":
            flags = "".join(argv[1:])
            self.errexit = self.errexit or bool(re.search(r"(^|\s)-[a-z]*e", " ".join(argv[1:])))
            self.pipefail = self.pipefail or ("pipefail" in flags and "+o" not in argv)

    def read_redirects(self, nodes: Iterable[Node]) -> tuple[tuple[Redirect, ...], str | None]:
        found: list[Redirect] = []
        stdin: str | None = None
        for node in nodes:
            words = list_redirect_operands(node)
            target = word_text(words[0]) if words else ""
            if node.type == "herestring_redirect":
                stdin = target
            elif target.startswith(heredocs.PLACEHOLDER):
                number = target.removeprefix(heredocs.PLACEHOLDER)
                stdin = (
                    self.heredoc_bodies[int(number)]
                    if number.isdigit() and int(number) < len(self.heredoc_bodies)
                    else ""
                )
            else:
                operator = "".join(node_text(c) for c in node.children if c not in words)
                found.append(Redirect(operator=operator, target=target))
        return tuple(found), stdin


def resolve_path(path: str, cwd: str | None) -> str:
    """A path as written, seen from where the shell stood; `~` and absolute paths stay what they are."""
    if path.startswith(("/", "~")) or cwd is None:
        return posixpath.normpath(path) if path else path
    return posixpath.normpath(posixpath.join(cwd, path))


def _find_meaning_after(meaning: _ExitCodeMeaning, later: Sequence[Statement]) -> _ExitCodeMeaning:
    """What is still known of a command's exit code once a later part of its chain may have run."""
    name = command_name(later[0].node)
    if later[0].connector == "||":
        return meaning if name in _EXIT_COMMANDS else _ExitCodeMeaning.NOTHING
    if name in _HARMLESS_COMMANDS or meaning is _ExitCodeMeaning.NOTHING:
        return meaning
    return _ExitCodeMeaning.SUCCESS
