"""Statements, words, here-documents and simple commands of a shell text."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from langgraph_takeover.handoff.shell.windows import find_program_name

PLACEHOLDER = "/dev/heredoc/"
"""An input redirection from this path and a number replaces each here-document."""

_START = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][\w.-]*))")
_PLAIN_TEXT = re.compile(r"[^<\n#'\"`\\$()]+")
"""Text without quotes, substitutions, comments and here-documents."""
_OPENERS = {"'": "'", '"': '"', "`": "`"}


@lru_cache(maxsize=16)
def extract_heredocs(text: str) -> tuple[str, tuple[str, ...]]:
    """The text without its here-documents, and their bodies in order.

    The grammar loses the rest of a line after `<<EOF ...;` and reads the body as commands. A script that is
    only written would then look like one that is run.
    """
    if "<<" not in text:
        return text, ()
    out: list[str] = []
    bodies: list[str] = []
    pending: list[tuple[int, str, bool]] = []
    nesting: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        within = nesting[-1] if nesting else ""
        start = _START.match(text, position) if char == "<" and within not in ("'", '"', "`") else None
        if start and text[position - 1 : position] != "<" and text[position : position + 3] != "<<<":
            word = start[2] or start[3] or start[4]
            out.append(f"< {PLACEHOLDER}{len(bodies)}")
            pending.append((len(bodies), word, bool(start[1])))
            bodies.append("")
            position = start.end()
        elif char == "\n" and pending:
            out.append(char)
            position += 1
            for number, word, tabs in pending:
                bodies[number], position = _read_body(text, position, word, tabs)
            pending = []
        elif char == "#" and not within.strip(")") and (position == 0 or text[position - 1] in " \t\n;&|("):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        else:
            plain = _PLAIN_TEXT.match(text, position)
            step = plain.end() - position if plain else _count_copied_characters(text, position, nesting)
            out.append(text[position : position + step])
            position += step
    return "".join(out), tuple(bodies)


def _count_copied_characters(text: str, position: int, nesting: list[str]) -> int:
    """Number of characters to copy; updates the stack of open quotes and substitutions."""
    char = text[position]
    within = nesting[-1] if nesting else ""
    if within == "'":
        if char == "'":
            nesting.pop()
        return 1
    if char == "\\":
        return 2
    if char == within:
        nesting.pop()
    elif text.startswith("$(", position):
        nesting.append(")")
        return 2
    elif within != '"' and char in _OPENERS:
        nesting.append(_OPENERS[char])
    elif within == ")" and char == "(":
        nesting.append(")")
    return 1


def _read_body(text: str, position: int, delimiter: str, strip_tabs: bool) -> tuple[str, int]:
    """The lines up to the delimiter line, and the position after that line."""
    indent = r"\t*" if strip_tabs else ""
    end = re.compile(rf"\n{indent}{re.escape(delimiter)}(?:\n|\Z)").search(text, position - 1)
    body = text[position : end.start() + 1 if end else len(text)]
    if body and not body.endswith("\n"):
        body += "\n"
    return (re.sub(r"^\t+", "", body, flags=re.M) if strip_tabs else body), end.end() if end else len(text)


Connector = Literal["", ";", "&", "&&", "||", "|"]

_PARSER = Parser(Language(tree_sitter_bash.language()))
MAX_CHARS = 30_000
"""Characters that the grammar reads, without here-documents: its recovery from errors takes quadratic time."""
_OPERATORS: dict[str, Connector] = {
    ";": ";", "\n": ";", ";;": ";", "&": "&", "&&": "&&", "||": "||", "|": "|", "|&": "|",
}  # fmt: skip
_SEQUENCES = {"program", "list", "pipeline", "ERROR"}
_GROUPS = {"compound_statement", "do_group"}
BRANCHES = {
    "if_statement", "elif_clause", "else_clause", "case_statement", "case_item",
    "while_statement", "for_statement", "c_style_for_statement", "until_statement",
}  # fmt: skip
LOOPS = {"while_statement", "for_statement", "c_style_for_statement", "until_statement"}
DECLARATIONS = {"variable_assignment", "variable_assignments", "declaration_command", "unset_command"}
_STATEMENT_TYPES = {
    "command", "subshell", "function_definition", "negated_command", "test_command",
    *_GROUPS, *BRANCHES, *DECLARATIONS,
}  # fmt: skip
REDIRECTS = {"file_redirect", "herestring_redirect", "heredoc_redirect"}


class Statement(NamedTuple):
    """A syntax node with the operator before it and the redirections around it."""

    connector: Connector
    node: Node
    redirects: tuple[Node, ...]
    background: bool = False


def parse_syntax_tree(text: str) -> Node:
    """The root of the syntax tree; text that the grammar rejects becomes an ERROR node. Of a very long text, the start."""
    text = text[:MAX_CHARS]
    return _PARSER.parse((text if text.isascii() else _WIDE.sub(_spell, text)).encode()).root_node


_WIDE = re.compile(r"[^\x00-\x7f]")
_SPELLING = re.compile("[\xc0-\xff]{4}")
_SHIFTS = (18, 12, 6, 0)


def _spell(wide: re.Match[str]) -> str:
    """Write a character as four letters below U+0100: the grammar looks up others outside of a table, and may crash."""
    return "".join(chr(0xC0 + (ord(wide[0]) >> shift & 63)) for shift in _SHIFTS)


def _read_spelling(letters: re.Match[str]) -> str:
    code = sum((ord(each) - 0xC0) << shift for each, shift in zip(letters[0], _SHIFTS, strict=True))
    return chr(code) if code <= sys.maxunicode else "\ufffd"


def list_statements(node: Node, first: Connector) -> list[Statement]:
    """The statements under a node as a flat list; the grammar nests `a && b 2>&1 | c` incorrectly."""
    statements: list[Statement] = []
    connector = first
    # The next one last: nodes, the connector after one, and the redirections of what was listed since a number.
    waiting: list[Node | Connector | tuple[int, tuple[Node, ...]]] = [*reversed(node.children)]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            connector = item
        elif isinstance(item, tuple):
            number, redirects = item
            if len(statements) > number:
                statements[-1] = statements[-1]._replace(redirects=statements[-1].redirects + redirects)
        elif (kind := item.type) in _OPERATORS:
            connector = _OPERATORS[kind]
            if connector == "&" and statements:
                statements[-1] = statements[-1]._replace(background=True)
        elif kind in _SEQUENCES:
            waiting += [";", *reversed(item.children)]
        elif kind == "redirected_statement":
            body: list[Node] = []
            redirections: list[Node] = []
            for child in item.children:
                (redirections if child.type in REDIRECTS else body).append(child)
            waiting += [";", (len(statements), tuple(redirections))]
            waiting += [each for child in reversed(body) for each in (child, connector)]
        else:
            if kind in _STATEMENT_TYPES:
                statements.append(Statement(connector, item, ()))
            connector = ";"
    return statements


def runs_in_background(text: str) -> bool:
    """Whether a command of the line is started with `&`."""
    nodes = [parse_syntax_tree(text)] if "&" in text else []
    while nodes:
        node = nodes.pop()
        children = node.children
        if node.type != "binary_expression" and any(child.type == "&" for child in children):
            return True
        nodes += children
    return False


def split_statements(statements: Sequence[Statement], connectors: tuple[str, ...]) -> list[list[Statement]]:
    """Group statements; each of these connectors starts a new group."""
    groups: list[list[Statement]] = []
    for statement in statements:
        if groups and statement.connector not in connectors:
            groups[-1].append(statement)
        else:
            groups.append([statement])
    return groups


def split_redirect(redirect: Node) -> tuple[list[Node], list[Node]]:
    """The target of a redirection with the words after it, which are arguments of the command; and its operator."""
    words: list[Node] = []
    marks: list[Node] = []
    for child in redirect.children:
        (words if child.is_named and child.type != "file_descriptor" else marks).append(child)
    return words, marks


def command_name(node: Node) -> str:
    name = node.child_by_field_name("name") if node.type == "command" else None
    return find_program_name(word_text(name)) if name is not None else ""


def node_text(node: Node) -> str:
    text = (node.text or b"").decode(errors="replace")
    return text if text.isascii() else _SPELLING.sub(_read_spelling, text)


def word_text(node: Node) -> str:
    """A word without its quotes; expansions stay unexpanded."""
    text = node_text(node)
    kind = node.type
    if kind == "word":
        return re.sub(r"\\(\n|.)", _unescape, text) if "\\" in text else text
    if kind == "raw_string":
        return text[1:-1]
    if kind == "ansi_c_string":
        return text[2:-1].replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'")
    if kind == "string":
        return re.sub(r'\\(["\\$`])', r"\1", text[1:-1]) if "\\" in text else text[1:-1]
    if kind == "command_name" and node.child_count == 1:
        return word_text(node.children[0])
    if kind == "concatenation" and node.child_count:
        return "".join(word_text(c) for c in node.children)
    return re.sub(r"\\(\n|.)", _unescape, text) if "\\" in text else text


def _unescape(match: re.Match[str]) -> str:
    return "" if match[1] == "\n" else match[1]


_MAX_PATH_CHARS = 4_096
_MAX_STACK = 20
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_DEVICE = re.compile(r"\A[\\/]{2}[?.][\\/](?:UNC(?=[\\/])|(?=[A-Za-z]:[\\/]))")
_DRIVE_DIRECTORY = re.compile("/[a-z]/")
_PRIVATE = re.compile(r"/private/(?:tmp|var)(?:/|$)")


class Redirect(NamedTuple):
    """One redirection of a simple command: `2>`, `errors.txt`."""

    operator: str
    target: str


class SimpleCommand(NamedTuple):
    """One program that a command line runs, without wrappers such as `timeout 60`."""

    argv: tuple[str, ...]
    environment: tuple[str, ...] = ()
    cwd: str | None = None
    """Its directory after `cd`, possibly relative to that of the shell; None if unchanged or unknown."""
    redirects: tuple[Redirect, ...] = ()
    stdin: str | None = None
    """The text of its here-document or here-string."""
    connector: Connector = ""
    """The operator between the previous command and this one."""
    stage: int = 0
    """Its position in its pipeline."""
    stages: int = 1
    """Number of commands in its pipeline."""
    exit_code_is_own: bool = True
    """The exit code of the line is that of this command."""
    success_is_own: bool = True
    """Exit code 0 of the line implies that this command succeeded; true of every part of `a && b`."""
    is_repeated: bool = False
    """It is inside a loop."""

    @property
    def name(self) -> str:
        return find_program_name(self.argv[0]) if self.argv else ""

    @property
    def shows_output(self) -> bool:
        """Whether its standard output is not redirected into a file."""
        return not any(r.operator in (">", ">>", "&>", "&>>", "1>", "1>>", ">|") for r in self.redirects)


class Place(NamedTuple):
    """The directory of a shell at one place of a command line."""

    path: str | None = None
    """Possibly relative to the directory before the line; None if that, or unknown."""
    is_known: bool = True
    before: tuple[Place, ...] = ()
    """The place before the last `cd`, if any; without its own history."""
    stack: tuple[Place, ...] = ()
    """The places that `pushd` saved, the last one at the end; without their history."""

    def move(self, argv: Sequence[str]) -> Place:
        """The place after `cd`, `pushd` or `popd`."""
        here = Place(self.path, self.is_known)
        operands = [word for word in argv[1:] if word == "-" or not word.startswith("-")]
        stack = self.stack
        if argv[0] == "popd":
            target = stack[-1] if stack and not operands else Place(None, False)
            return target._replace(before=(here,), stack=stack[:-1])
        if argv[0] == "pushd":
            stack = (*stack, here)[-_MAX_STACK:]
        target = Place(None, False)
        if operands[:1] == ["-"]:
            target = self.before[0] if self.before else target
        elif operands and "$" not in operands[0]:
            path = resolve_path(operands[0], self.path)
            target = Place(path) if 0 < len(path) <= _MAX_PATH_CHARS else target
        return target._replace(before=(here,), stack=stack)


def is_absolute(path: str) -> bool:
    """Whether a path of any system is absolute."""
    return path.startswith("/") or is_windows_path(path)


def is_windows_path(path: str) -> bool:
    """Whether a path is absolute on Windows, as `C:\\x`, `c:/x` or `\\\\server\\share`."""
    return path.startswith("\\\\") or _DRIVE.match(path) is not None


def is_drive(path: str) -> bool:
    """Whether a path in its normal form is below a directory with the name of a drive, as `/c/x`."""
    return _DRIVE_DIRECTORY.match(path) is not None


def resolve_path(path: str, cwd: str | None) -> str:
    """Path of a command joined with `cwd`; absolute paths and paths with `~` are only normalized."""
    if not path:
        return path
    if cwd is None or path.startswith("~") or is_absolute(path):
        return normalize_path(path)
    return normalize_path(posixpath.join(cwd, path))


def normalize_path(path: str) -> str:
    """The shortest form of a path. `C:\\x` becomes `/c/x`, as shells on Windows name it, and `/private/tmp` of macOS `/tmp`."""
    if path.startswith(("\\", "//", "/\\")) or path[1:2] == ":":
        path = _DEVICE.sub("", path)
        if _DRIVE.match(path):
            path = f"/{path[0].lower()}/{path[3:]}".replace("\\", "/")
        elif path.startswith("\\"):
            path = path.replace("\\", "/")
    path = posixpath.normpath(path)
    path = path[1:] if path.startswith("//") else path
    return path.removeprefix("/private") if path.startswith("/private/") and _PRIVATE.match(path) else path


def list_spellings(directory: str) -> tuple[str, ...]:
    """The absolute directory, and its other name on macOS, where `/tmp` and `/var` are links."""
    other = f"/private{directory}"
    return (directory, other) if _PRIVATE.match(other) else (directory,)
