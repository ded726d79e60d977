"""Every regular expression of the product is linear: the cost of a text grows with its length, whoever wrote it.

A pattern joins by itself: the constants of all modules are walked, and the calls inside functions are read from their
syntax trees. The texts that could make a pattern slow are derived from the pattern: what it repeats, again and again,
after what must precede it.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest
import regex

from langgraph_takeover.evals.models import replay
from langgraph_takeover.handoff.points import edits, outcomes
from langgraph_takeover.handoff.shell import runner_summaries, runners
from tests.test_layers import MODULES, PACKAGE, ROOT

from .random_examples import draw

_Pattern = re.Pattern[Any] | regex.Pattern[Any]
_CALLS = {
    "compile": 1, "search": 2, "match": 2, "fullmatch": 2, "findall": 2, "finditer": 2, "sub": 4, "subn": 4, "split": 3,
}  # fmt: skip
"""Functions of `re`, each with the position of its flags."""
_ANCHORED = {"match", "fullmatch"}
_LINE = "line of a summary"
CUT_TO = {
    _LINE: runner_summaries._MAX_LINE_CHARS,
    "handoff.shell.runners:_ANY_RUNNER": runners._MAX_CHARS,
    "handoff.points.edits:_BACKUP_NAME": edits._MAX_NAME_CHARS,
    "handoff.points.outcomes:_TOOL_FOOTER": outcomes._MAX_FOOTER_CHARS,
    "evals.models.replay:_INSTANCE_ID": replay._MAX_ID_CHARS,
}
"""Modules and patterns whose texts are cut to that many characters before they are searched."""
ONLY_MATCHED = {"handoff.shell.program_table": _ANCHORED}
"""Modules whose patterns are fields of a table, with the methods that are called on them."""
NOT_LISTED = {
    (
        "handoff.recordings.in_place_edits",
        "compile_pattern",
    ): "an agent's own sed pattern, limited where it is compiled",
    ("handoff.ledger.database", "_describe_cause"): "messages of a database",
    (
        "handoff.shell.runner_summaries",
        "_compile",
    ): "the fields of each LineSummary, and what `matches_any` gets",
}
"""Functions that compile what neither the constants nor the syntax tree show."""
_FULL_CHARS, _FULL_S = 1_000_000, 5.0
_STEPS = ((2_000, 0.001), (20_000, 0.03), (_FULL_CHARS, _FULL_S))
"""Numbers of characters and processor time: a text that is slow in one step is tried in the next.

A quadratic pattern takes minutes for a million characters.
"""

_LINE_S, _CUT_S = 0.001, 0.1
"""Processor time for a line, of which a text has thousands, and for a text that is cut."""


class Use(NamedTuple):
    """A pattern, where it comes from, and the methods that are called on it."""

    place: str
    pattern: _Pattern
    methods: frozenset[str]


class _Unknown(str):
    """Stands for a local variable in a pattern: a word, a list of words, or a function that returns them."""

    def __call__(self, *_: object, **__: object) -> _Unknown:
        return self

    def __getattr__(self, name: str) -> _Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, _Unknown("ab"))


def find_uses() -> Iterator[Use]:
    """Every pattern of the product."""
    sources = {path: path.read_text(encoding="utf-8") for path in MODULES if path.name != "__main__.py"}
    trees = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(source)
        for path, source in sources.items()
        if re.search(r"^ *(?:import|from) (?:re|regex)\b", source, re.M)
    }
    modules = {}
    for name in trees:
        try:
            modules[name] = import_module(f"{PACKAGE}.{name}")
        except ModuleNotFoundError as error:  # an agent's own environment has it
            if error.name not in ("deepagents", "minisweagent"):
                raise
    methods = _find_methods()
    for name, called in ONLY_MATCHED.items():
        methods |= {pattern: called for _, pattern in _list_patterns(name, modules[name])}
    for name, module in modules.items():
        for place, pattern in _list_patterns(name, module):
            default = "match" if place.startswith(_LINE) else "search"
            yield Use(place, pattern, frozenset(methods.get(pattern, {default})))
        yield from _list_inline(name, module, trees[name])


def _find_methods() -> dict[_Pattern, set[str]]:
    """The methods that any module calls on a pattern by its name."""
    found: dict[_Pattern, set[str]] = {}
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        if not re.search(r"\.(?:search|match|fullmatch|sub|subn|split|findall|finditer)\(", source):
            continue
        module = sys.modules.get(
            f"{PACKAGE}." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        )
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and node.attr in _CALLS:
                owner, value = module, node.value
                if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
                    owner = getattr(module, value.value.id, None)
                name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
                pattern = getattr(owner, name, None)
                if isinstance(pattern, re.Pattern | regex.Pattern):
                    found.setdefault(pattern, set()).add(node.attr)
    return found


def _list_patterns(name: str, module: ModuleType) -> Iterator[tuple[str, _Pattern]]:
    """The patterns in a module's constants, tables, classes and closures."""
    waiting = [(f"{name}:{key}", value) for key, value in vars(module).items()]
    seen = set()
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, re.Pattern | regex.Pattern):
            yield place, value
        elif isinstance(value, runner_summaries.LineSummary):
            yield from ((f"{_LINE}:{place}", re.compile(text)) for text in dataclasses.astuple(value) if text)
        elif isinstance(value, tuple | list | set | frozenset):
            waiting += [(place, each) for each in value]
        elif isinstance(value, dict):
            waiting += [(place, each) for item in value.items() for each in item]
        elif isinstance(value, FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            waiting += [(place, each) for each in (*cells, *(value.__defaults__ or ()))]
        elif isinstance(value, type) and value.__module__ == module.__name__:
            waiting += [(place, each) for each in vars(value).values()]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _list_inline(name: str, module: ModuleType, tree: ast.Module) -> Iterator[Use]:
    """The patterns that functions compile or use without a name."""
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for each in functions for node in ast.walk(each)}
    # What a function builds for a constant is found there.
    builders = {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and id(each) not in inside}
    for function in functions:
        assigned = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call in ast.walk(function):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == "matches_any"
            ):
                if not isinstance(call.args[0], ast.Attribute):  # a field of a LineSummary is in a table
                    text = eval(compile(ast.Expression(call.args[0]), name, "eval"), vars(module))
                    yield Use(f"{_LINE}:{name}:{call.lineno}", re.compile(text), frozenset({"match"}))
                continue
            if not (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and isinstance(call.func.value, ast.Name)
                and call.func.value.id in ("re", "regex")
                and call.func.attr in _CALLS
            ):
                continue
            if (name, function.name) in NOT_LISTED or (
                call.func.attr == "compile" and function.name in builders
            ):
                continue
            position = _CALLS[call.func.attr]
            flags = [each.value for each in call.keywords if each.arg == "flags"] + call.args[
                position : position + 1
            ]
            text: ast.expr = call.args[0]
            while isinstance(text, ast.Name) and text.id not in vars(module):
                assert text.id in assigned, (
                    f"{name}:{call.lineno}: compile the patterns of a table where the table stands, so that they are tested"
                )
                text = assigned[text.id]
            names = _Names(vars(module))
            value = eval(compile(ast.Expression(text), name, "eval"), names)
            if isinstance(value, re.Pattern | regex.Pattern):
                continue
            flag = eval(compile(ast.Expression(flags[0]), name, "eval"), names) if flags else 0
            pattern = (re if call.func.value.id == "re" else regex).compile(value, flag)
            method = "search" if call.func.attr == "compile" else call.func.attr
            yield Use(f"{name}:{call.lineno}", pattern, frozenset({method}))


_REPEATS = {ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT}
_CHARS = 'a1 \nA-./_:\tx("=\\é~'
_COMMON = ("\n", " ", "a", "1", "a ", "a.", "a\n", "/", ":")
_UNITS = (
    *_COMMON, "\t", "\r\n", '"', "'", "\\", "`", "(", "[", "{", "-", "=", "#", "/", ".", "<", "\r", ":", "@",
    "A", "_", "a ", "a\n", " \n", "a.", "a/", "1 ", "\x1b[", "'a'", "$(", "<<a\n", "é", "```\n", "--- a\n+++ b\n",
    "ImportError: require the ", "FAILED ", "Error: ", "Tests: 1 ",
)  # fmt: skip


class Witness:
    """Texts that match the parts of a pattern; `variant` chooses among alternatives."""

    def __init__(self, variant: int) -> None:
        self.variant = variant
        self._groups: dict[int, str] = {}

    def match(self, items: Iterable[Any]) -> str:
        return "".join(self._match_item(code, value) for code, value in items)

    def _match_item(self, code: Any, value: Any) -> str:
        match code:
            case ops.LITERAL:
                return chr(value)
            case ops.NOT_LITERAL:
                return next(char for char in _CHARS[self.variant :] if ord(char) != value)
            case ops.ANY:
                return "a -1"[self.variant % 4]
            case ops.IN:
                chars = _list_members(value)
                return chars[self.variant % len(chars)] if chars else ""
            case ops.BRANCH:
                return self.match(value[1][self.variant % len(value[1])])
            case ops.SUBPATTERN:
                self._groups[value[0]] = text = self.match(value[3])
                return text
            case ops.ATOMIC_GROUP:
                return self.match(value)
            case ops.GROUPREF:
                return self._groups.get(value, "")
            case _ if code in _REPEATS:
                least, most, body = value
                times = max(least, 1 if most and self.variant % 2 == 0 else 0)
                return "".join(self.match(body) for _ in range(min(times, 40)))
        return ""

    def find_repeats(self, items: Iterable[Any]) -> Iterator[tuple[str, str]]:
        """What is repeated without a small limit, each after what precedes it."""
        waiting: list[tuple[str, Iterable[Any]]] = [("", items)]
        while waiting:
            before, sequence = waiting.pop()
            for code, value in sequence:
                if code in _REPEATS:
                    body = self.match(value[2])
                    if value[1] >= 16 and body:
                        yield before, body
                    waiting.append((before, value[2]))
                elif code is ops.SUBPATTERN:
                    waiting.append((before, value[3]))
                elif code is ops.ATOMIC_GROUP:
                    waiting.append((before, value))
                elif code is ops.BRANCH:
                    waiting += [(before, branch) for branch in value[1]]
                elif code in (ops.ASSERT, ops.ASSERT_NOT):
                    waiting.append((before, value[1]))
                before += self._match_item(code, value)


def _list_members(items: list[Any]) -> list[str]:
    """Some characters of a class."""
    is_negated = items[0][0] is ops.NEGATE
    found = [char for char in _CHARS if any(_is_member(char, *item) for item in items) != is_negated]
    if not is_negated:
        found += [
            chr(value if code is ops.LITERAL else value[0])
            for code, value in items
            if code is not ops.CATEGORY
        ]
    return list(dict.fromkeys(found))


def _is_member(char: str, code: Any, value: Any) -> bool:
    if code is ops.LITERAL:
        return ord(char) == value
    if code is ops.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if code is ops.CATEGORY:
        kind = str(value).rpartition("_")[2]
        is_in = {"DIGIT": char.isdigit(), "SPACE": char.isspace(), "WORD": char.isalnum() or char == "_"}[
            kind
        ]
        return is_in != ("NOT" in str(value))
    return False


def list_texts(pattern: _Pattern, *, is_thorough: bool = False) -> set[tuple[str, str]]:
    """Adversarial texts: a start, and what is repeated after it."""
    found = {("", text) for text in (_UNITS if is_thorough else _COMMON)}
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    flags = pattern.flags & (re.I | re.M | re.S | re.X)
    try:
        tree = list(_parser.parse(source, flags))
    except re.error:  # a class of the package `regex`
        return found
    for variant in range(4 if is_thorough else 2):
        witness = Witness(variant)
        whole = witness.match(tree)
        found |= {("", whole), ("", whole[:-1]), ("", f"{whole[:-1]}\n")}
        for before, body in witness.find_repeats(tree):
            pieces = (body, before + body, f"{before}{body}\n", before, f"{before} ")
            found |= {(before, body), *(("", piece) for piece in pieces)}
    return {(before, body) for before, body in found if body}


def build_text(before: str, body: str, chars: int) -> str:
    return (before + body * (chars // len(body) + 1))[: chars - 2] + "\x01!"


class OverLimitError(BaseException):
    """Ends a call that takes too long; no handler of the call catches it."""


def measure_call(call: Callable[[], object], limit_s: float) -> float:
    """The processor time of a call; at least the limit if it takes longer, for it is stopped then."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OverLimitError

    signal.signal(signal.SIGVTALRM, stop)
    started = time.thread_time()
    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
            call()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except OverLimitError:
        return limit_s
    finally:
        signal.signal(signal.SIGVTALRM, signal.SIG_IGN)  # a late signal must not end the process
    return time.thread_time() - started


def measure(pattern: _Pattern, method: str, text: str, limit_s: float) -> float:
    """The processor time of a search of the whole text; at least the limit if it takes longer than that."""
    value = text if isinstance(pattern.pattern, str) else text.encode("utf-8", "surrogatepass")

    if method in _ANCHORED:
        return measure_call(lambda: getattr(pattern, method)(value), limit_s)
    return measure_call(lambda: sum(1 for _ in pattern.finditer(value)), limit_s)


def measure_steadily(pattern: _Pattern, method: str, text: str, limit_s: float) -> float:
    """The same, several times if it is slow: a host that is busy otherwise also takes processor time."""
    spent = measure(pattern, method, text, 2 * limit_s)
    for _ in range(3):
        if spent > limit_s:
            spent = min(spent, measure(pattern, method, text, 2 * limit_s))
    return spent


def find_longest_text(use: Use) -> int:
    """The number of characters that a pattern sees at most."""
    return CUT_TO.get(use.place) or CUT_TO.get(use.place.partition(":")[0], _FULL_CHARS)


def find_slow_text(use: Use, steps: Sequence[tuple[int, float]] = _STEPS) -> str | None:
    """An adversarial text for which a pattern is not linear."""
    most = find_longest_text(use)
    if most < _FULL_CHARS:
        steps = ((most, _LINE_S if use.place.startswith(_LINE) else _CUT_S),)
    for method in use.methods:
        for before, body in list_texts(use.pattern):
            for chars, limit_s in steps:
                if measure_steadily(use.pattern, method, build_text(before, body, chars), limit_s) < limit_s:
                    break
            else:
                return f"{use.place}: {use.pattern.pattern!r:.300} on {before!r:.80} + {body!r:.80} * n"
    return None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_pattern_is_linear() -> None:
    uses = {(use.pattern, use.methods): use for use in find_uses()}
    assert len(uses) > 450
    slow = [text for use in uses.values() if (text := find_slow_text(use))]
    assert not slow, "\n".join(slow)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\s+$",
        r"^\s*a",
        r"(?:a|b|ab)*c",
        r"x.*y",
        r"(\w+\.)+x",
        r"ImportError: .*(?:requires? the .*package)",
        rb"a+b+c",
    ],
)
def test_a_pattern_that_is_not_linear_is_found(pattern: str | bytes) -> None:
    assert find_slow_text(Use("test", re.compile(pattern, re.M), frozenset({"search"})), _STEPS[:2])


@pytest.mark.slow
def test_every_pattern_takes_a_million_characters() -> None:
    """The three slowest texts of each pattern in full length."""
    slow = []
    uses = [*{(use.pattern, use.methods): use for use in find_uses()}.values()]
    for use in draw(uses, len(uses) // 4):
        if find_longest_text(use) < _FULL_CHARS:
            continue
        for method in use.methods:
            texts = [
                (measure(use.pattern, method, build_text(before, body, 10_000), 1.0), before, body)
                for before, body in list_texts(use.pattern, is_thorough=True)
            ]
            for _, before, body in sorted(texts)[-3:]:
                spent = measure(use.pattern, method, build_text(before, body, _FULL_CHARS), _FULL_S)
                if spent >= _FULL_S:
                    slow.append(f"{use}: {before!r:.80} + {body!r:.80} * n")
    assert not slow, "\n".join(slow)
