"""Commands that a Python program launches, as far as its text spells them out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from langgraph_takeover.handoff.shell.command_parser import parse_command
from langgraph_takeover.handoff.shell.commands import SimpleCommand

LAUNCHERS = re.compile(r"\b(?:subprocess|os\.(?:system|popen))\b")
_LAUNCH_FUNCTIONS = {
    "run",
    "call",
    "check_call",
    "check_output",
    "Popen",
    "getoutput",
    "getstatusoutput",
    "system",
    "popen",
}
_MAX_CHARS = 100_000


@lru_cache(maxsize=64)
def list_launched_commands(text: str) -> tuple[SimpleCommand, ...]:
    """Commands launched with `subprocess` or `os.system`; the exit code of the program says nothing about them."""
    if LAUNCHERS.search(text) is None or len(text) > _MAX_CHARS:
        return ()
    try:
        tree = ast.parse(text)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(
        command._replace(exit_code_is_own=False, success_is_own=False)
        for call in calls
        if _function_name(call.func) in _LAUNCH_FUNCTIONS and call.args
        for command in _parse_argument(call.args[0])
    )


def _parse_argument(argument: ast.expr) -> Iterator[SimpleCommand]:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield from parse_command(argument.value)
    elif isinstance(argument, ast.List | ast.Tuple):
        words = [_parse_word(item) for item in argument.elts]
        if words and None not in words:
            yield SimpleCommand(argv=tuple(word for word in words if word is not None))


def _parse_word(item: ast.expr) -> str | None:
    if isinstance(item, ast.Constant) and isinstance(item.value, str):
        return item.value
    return "python" if isinstance(item, ast.Attribute) and item.attr == "executable" else None


def _function_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
