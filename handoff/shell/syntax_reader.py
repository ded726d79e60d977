"""Walk the syntax tree of a command line and collect its simple commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from tree_sitter import Node

from langgraph_takeover.handoff.shell import syntax, wrappers
from langgraph_takeover.handoff.shell.syntax import (
    BRANCHES,
    DECLARATIONS,
    LOOPS,
    MAX_CHARS,
    REDIRECTS,
    Connector,
    Place,
    Redirect,
    SimpleCommand,
    Statement,
    command_name,
    list_statements,
    node_text,
    parse_syntax_tree,
    split_redirect,
    split_statements,
    word_text,
)
from langgraph_takeover.handoff.shell.windows import (
    WINDOWS_SHELLS,
    find_program_name,
    is_powershell,
    translate,
)

_MAX_DEPTH = 6
"""Of scripts in scripts, and functions in functions."""
_MAX_NESTING = 60
"""Of groups, branches and substitutions: five calls each, of the thousand that Python allows."""
_MAX_CALLS = 200
"""Calls of functions that are followed: those that call each other would multiply."""
_HARMLESS_COMMANDS = {"echo", "printf", "true", ":", "cd", "export", "pwd", "date", "set", "source", "."}
_DIRECTORY_COMMANDS = {"cd", "pushd", "popd"}
_EXIT_COMMANDS = {"exit", "return", "false"}
_FILTER_PROGRAMS = {"tail", "head", "tee", "cat", "sed", "less", "awk", "sort", "cut", "tr", "uniq"}


class ExitCodeMeaning(Enum):
    """What the exit code of the line says about one of its parts."""

    ALL = 2
    """It is the exit code of the part."""
    SUCCESS = 1
    """Exit code 0 implies that the part succeeded."""
    NOTHING = 0


class Context(NamedTuple):
    """Position of a statement in its line, and what the exit code of the line says about it."""

    connector: Connector
    stage: int
    stages: int
    meaning: ExitCodeMeaning


class SyntaxReader:
    """Walks syntax trees and tracks the state of the shell: directory, options, functions."""

    def __init__(self) -> None:
        self.commands: list[SimpleCommand] = []
        self.place = Place()
        self.heredoc_bodies: tuple[str, ...] = ()
        self.functions: dict[str, Node] = {}
        self.outer_redirects: tuple[Redirect, ...] = ()
        self.depth = self.nesting = self.calls = 0
        self.loop_depth = 0
        self.has_substitutions = False
        self.errexit = self.pipefail = False

    def read_text(self, text: str, context: Context) -> None:
        if self.depth >= _MAX_DEPTH:
            return
        plain, bodies = syntax.extract_heredocs(text)
        outer_bodies, self.heredoc_bodies = self.heredoc_bodies, bodies
        outer_substitutions, self.has_substitutions = (
            self.has_substitutions,
            "$(" in plain or "`" in plain or "(" in plain,
        )
        self.depth += 1
        statements = list_statements(parse_syntax_tree(plain), context.connector)
        if len(statements) == 1 and statements[0].node.type == "command" and not statements[0].background:
            self.read_command(statements[0].node, statements[0].redirects, context)
        else:
            self.read_sequence(statements, context)
        self.depth -= 1
        self.has_substitutions = outer_substitutions
        self.heredoc_bodies = outer_bodies

    def read_sequence(self, statements: Sequence[Statement], context: Context) -> None:
        if self.nesting >= _MAX_NESTING:
            return
        self.nesting += 1
        parts = split_statements(statements, (";", "&"))
        for number, part in enumerate(parts):
            following = parts[number + 1][0].connector if number + 1 < len(parts) else ""
            if part[-1].background:
                meaning = ExitCodeMeaning.NOTHING
            elif following == "":
                meaning = context.meaning
            elif following == ";" and self.errexit and context.meaning is not ExitCodeMeaning.NOTHING:
                meaning = ExitCodeMeaning.SUCCESS
            else:
                meaning = ExitCodeMeaning.NOTHING
            place = self.place
            inner = Context(context.connector, context.stage, context.stages, meaning)
            self.read_chain(split_statements(part, ("&&", "||")), inner)
            self.place = place if part[-1].background else self.place
        self.nesting -= 1

    def read_chain(self, pipelines: Sequence[Sequence[Statement]], context: Context) -> None:
        if len(pipelines) == 1 and pipelines[0][0].connector != "||":
            self.read_pipeline(pipelines[0], context)
            return
        # What a meaning becomes by the pipelines that follow each, from the last one back.
        after = [{meaning: meaning for meaning in ExitCodeMeaning}]
        for later in reversed(pipelines[1:]):
            after.append(
                {meaning: after[-1][_find_meaning_after(meaning, later)] for meaning in ExitCodeMeaning}
            )
        for pipeline in pipelines:
            meaning = ExitCodeMeaning.NOTHING if pipeline[0].connector == "||" else context.meaning
            self.read_pipeline(pipeline, context._replace(meaning=after.pop()[meaning]))

    def read_pipeline(self, statements: Sequence[Statement], context: Context) -> None:
        if len(statements) == 1:
            self.read_statement(statements[0], context._replace(connector=statements[0].connector))
            return
        place, last = self.place, len(statements) - 1
        if self.pipefail:
            while last and command_name(statements[last].node) in _FILTER_PROGRAMS:
                last -= 1
        for stage, statement in enumerate(statements):
            meaning = context.meaning if stage >= last else ExitCodeMeaning.NOTHING
            self.read_statement(statement, Context(statement.connector, stage, len(statements), meaning))
            self.place = place

    def read_statement(self, statement: Statement, context: Context) -> None:
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
            place = self.place
            self.read_sequence(list_statements(node, context.connector), context)
            self.place = place
        elif kind == "negated_command":
            self.read_sequence(
                list_statements(node, context.connector), context._replace(meaning=ExitCodeMeaning.NOTHING)
            )
        elif kind in BRANCHES:
            self.loop_depth += kind in LOOPS
            self.read_sequence(
                list_statements(node, context.connector), context._replace(meaning=ExitCodeMeaning.NOTHING)
            )
            self.loop_depth -= kind in LOOPS
        elif kind in DECLARATIONS:
            self.read_substitutions(node)
        else:
            self.read_sequence(list_statements(node, context.connector), context)
        self.outer_redirects = outer

    def read_substitutions(self, node: Node) -> None:
        """Read the commands inside `$(…)` and `<(…)` of an argument."""
        waiting = [*reversed(node.children)]
        while waiting:
            child = waiting.pop()
            if child.type in ("command_substitution", "process_substitution"):
                place = self.place
                self.read_sequence(list_statements(child, ";"), Context(";", 0, 1, ExitCodeMeaning.NOTHING))
                self.place = place
            elif child.type != "subshell":
                waiting += reversed(child.children)

    def read_command(self, node: Node, redirect_nodes: Sequence[Node], context: Context) -> None:
        if self.has_substitutions:
            self.read_substitutions(node)
        words, assignments, redirect_nodes = _split_command(node, redirect_nodes)
        redirects, stdin = self.read_redirects(redirect_nodes) if redirect_nodes else ((), None)
        unwrapped = wrappers.unwrap_command(words)
        argv = unwrapped.argv
        if not argv:
            return
        script = wrappers.find_inline_script(argv, stdin)
        if script is not None:
            self.read_nested_script(script, redirects, context)
        elif argv[0] in self.functions and self.depth < _MAX_DEPTH and self.calls < _MAX_CALLS:
            self.calls += 1
            self.depth += 1
            self.read_sequence(list_statements(self.functions[argv[0]], context.connector), context)
            self.depth -= 1
        else:
            self.commands.append(
                SimpleCommand(
                    argv=argv,
                    environment=(*assignments, *unwrapped.environment),
                    cwd=self.place.path,
                    redirects=self.outer_redirects + redirects,
                    stdin=stdin,
                    connector=context.connector,
                    stage=context.stage,
                    stages=context.stages,
                    exit_code_is_own=context.meaning is ExitCodeMeaning.ALL,
                    success_is_own=context.meaning is not ExitCodeMeaning.NOTHING,
                    is_repeated=self.loop_depth > 0,
                )
            )
            self.apply_builtin(argv)

    def read_nested_script(self, script: str, redirects: tuple[Redirect, ...], context: Context) -> None:
        saved_state = (self.outer_redirects, self.place, self.errexit, self.pipefail)
        self.outer_redirects += redirects
        before = len(self.commands)
        self.read_text(script, context)
        self.commands[before:] = [
            c if c.stages > 1 else c._replace(stage=context.stage, stages=context.stages)
            for c in self.commands[before:]
        ]
        self.outer_redirects, self.place, self.errexit, self.pipefail = saved_state

    def apply_builtin(self, argv: tuple[str, ...]) -> None:
        if argv[0] in _DIRECTORY_COMMANDS:
            self.place = self.place.move(argv)
        elif argv[0] == "set":
            flags = "".join(argv[1:])
            self.errexit = self.errexit or bool(re.search(r"(^|\s)-[a-z]*e", " ".join(argv[1:])))
            self.pipefail = self.pipefail or ("pipefail" in flags and "+o" not in argv)

    def read_redirects(self, nodes: Iterable[Node]) -> tuple[tuple[Redirect, ...], str | None]:
        redirects: list[Redirect] = []
        stdin: str | None = None
        for node in nodes:
            words, marks = split_redirect(node)
            target = word_text(words[0]) if words else ""
            if node.type == "herestring_redirect":
                stdin = target
            elif target.startswith(syntax.PLACEHOLDER):
                number = target.removeprefix(syntax.PLACEHOLDER)
                stdin = (
                    self.heredoc_bodies[int(number)]
                    if re.fullmatch("[0-9]{1,9}", number) and int(number) < len(self.heredoc_bodies)
                    else ""
                )
            else:
                operator = "".join(map(node_text, marks))
                redirects.append(Redirect(operator=operator, target=target))
        return tuple(redirects), stdin


def _split_command(
    node: Node, redirect_nodes: Sequence[Node]
) -> tuple[list[str], list[str], tuple[Node, ...]]:
    """The words, the variable assignments and all redirections of a command."""
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
    redirects = (*inner, *redirect_nodes)
    for redirect in redirects:
        words += map(word_text, split_redirect(redirect)[0][1:])
    return (["["] if node.type == "test_command" else words), assignments, redirects


def _find_meaning_after(meaning: ExitCodeMeaning, later: Sequence[Statement]) -> ExitCodeMeaning:
    """What the exit code of the line says about a command after a later part of its chain may have run."""
    name = command_name(later[0].node)
    if later[0].connector == "||":
        return meaning if name in _EXIT_COMMANDS else ExitCodeMeaning.NOTHING
    if name in _HARMLESS_COMMANDS or meaning is ExitCodeMeaning.NOTHING:
        return meaning
    return ExitCodeMeaning.SUCCESS


_QUOTED = r"""'[^'\x00-\x08\x0b-\x1f\x7f]*'|"[^"\\$`!\x00-\x08\x0b-\x1f\x7f]*\""""
_PLAIN_COMMAND = re.compile(r" *[\w./@%+,:-]+(?: +[\w./=:,@%+-]+)*[ \n]*")
"""A single command without quotes, operators or expansions, for which splitting at spaces is enough."""
_QUOTED_COMMAND = re.compile(rf" *[A-Za-z./][\w./-]*(?: +(?:[\w./:,@%+-][\w./=:,@%+-]*|{_QUOTED}))*[ \n]*")
"""The same, some of whose arguments are in quotes, from their first character to their last."""
_QUOTED_WORD = re.compile(rf"{_QUOTED}|[^ \n]+")
_SHELL_KEYWORDS = {
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "function", "select",
    "in", "coproc", "bash", "sh", "zsh", "dash", "ksh", "eval", "export", "declare", "local", "readonly", "typeset",
    "unset", "unsetenv", *WINDOWS_SHELLS,
}  # fmt: skip


_START = Place()


def parse_command(command: str) -> tuple[SimpleCommand, ...]:
    """The simple commands of a command line, in order; unparsable parts are omitted."""
    return read_line(command)[0]


def find_place_after(command: str) -> Place:
    """The directory of the shell after a command line."""
    return read_line(command)[1]


@lru_cache(maxsize=256)
def read_line(command: str) -> tuple[tuple[SimpleCommand, ...], Place]:
    """The simple commands, and the place of the shell after them."""
    if is_powershell(command):
        command = translate(command, "powershell")
    if words := _split_plain_command(command):
        argv, environment = wrappers.unwrap_command(words)
        if find_program_name(argv[0]).lower() not in _SHELL_KEYWORDS:
            place = _START.move(argv) if argv[0] in _DIRECTORY_COMMANDS else _START
            return (SimpleCommand(argv=argv, environment=environment),), place
    if (written := _read_written_file(command)) is not None:
        return (written,), _START
    reader = SyntaxReader()
    reader.read_text(command, Context("", 0, 1, ExitCodeMeaning.ALL))
    return tuple(reader.commands), reader.place


def _split_plain_command(command: str) -> list[str]:
    """The words of a single command; empty if the line needs the grammar."""
    if _PLAIN_COMMAND.fullmatch(command):
        return command.split()
    if len(command) > MAX_CHARS or not _QUOTED_COMMAND.fullmatch(command):
        return []
    words = [word[1:-1] if word[0] in "'\"" else word for word in _QUOTED_WORD.findall(command)]
    return [] if wrappers.may_run_text(words) else words


_INPUT = f"< {syntax.PLACEHOLDER}0"
_TARGET = r"(>>?) ?([A-Za-z_./][\w./-]{0,200})"
_WRITTEN_FILE = re.compile(rf"cat (?:{_INPUT} {_TARGET}|{_TARGET} ?{_INPUT})\n?", re.ASCII)
"""A command line that only writes a here-document into a file."""


def _read_written_file(command: str) -> SimpleCommand | None:
    """The command of a line that only writes a here-document into a file; None for other lines."""
    if "<<" not in command:
        return None
    plain, bodies = syntax.extract_heredocs(command)
    found = _WRITTEN_FILE.fullmatch(plain)
    if found is None or len(bodies) != 1:
        return None
    redirect = Redirect(found[1] or found[3], found[2] or found[4])
    return SimpleCommand(("cat",), redirects=(redirect,), stdin=bodies[0])


_SYNTAX_ERROR = re.compile(
    r"^(?:\S*sh|\S+\.sh): (?P<eval>eval: )?(?:-c: )?line (?P<number>\d{1,6}): (?:syntax error|unexpected EOF|`)",
    re.M,
)
_QUOTED_LINE = re.compile(r"^\S+: (?:eval: |-c: )?line \d+: `(.*)'$", re.M)


def find_executed_part(command: str, output: str) -> str:
    """The part of a command line that ran: Bash reads line by line and stops at a syntax error."""
    reports_error = "syntax error" in output or "unexpected EOF" in output
    error = _SYNTAX_ERROR.search(output) if reports_error else None
    if error is None:
        return command
    lines = command.split("\n")
    quoted = _QUOTED_LINE.search(output)
    error_lines = [number for number, line in enumerate(lines) if quoted and line == quoted[1]]
    if error_lines:
        return "\n".join(lines[: error_lines[0]])
    if error["eval"]:
        return ""  # a long-lived shell counts the lines of all of its earlier commands
    before = int(error["number"]) - 1
    return "\n".join(lines[:before]) if before < len(lines) else command
