"""Every function that takes a text of an agent is linear and needs no recursion, whatever the text.

A function joins by itself: all functions of the packages below whose arguments can be made from a text are called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple

import pytest

from langgraph_takeover.handoff.points.detectors import list_points
from langgraph_takeover.handoff.readers import parse_trace
from tests.random_examples import draw
from tests.test_layers import MODULES, PACKAGE, ROOT
from tests.test_patterns import _UNITS as _TEXTS
from tests.test_patterns import measure_call

_PURE = (
    "handoff/text", "handoff/notes", "handoff/trace", "sandbox/repository.py", "sandbox/shell_state.py",
    "handoff/shell/windows.py", "handoff/agents/codex_script_calls.py", "handoff/agents/codex_script_results.py",
)  # fmt: skip
_UNITS = (
    *_TEXTS, "a && ", "a | ", "a || b; ", "a & ", "$((", "((", "{ ", "`a ", "${", "if a; then ", "a() { b; }; ", "sudo ",
    "python ", "coverage run ", "python -m coverage run ", "env a=1 ", "env ", "cd a; ", "bash -c ", "eval ", 'bash -c "',
    "<<'a'\n", "cat <<a\na\n", "> a ", "2>&1 ", "a=1 ", "a=( ", "-v ", "while a; do ", "case a in ", "[[ a ", "! ",
    "<think>", "</think>", "<output>", "<editor>", "<shell>", "<function=a>", "<parameter=a>", "```bash\na\n", "~~~\n",
    "@@ -1 +1 @@\n", "diff --git a/a b/a\n", "+a\n", "*** Update File: a\n", "rename from a\n", '{"a":', "[", '{"a": "', "e1, ",
    "(e1)", "a::", "test_a ", "Expected: 1\n", "Got: 1\n", "a:1:1: ", "declare -- a=", "declare -a a=(", "$'", "# a\n",
    "> ", "* ", "| a ", "OK\n", "1 passed in 1s\n", "ERROR: a\n", "1 runs, ", "s/a/b/;", "$", "sed -i s/a/b/ a; ",
    "$a='b'; ", "$a=\"$a$a\"; ", "@'\n", "(Get-Content a) ", "% { ", "| Set-Content a ", "a\\", "Set-Content a 'b'; ",
)  # fmt: skip
_ARGUMENTS: dict[str, Callable[[str], Any]] = {
    "str": lambda text: text,
    "str | None": lambda text: text,
    "bytes": lambda text: text.encode("utf-8", "surrogatepass"),
    "WindowsShell": lambda text: "powershell",
    "int": lambda text: 0,
    "int | None": lambda text: 0,
    "bool": lambda text: False,
    "Sequence[str]": lambda text: tuple(text.split(" ")),
    "tuple[str, ...]": lambda text: tuple(text.split(" ")),
    "list[str]": lambda text: text.split(" "),
    "Iterable[str]": lambda text: ("a",),
    "Collection[str]": lambda text: (),
}
_OF_TABLES = {
    "_build_alternatives", "_allow_separators", "lookalike_pattern", "_any_pattern", "_row", "_compile", "match_lines",
    "compile_pattern", "_find_mentioned", "_build_mention_pattern", "escape_char",
}  # fmt: skip
"""Functions that build a pattern of a text in a table, or of a path; and one of a single character."""
_SIZES = (2_000, 16_000)
"""Numbers of characters; each is compared with eight times as many."""
_MAX_GROWTH, _MIN_S, _LIMIT_S = 16, 0.015, 4.0
"""A linear function takes 8 times as long for 8 times the text, a quadratic one 64 times."""


class TextFunction(NamedTuple):
    name: str
    call: Callable[[str], object]


def find_functions() -> Iterator[TextFunction]:
    for path in MODULES:
        if not str(path.relative_to(ROOT)).startswith(_PURE):
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = import_module(f"{PACKAGE}.{name}")
        for key, value in vars(module).items():
            function = inspect.unwrap(value) if callable(value) else value
            if not isinstance(function, FunctionType) or function.__module__ != module.__name__:
                continue
            required = [
                each
                for each in inspect.signature(function).parameters.values()
                if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
            ]
            if (
                key not in _OF_TABLES
                and any(each.annotation in ("str", "bytes", "Sequence[str]") for each in required)
                and all(each.annotation in _ARGUMENTS for each in required)
            ):
                yield TextFunction(f"{name}.{key}", _make_call(function, required))


def _make_call(function: FunctionType, required: list[inspect.Parameter]) -> Callable[[str], object]:
    def call(text: str) -> object:
        arguments = {each.name: _ARGUMENTS[each.annotation](text) for each in required}
        positional = [arguments.pop(each.name) for each in required if each.kind is not each.KEYWORD_ONLY]
        found = function(*positional, **arguments)
        return list(found) if isinstance(found, Iterator) else found

    return call


def measure(call: Callable[[str], object], text: str, limit_s: float) -> float:
    """The processor time of a call; at least the limit if it takes longer. An error of the input is an answer, too."""

    def run() -> None:
        with suppress(OSError, ValueError, LookupError, AssertionError):
            call(text)

    return measure_call(run, limit_s)


def build_text(unit: str, chars: int) -> str:
    return unit * (chars // len(unit)) + "!"


def find_fault(function: TextFunction, unit: str) -> str | None:
    """What is wrong with a function for a repeated piece of text: more than linear, or too deep."""
    try:
        for chars in _SIZES:
            short, long = (
                min(measure(function.call, build_text(unit, length), _LIMIT_S) for _ in range(2))
                for length in (chars, 8 * chars)
            )
            if long < _MIN_S or long < min(_MAX_GROWTH * short, _LIMIT_S):
                return None
    except RecursionError:
        return f"{function.name}: recursion for {unit!r} * n"
    return (
        f"{function.name}: {short:.2f} s for {chars} characters, {long:.2f} s for {8 * chars} of {unit!r} * n"
    )


def detect(command: str, output: str, thought: str = "") -> object:
    """The handoff points of a recorded run with this command and this output."""
    steps = (
        ("ls /testbed", 0, "a.py"),
        ("sed -i s/a/b/ a.py", 0, ""),
        (command, 1, output),
        ("pytest", 1, output),
    )
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "t"}]
    for line, code, text in steps:
        messages += [
            {"role": "assistant", "content": f"{thought}```bash\n{line}\n```"},
            {"role": "user", "content": f"<returncode>{code}</returncode>\n<output>\n{text}</output>"},
        ]
    trace = parse_trace({"trajectory_format": "mini-swe-agent-1", "messages": messages})
    return list_points(trace.events, trace.base_directories, trace.workspace)


RECORDINGS: dict[str, Callable[[str], object]] = {
    "tests": lambda text: detect("pytest -q", text),
    "JavaScript": lambda text: detect("npx vitest run", text),
    "script": lambda text: detect("python repro.py", text),
    "command": lambda text: detect(text, "x"),
    "here-document": lambda text: detect(f"cat <<'EOF' > b.py\n{text}\nEOF\n", "x"),
    "Python": lambda text: detect(f"python - <<'EOF'\n{text}\nEOF\n", text),
    "inline Python": lambda text: detect(f"python -c \"open('a.py','w').write('a')\n{text}\"", text),
    "sed": lambda text: detect(f"sed -i 's/{text}/b/' a.py", text),
    "cat": lambda text: detect("cat a.py", text),
    "grep": lambda text: detect("grep -n a a.py", text),
    "patch": lambda text: detect(
        f"git apply <<'EOF'\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n{text}\nEOF", text
    ),
    "thought": lambda text: detect("ls", "x", text),
}


def test_blank_lines_are_read_as_fast_as_others() -> None:
    for name in ("tests", "JavaScript", "script"):
        assert measure(RECORDINGS[name], "\n" * 200_000, 60.0) < 20.0  # it was minutes


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RECORDINGS)
def test_detection_is_linear(name: str) -> None:
    function = TextFunction(f"detection in {name}", RECORDINGS[name])
    faults = [fault for unit in _UNITS if (fault := find_fault(function, unit))]
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_text_function_is_linear() -> None:
    functions = list(find_functions())
    assert len(functions) > 50
    faults = [
        fault
        for function in draw(functions, len(functions) // 2)
        for unit in _UNITS[::4]
        if (fault := find_fault(function, unit))
    ]
    assert not faults, "\n".join(faults)
