"""The calls in a JavaScript text that a model gives to Codex's tool `exec`.

A script is not run. Calls are found with arguments that the text states: literals, constants, and lists that a loop or `map`
goes through. Whether a call ran is a question of what was observed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from langgraph_takeover.handoff.readers.external.codex_scripts.javascript import list_tokens, unescape

MAX_CALLS = 200
_MAX_CHARS = 200_000
_MAX_DEPTH = 8
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "undefined": None}
_LOOPS = frozenset(("map", "forEach", "flatMap"))
_CONDITIONS = frozenset(("if", "else", "catch", "switch", "while"))


class ScriptCall(NamedTuple):
    """One call of a nested tool in a script."""

    tool: str
    arguments: Any
    """The literal argument; None if the script computes it."""
    position: int
    """Its first character in the script."""
    is_conditional: bool = False
    """It stands in a branch that may not have run."""


class _Computed:
    """The value of an expression that the text does not state."""


_COMPUTED = _Computed()


class _Each(NamedTuple):
    """A variable that takes several values, one after the other."""

    name: str
    values: tuple[Any, ...]


def find_calls(script: str) -> tuple[ScriptCall, ...]:
    """The calls of nested tools in a script, in the order of its text; one in a loop over literals counts for each of them."""
    return tuple(itertools.islice(_Reader(script[:_MAX_CHARS]).read(), MAX_CALLS))


def find_exit_codes(script: str, printed: str) -> list[int]:
    """The exit codes that a script printed in words of its own, such as `exit=${r.exit_code}`."""
    codes: list[int] = []
    for before in dict.fromkeys(_Reader(script[:_MAX_CHARS]).list_exit_code_marks()):
        for each in itertools.islice(re.finditer(re.escape(before) + r"(-?\d{1,9})\b", printed), MAX_CALLS):
            codes.append(int(each[1]))
    return codes


class _Reader:
    """Goes through the tokens of a script once, and keeps the constants and the open blocks."""

    def __init__(self, script: str) -> None:
        self.tokens = list(list_tokens(script))
        self.constants: dict[str, Any] = {}
        self.used: set[str] = set()
        self.closers = dict(self._match_brackets())
        self.budget = 20 * len(self.tokens) + 1_000
        """Steps of evaluation that remain: a literal may stand inside others."""

    def read(self) -> Iterator[ScriptCall]:
        blocks: list[bool] = []
        statement = 0
        for at, token in enumerate(self.tokens):
            if token.kind == "mark" and token.text in ("{", "}", ";"):
                if token.text == "{":
                    blocks.append(self._is_condition(statement, at))
                elif token.text == "}" and blocks:
                    blocks.pop()
                statement = at + 1
            elif token.kind == "name":
                self._bind(at)
                if token.text == "tools":
                    is_conditional = any(blocks) or self._is_condition(statement, at)
                    yield from self._read_call(at, is_conditional)
            elif token.text == "[":
                self._bind_loop(at)

    def list_exit_code_marks(self) -> Iterator[str]:
        """The literal texts of templates before an exit code."""
        for at, token in enumerate(self.tokens):
            inner = [each.text for each in self.tokens[at + 2 : at + 6]]
            is_code = inner[:1] and inner[1:4] in ([".", "exit_code", "}"], ["?.", "exit_code", "}"])
            if token.kind == "template" and is_code and (mark := unescape(token.text)[-20:]).strip():
                yield mark

    def _text(self, at: int) -> str:
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def _is_condition(self, start: int, end: int) -> bool:
        """Whether the statement between two tokens begins a branch."""
        words = self.tokens[start : min(end, start + 50)]
        return any(each.kind == "name" and each.text in _CONDITIONS for each in words) or any(
            each.text == "?" for each in words
        )

    def _bind(self, at: int) -> None:
        """Remember a constant, or the variable of a loop; forget one that changes."""
        name = self._text(at)
        before, after = self._text(at - 1), self._text(at + 1)
        if (
            name == "for"
            and after == "("
            and self._text(at + 2) in ("const", "let", "var")
            and self._text(at + 4) == "of"
        ):
            values, _ = self._evaluate(at + 5)
            self._bind_each(self._text(at + 3), values)
        elif before in ("const", "let", "var") and after == "=":
            value, _ = self._evaluate(at + 2)
            self.constants[name] = _COMPUTED if name in self.constants else value
        elif after in ("=", "+=") and before not in (".", "?.") and name in self.constants:
            self.constants[name] = _COMPUTED
        elif isinstance(self.constants.get(name), list | tuple) and after == ".":
            self._bind_parameter(at + 1, self.constants[name])

    def _match_brackets(self) -> Iterator[tuple[int, int]]:
        """The tokens that close the brackets, by those that open them."""
        open_brackets: list[int] = []
        for at, token in enumerate(self.tokens):
            if token.text == "[" and token.kind == "mark":
                open_brackets.append(at)
            elif token.text == "]" and token.kind == "mark" and open_brackets:
                yield open_brackets.pop(), at

    def _bind_loop(self, at: int) -> None:
        """Remember the parameter of a function that goes through a literal list."""
        end = self.closers.get(at)
        if end is not None and self._text(end + 1) == "." and self._text(end + 2) in _LOOPS:
            values, _ = self._evaluate_list(at + 1, 1)
            self._bind_parameter(end + 1, values)

    def _bind_parameter(self, at: int, values: Any) -> None:
        if self._text(at + 1) not in _LOOPS or self._text(at + 2) != "(":
            return
        at += 3
        at += self._text(at) == "async"
        at += self._text(at) == "("
        self._bind_each(self._text(at), values)

    def _bind_each(self, name: str, values: Any) -> None:
        is_list = isinstance(values, list) and 0 < len(values) <= MAX_CALLS
        self.constants[name] = _Each(name, tuple(values)) if is_list else _COMPUTED

    def _read_call(self, at: int, is_conditional: bool) -> Iterator[ScriptCall]:
        position = self.tokens[at].position
        name, at = self._read_tool_name(at + 1)
        if self._text(at) != "(":
            return
        self.used.clear()
        first, _ = self._evaluate(at + 1)
        variables = [self.constants[each] for each in self.used]
        values = variables[0].values if len(variables) == 1 else (None,)
        for value in values if len(variables) < 2 else ():
            argument = first
            if variables:
                self.constants[variables[0].name] = value
                argument, _ = self._evaluate(at + 1)
            known = None if _is_computed(argument) else _drop_computed(argument)
            yield ScriptCall(name or "tools[…]", known, position, is_conditional)
        if variables and len(variables) == 1:
            self.constants[variables[0].name] = variables[0]
        if len(variables) > 1:
            yield ScriptCall(name or "tools[…]", None, position, is_conditional)

    def _read_tool_name(self, at: int) -> tuple[str, int]:
        if self._text(at) in (".", "?."):
            return self._text(at + 1), at + 2
        if self._text(at) == "[":
            value, end = self._evaluate(at + 1)
            name = value if isinstance(value, str) else ""
            return name, end + 1
        return "", at

    def _evaluate(self, at: int, depth: int = 0) -> tuple[Any, int]:
        """The value of the expression that begins at a token, and the token after it."""
        value, at = self._evaluate_operand(at, depth)
        while self._text(at) == "+" and depth <= _MAX_DEPTH:
            other, at = self._evaluate_operand(at + 1, depth + 1)
            is_text = isinstance(value, str | int) and isinstance(other, str | int)
            value = f"{value}{other}" if is_text else _COMPUTED
        ends = self._text(at) in (",", ")", "]", "}", ";", "", ":") or self._is_new_statement(at)
        return (value if ends else _COMPUTED), at

    def _is_new_statement(self, at: int) -> bool:
        return (
            at < len(self.tokens)
            and self.tokens[at].kind == "name"
            and self._text(at) not in ("in", "instanceof", "of", "as")
        )

    def _evaluate_operand(self, at: int, depth: int) -> tuple[Any, int]:
        self.budget -= 1
        if at >= len(self.tokens) or depth > _MAX_DEPTH or self.budget < 0:
            return _COMPUTED, at
        token = self.tokens[at]
        if token.kind == "string":
            value, at = unescape(token.text[1:-1]), at + 1
        elif token.kind == "number":
            value, at = _parse_number(token.text), at + 1
        elif token.kind == "template":
            value, at = self._evaluate_template(at, depth)
        elif token.text == "[":
            value, at = self._evaluate_list(at + 1, depth + 1)
        elif token.text == "{":
            value, at = self._evaluate_object(at + 1, depth + 1)
        elif token.text == "(":
            value, at = self._evaluate(at + 1, depth + 1)
            at += self._text(at) == ")"
        elif token.text == "String" and self._text(at + 2) == "raw" and self._kind(at + 3) == "template":
            value, at = self._evaluate_template(at + 3, depth, is_raw=True)
        elif token.kind == "name":
            value, at = self._read_variable(token.text), at + 1
        else:
            return _COMPUTED, at + 1
        return self._read_members(value, at, depth)

    def _kind(self, at: int) -> str:
        return self.tokens[at].kind if at < len(self.tokens) else ""

    def _read_variable(self, name: str) -> Any:
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        value = self.constants.get(name, _COMPUTED)
        if isinstance(value, _Each):
            self.used.add(name)
            return value.values[0]
        return value

    def _read_members(self, value: Any, at: int, depth: int) -> tuple[Any, int]:
        """The value after `.name`, `.join(text)` and `.trim()`."""
        while self._text(at) in (".", "?.") and self._kind(at + 1) == "name":
            name, at = self._text(at + 1), at + 2
            if self._text(at) != "(":
                value = value.get(name, _COMPUTED) if isinstance(value, Mapping) else _COMPUTED
                continue
            argument, at = ("", at + 2) if self._text(at + 1) == ")" else self._evaluate(at + 1, depth + 1)
            at += self._text(at) == ")"
            if name == "join" and isinstance(value, list) and all(isinstance(each, str) for each in value):
                value = str(argument).join(value) if isinstance(argument, str) else _COMPUTED
            else:
                value = value.strip() if name == "trim" and isinstance(value, str) else _COMPUTED
        return value, at

    def _evaluate_template(self, at: int, depth: int, *, is_raw: bool = False) -> tuple[Any, int]:
        parts: list[str] | None = []
        while at < len(self.tokens):
            token = self.tokens[at]
            at += 1
            if token.kind == "close":
                break
            if token.kind == "template":
                if parts is not None:
                    parts.append(token.text if is_raw else unescape(token.text))
            elif token.kind == "begin":
                value, end = self._evaluate(at, depth + 1)
                is_text = isinstance(value, str | int) and self._kind(end) == "end"
                parts = [*parts, str(value)] if parts is not None and is_text else None
                at = self._skip_expression(at)
        return (_COMPUTED if parts is None else "".join(parts)), at

    def _skip_expression(self, at: int) -> int:
        depth = 1
        while at < len(self.tokens) and depth:
            depth += (self._kind(at) == "begin") - (self._kind(at) == "end")
            at += 1
        return at

    def _evaluate_list(self, at: int, depth: int) -> tuple[Any, int]:
        values: list[Any] = []
        while at < len(self.tokens) and self._text(at) != "]":
            value, after = self._evaluate(at, depth)
            if self._text(after) not in (",", "]"):
                return _COMPUTED, after
            values.append(value)
            at = after + (self._text(after) == ",")
        return (_COMPUTED if any(each is _COMPUTED for each in values) else values), at + 1

    def _evaluate_object(self, at: int, depth: int) -> tuple[Any, int]:
        fields: dict[str, Any] = {}
        while at < len(self.tokens) and self._text(at) != "}":
            key = self.tokens[at]
            name = unescape(key.text[1:-1]) if key.kind == "string" else key.text
            if self._text(at + 1) == ":":
                value, at = self._evaluate(at + 2, depth)
            elif key.kind == "name" and self._text(at + 1) in (",", "}"):
                value, at = self._read_variable(name), at + 1
            else:
                return _COMPUTED, at + 1
            if self._text(at) not in (",", "}"):
                return _COMPUTED, at
            fields[name] = value
            at += self._text(at) == ","
        return fields, at + 1


def _is_computed(value: Any) -> bool:
    """Whether the fields that say what a call does are computed."""
    if isinstance(value, Mapping):
        return any(value.get(name) is _COMPUTED for name in ("cmd", "command", "input", "patch", "path"))
    return value is _COMPUTED


def _drop_computed(value: Any) -> Any:
    return (
        {name: each for name, each in value.items() if each is not _COMPUTED}
        if isinstance(value, Mapping)
        else value
    )


def _parse_number(text: str) -> Any:
    return int(text) if text.isdecimal() and len(text) < 16 else _COMPUTED
