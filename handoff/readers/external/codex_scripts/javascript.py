"""Tokens of JavaScript, as far as scripts of models need them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<name>[A-Za-z_$][\w$]*)"
    r"|(?P<number>\d[\w.]*)"
    r"|(?P<string>'(?:[^'\\\n]|\\.)*+'?|\"(?:[^\"\\\n]|\\.)*+\"?)"
    r"|(?P<mark>=>|\.\.\.|\?\.|[=!]==?|&&|\|\||\?\?|[-+*/%&|^]=|.)",
    re.S,
)
_TEMPLATE = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*+", re.S)
_PATTERN = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.){0,200}+\]){1,500}+/\w*")
_BEFORE_PATTERN = frozenset(
    ("(", ",", "=", ":", "[", "!", "&&", "||", "?", "{", "}", ";", "=>", "return", "??", "")
)
_ESCAPE = re.compile(r"\\(u\{[0-9a-fA-F]{1,6}\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|\r\n|.)", re.S)
_SIMPLE_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "0": "\0",
    "\n": "",
    "\r\n": "",
}


class Token(NamedTuple):
    kind: str
    """`name`, `number`, `string`, `mark`, or of a template `template`, `begin` and `end` of an expression, `close`."""
    text: str
    position: int


def list_tokens(script: str) -> Iterator[Token]:
    at, previous = 0, ""
    braces: list[bool] = []
    """Of each open brace, whether it began an expression in a template."""
    while at < len(script):
        if script[at] == "`" or (script[at] == "}" and braces and braces[-1]):
            if script[at] == "}":
                braces.pop()
                yield Token("end", "}", at)
            text = _TEMPLATE.match(script, at + 1)
            end = text.end() if text is not None else at + 1
            yield Token("template", script[at + 1 : end], at)
            is_expression = script.startswith("${", end)
            if is_expression:
                braces.append(True)
                yield Token("begin", "${", end)
            else:
                yield Token("close", "`", end)
            at, previous = end + (2 if is_expression else 1), "(" if is_expression else "`"
            continue
        if (
            script[at] == "/"
            and previous in _BEFORE_PATTERN
            and (pattern := _PATTERN.match(script, at)) is not None
        ):
            yield Token("mark", "/", at)
            at, previous = pattern.end(), "/"
            continue
        found = _TOKEN.match(script, at)
        if found is None or found.lastgroup is None:
            return
        at = found.end()
        if found.lastgroup != "space":
            previous = found[0]
            if previous == "{":
                braces.append(False)
            elif previous == "}" and braces:
                braces.pop()
            yield Token(found.lastgroup, previous, found.start())


def unescape(text: str) -> str:
    return _ESCAPE.sub(_read_escape, text) if "\\" in text else text


def _read_escape(escape: re.Match[str]) -> str:
    letters = escape[1]
    if letters[0] in "ux" and len(letters) > 1:
        code = int(letters[1:].strip("{}"), 16)
        return chr(code) if code < 0x110000 else "\ufffd"
    return _SIMPLE_ESCAPES.get(letters, letters)
