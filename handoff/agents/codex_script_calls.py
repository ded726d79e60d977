"""The calls in a JavaScript text that a model gives to Codex's tool `exec`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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


MAX_CALLS = 200
_MAX_CHARS = 200_000
_MAX_DEPTH = 8
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "undefined": None}
_LOOPS = frozenset(("map", "forEach", "flatMap"))
_CONDITIONS = frozenset(("if", "else", "catch", "switch", "while", "?", "&&", "||", "??"))
_DECLARATIONS = frozenset(("const", "let", "var"))
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_BEFORE_LITERAL = frozenset(("(", ",", "=", ":", "[", "?", "return", "..."))
_ASSIGNMENTS = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^="))
_CHANGES = frozenset(("push", "pop", "shift", "unshift", "splice", "sort", "reverse", "fill"))
_TRY, _LOOP, _FUNCTION, _SCRIPT = 1, 2, 3, 4
_ENDS = {"break": _LOOP, "continue": _LOOP, "return": _FUNCTION, "exit": _SCRIPT}
"""What a word ends."""


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


class _Block(NamedTuple):
    is_conditional: bool = False
    is_in_try: bool = False
    is_branch: bool = False
    """Whether the statement around it is a branch."""
    ends: int = 0
    """What may have ended before it."""
    kind: int = 0


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


def prints_in_order(script: str) -> bool:
    """Whether a script prints its variables in the order of their declarations, so that results go by their order."""
    return _Reader(script[:_MAX_CHARS]).prints_in_order()


def prints_whole_results(script: str) -> bool:
    """Whether a script may print results as objects, which have an exit code: the output alone can look like one."""
    return _Reader(script[:_MAX_CHARS]).prints_whole_results()


class _Reader:
    """Goes through the tokens of a script once, and keeps the constants and the open blocks."""

    def __init__(self, script: str) -> None:
        self.tokens = list(list_tokens(script))
        self.constants: dict[str, Any] = {}
        self.used: set[str] = set()
        self.closers = dict(self._match_brackets())
        self.openers = {end: at for at, end in self.closers.items()}
        self.loop_parameters: set[int] = set()
        self.changed = {self._text(at) for at in range(len(self.tokens)) if self._is_changed(at)}
        self.may_stop = any(each.kind == "name" and each.text in ("break", "exit") for each in self.tokens)
        self.conditional_texts: set[int] = set()
        """Templates in a branch that may not have run, as far as `read` has come."""
        self.budget = 20 * len(self.tokens) + 10 * len(script) + 1_000
        """Steps of evaluation, and characters of constants, that remain: a literal may stand inside others."""

    def read(self) -> Iterator[ScriptCall]:
        blocks = [_Block()]
        is_branch, ends = False, 0
        for at, token in enumerate(self.tokens):
            if token.kind == "template" and (is_branch or blocks[-1].is_conditional or ends):
                self.conditional_texts.add(at)
            if token.kind not in ("name", "mark"):
                continue
            is_branch = is_branch or token.text in _CONDITIONS
            if token.text == "{":
                kind = self._find_block_kind(at)
                is_literal = self._text(at - 1) in _BEFORE_LITERAL
                outer = blocks[-1]
                blocks.append(
                    _Block(
                        is_branch or outer.is_conditional,
                        kind == _TRY or outer.is_in_try,
                        is_branch and is_literal,
                        ends,
                        kind,
                    )
                )
                is_branch = False
            elif token.text == "}" and len(blocks) > 1:
                block = blocks.pop()
                is_branch, ends = block.is_branch, block.ends if ends <= block.kind else ends
            elif token.text == ";" or (token.text in _DECLARATIONS and self._text(at - 1) != "("):
                is_branch = False
            self._bind(at)
            is_conditional = is_branch or blocks[-1].is_conditional
            if token.text in _ENDS and is_conditional:
                ends = max(ends, _ENDS[token.text])
            elif token.text == "tools" and token.kind == "name":
                for call in self._read_call(at, is_conditional or ends > 0):
                    if call.tool == "apply_patch" and blocks[-1].is_in_try:
                        ends, call = max(ends, _TRY), call._replace(is_conditional=True)
                    yield call

    def _find_block_kind(self, at: int) -> int:
        before = self._text(at - 1)
        opener = self.openers.get(at - 1, -1)
        if before == "try":
            return _TRY
        if before == "=>" or "function" in (self._text(opener - 1), self._text(opener - 2)):
            return _FUNCTION
        return _LOOP if before == "do" or self._text(opener - 1) in ("for", "while") else 0

    def list_exit_code_marks(self) -> Iterator[str]:
        """The literal texts before an exit code in templates that no branch decides; the output itself may look like them."""
        for _ in self.read():
            pass
        for at, token in enumerate(self.tokens):
            inner = [each.text for each in self.tokens[at + 2 : at + 6]]
            is_code = inner[:1] and inner[1:4] in ([".", "exit_code", "}"], ["?.", "exit_code", "}"])
            if at in self.conditional_texts or token.kind != "template":
                continue
            if is_code and (mark := unescape(token.text)[-20:]).strip():
                yield mark

    def prints_in_order(self) -> bool:
        declared: dict[str, int] = {}
        printed: list[int] = []
        end = 0
        """The end of the printed text."""
        for at, token in enumerate(self.tokens):
            if token.text in _DECLARATIONS:
                for each in range(at + 1, max(at + 2, min(self.closers.get(at + 1, 0), at + 50))):
                    declared.setdefault(self._text(each), each)
            elif token.text == "text" and self._text(at + 1) == "(":
                end = self.closers.get(at + 1, at)
            elif (
                at < end and self._kind(at) == "name" and self._text(at - 1) != "." and token.text in declared
            ):
                printed.append(declared[token.text])
        return printed == sorted(printed)

    def prints_whole_results(self) -> bool:
        for at, token in enumerate(self.tokens):
            if token.kind != "name" or token.text not in ("text", "stringify"):
                continue
            inner = self.tokens[at + 2 : min(self.closers.get(at + 1, 0), at + 50)]
            names = {each.text for each in inner if each.kind == "name"}
            if token.text == "stringify" or self._text(at + 1) != "(" or (names and "output" not in names):
                return True
        return False

    def _text(self, at: int) -> str:
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def _is_changed(self, at: int) -> bool:
        """Whether a name gets another value than that of its declaration."""
        before, after = self._text(at - 1), self._text(at + 1)
        if self._kind(at) != "name" or before in (".", "?."):
            return False
        if after in _ASSIGNMENTS:
            return before not in _DECLARATIONS
        if after == "[":
            return self._text(self.closers.get(at + 1, -1) + 1) in _ASSIGNMENTS
        follows = self._text(at + 2)
        if after == ".":
            return follows in _CHANGES or self._text(at + 3) in _ASSIGNMENTS
        is_step = after in ("+", "-") and follows == after
        return (
            is_step or (after in ("??", "||", "&&") and follows == "=") or before == self._text(at - 2) == "+"
        )

    def _bind(self, at: int) -> None:
        """Remember a constant, or the variable of a loop; forget one that a function or a pattern declares anew."""
        name = self._text(at)
        before, after = self._text(at - 1), self._text(at + 1)
        if name in _BRACKETS:
            end = self.closers.get(at, at)
            is_parameters = "function" in (before, self._text(at - 2)) or self._text(end + 1) == "=>"
            if before in _DECLARATIONS or before == "catch" or is_parameters:
                self._forget(at, end)
            elif name == "[":
                self._bind_loop(at)
        elif self._kind(at) != "name":
            return
        elif (
            name == "for"
            and after == "("
            and self._text(at + 2) in _DECLARATIONS
            and self._text(at + 4) == "of"
        ):
            values, _ = self._evaluate(at + 5)
            self._bind_each(self._text(at + 3), values)
        elif before in _DECLARATIONS and after == "=":
            value, _ = self._evaluate(at + 2)
            self.constants[name] = _COMPUTED if name in self.constants or name in self.changed else value
        elif after == "=>":
            self._forget(at, at + 1)
        elif isinstance(self.constants.get(name), list | tuple) and after == ".":
            self._bind_parameter(at + 1, self.constants[name])

    def _forget(self, start: int, end: int) -> None:
        for at in range(start, min(end, start + 50)):
            if self._kind(at) == "name" and at not in self.loop_parameters:
                self.constants[self._text(at)] = _COMPUTED

    def _match_brackets(self) -> Iterator[tuple[int, int]]:
        """The tokens that close the brackets, by those that open them."""
        opened: list[int] = []
        for at, token in enumerate(self.tokens):
            if token.kind == "mark" and token.text in _BRACKETS:
                opened.append(at)
            elif token.kind == "mark" and opened and token.text == _BRACKETS[self._text(opened[-1])]:
                yield opened.pop(), at

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
        self.loop_parameters.add(at)
        self._bind_each(self._text(at), values)

    def _bind_each(self, name: str, values: Any) -> None:
        is_list = isinstance(values, list) and 0 < len(values) <= MAX_CALLS
        self.constants[name] = _Each(name, tuple(values)) if is_list else _COMPUTED

    def _read_call(self, at: int, is_conditional: bool) -> Iterator[ScriptCall]:
        position = self.tokens[at].position
        name, at = self._read_tool_name(at + 1)
        if self._text(at) != "(":
            yield ScriptCall(name or "tools[…]", None, position, is_conditional)
            return
        self.used.clear()
        first, _ = self._evaluate(at + 1)
        variables = [self.constants[each] for each in self.used]
        values = variables[0].values if len(variables) == 1 else (None,)
        for number, value in enumerate(values if len(variables) < 2 else ()):
            argument = first
            if variables:
                self.constants[variables[0].name] = value
                argument, _ = self._evaluate(at + 1)
            known = None if _is_computed(argument) else _drop_computed(argument)
            yield ScriptCall(
                name or "tools[…]", known, position, is_conditional or (number > 0 and self.may_stop)
            )
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
            value = value.values[0]
        self.budget -= len(str(value)) if self.budget > 0 else 0
        return value if self.budget > 0 else _COMPUTED

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
                self.budget -= len(str(argument)) * len(value)
                value = argument.join(value) if isinstance(argument, str) and self.budget > 0 else _COMPUTED
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
        return any(
            value.get(name) is _COMPUTED for name in ("cmd", "command", "input", "patch", "path", "chars")
        )
    return value is _COMPUTED


def _drop_computed(value: Any) -> Any:
    return (
        {name: each for name, each in value.items() if each is not _COMPUTED}
        if isinstance(value, Mapping)
        else value
    )


def _parse_number(text: str) -> Any:
    return int(text) if text.isdecimal() and len(text) < 16 else _COMPUTED
