"""Statements and words of a shell text, from the Tree-sitter grammar of Bash."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Literal, NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from langgraph_takeover.handoff.shell.windows import find_program_name

Connector = Literal["", ";", "&", "&&", "||", "|"]

_PARSER = Parser(Language(tree_sitter_bash.language()))
_MAX_CHARS = 30_000
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
    return _PARSER.parse(_WIDE.sub(_spell, text[:_MAX_CHARS]).encode()).root_node


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
        elif item.type in _OPERATORS:
            connector = _OPERATORS[item.type]
            if connector == "&" and statements:
                statements[-1] = statements[-1]._replace(background=True)
        elif item.type in _SEQUENCES:
            waiting += [";", *reversed(item.children)]
        elif item.type == "redirected_statement":
            body = [child for child in item.children if child.type not in REDIRECTS]
            waiting += [
                ";",
                (len(statements), tuple(child for child in item.children if child.type in REDIRECTS)),
            ]
            waiting += [each for child in reversed(body) for each in (child, connector)]
        else:
            if item.type in _STATEMENT_TYPES:
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


def list_redirect_operands(redirect: Node) -> list[Node]:
    """The target of a redirection, then the words after it, which are arguments of the command."""
    return [child for child in redirect.children if child.is_named and child.type != "file_descriptor"]


def command_name(node: Node) -> str:
    name = node.child_by_field_name("name") if node.type == "command" else None
    return find_program_name(word_text(name)) if name is not None else ""


def node_text(node: Node) -> str:
    return _SPELLING.sub(_read_spelling, (node.text or b"").decode(errors="replace"))


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
