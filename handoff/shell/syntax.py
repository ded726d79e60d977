"""What the shell grammar says about a text: its statements in a row, its words without quotes."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

Connector = Literal["", ";", "&", "&&", "||", "|"]

_PARSER = Parser(Language(tree_sitter_bash.language()))
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
_STATEMENT_TYPES = {"command", "subshell", "function_definition", "negated_command", "test_command"}
REDIRECTS = {"file_redirect", "herestring_redirect", "heredoc_redirect"}


class Statement(NamedTuple):
    connector: Connector
    node: Node
    redirects: tuple[Node, ...]
    background: bool = False


def parse_syntax_tree(text: str) -> Node:
    """The root of the text's syntax tree; what the grammar rejects is an ERROR node in it."""
    return _PARSER.parse(text.encode("utf-8", "surrogatepass")).root_node


def list_statements(node: Node, first: Connector) -> list[Statement]:
    """The statements under a node in one flat row: the grammar nests `a && b 2>&1 | c` wrongly."""
    items: list[Statement] = []
    connector = first
    for child in node.children:
        if child.type in _OPERATORS:
            connector = _OPERATORS[child.type]
            if connector == "&" and items:
                items[-1] = items[-1]._replace(background=True)
            continue
        if child.type in _SEQUENCES:
            items += list_statements(child, connector)
        elif child.type == "redirected_statement":
            body = [c for c in child.children if c.type not in REDIRECTS]
            redirects = tuple(c for c in child.children if c.type in REDIRECTS)
            inner = [i for c in body for i in _list_node_statements(c, connector)]
            if inner:
                inner[-1] = inner[-1]._replace(redirects=inner[-1].redirects + redirects)
            items += inner
        else:
            items += _list_node_statements(child, connector)
        connector = ";"
    return items


def _list_node_statements(node: Node, connector: Connector) -> list[Statement]:
    if node.type in _SEQUENCES:
        return list_statements(node, connector)
    if (
        node.type in _STATEMENT_TYPES
        or node.type in _GROUPS
        or node.type in BRANCHES
        or node.type in DECLARATIONS
    ):
        return [Statement(connector, node, ())]
    return []


def split_statements(statements: Sequence[Statement], connectors: tuple[str, ...]) -> list[list[Statement]]:
    groups: list[list[Statement]] = []
    for item in statements:
        if groups and item.connector not in connectors:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def list_redirect_operands(redirect: Node) -> list[Node]:
    """Where a redirection leads, then the words behind it: they are the command's own."""
    return [child for child in redirect.children if child.is_named and child.type != "file_descriptor"]


def command_name(node: Node) -> str:
    name = node.child_by_field_name("name") if node.type == "command" else None
    return posixpath.basename(word_text(name)) if name is not None else ""


def node_text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def word_text(node: Node) -> str:
    """A word with its quotes taken off; expansions stay as they are written."""
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
