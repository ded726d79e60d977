"""Bash code that gives a new shell the state of an earlier one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from langgraph_takeover.sandbox.shell.state import (
    FATAL_OPTIONS,
    FIXED_SHOPTS,
    FROM_TEXT,
    RESERVED_SIGNAL,
    RESERVED_WORDS,
    SHELL_VARIABLES,
    ShellFunction,
    ShellState,
)


def render_restore_code(state: ShellState) -> str:
    """Render code that gives a new bash this state; no code of the state runs meanwhile.

    Each line is independent, because bash skips the rest of a line after a failed assignment.
    """
    return "\n".join(_render_lines(state)).translate(FROM_TEXT)


def _render_lines(state: ShellState) -> Iterator[str]:
    quoted = _quote
    yield "\\builtin shopt -u expand_aliases"
    variables = {name: each for name, each in state.variables.items() if not SHELL_VARIABLES.fullmatch(name)}
    for name, variable in variables.items():
        # Without the attributes that make bash evaluate an assignment: they come after.
        if "n" in variable.attributes:
            continue
        array = re.sub("[^aA]", "", variable.attributes)[:1]
        if variable.elements is not None:
            # Bash reads elements behind the plain word alone, which names no function yet, and no alias; and
            # `+i` before them it takes for `-i`.
            elements = " ".join(f"[{quoted(key)}]={quoted(each)}" for key, each in variable.elements.items())
            yield f"declare -{array} {name}=({elements})"
        elif variable.value is None:
            yield f"\\builtin declare -{array or '-'} {name}"
        else:
            yield f"\\builtin declare +i -- {name}={quoted(variable.value)}"
    for letter in "ciluxt":
        having = [
            name
            for name, each in variables.items()
            if letter in each.attributes and "n" not in each.attributes
        ]
        if having:
            yield f"\\builtin declare -{letter} {' '.join(having)}"
    for name, variable in variables.items():
        if "n" in variable.attributes:
            yield f"\\builtin declare -n {name}={quoted(variable.value or '')}"
    readonly = [name for name, each in variables.items() if "r" in each.attributes]
    if readonly:
        yield f"\\builtin declare -r {' '.join(readonly)}"
    # How functions are read depends on some options.
    yield "\\builtin set +o posix +o errexit; \\builtin shopt -s extglob"
    for name, function in state.functions.items():
        yield from _render_definition(name, function)
    for name, value in state.aliases.items():
        yield f"\\builtin alias -- {quoted(f'{name}={value}')}"
    if state.umask is not None:
        yield f"\\builtin umask {state.umask}"
    for directory in (state.previous_directory, state.directory):
        if directory is not None:
            yield f"\\builtin cd -- {quoted(directory)}"
    for sign, on in (("-u", False), ("-s", True)):
        names = [name for name, each in state.shopt.items() if each == on and name not in FIXED_SHOPTS]
        # Each option for compatibility with an older bash is off at first, and unsetting it sets a variable.
        names = [name for name in names if on or not name.startswith("compat")]
        if names:
            yield f"\\builtin shopt {sign} {' '.join(names)}"
    options = {name: on for name, on in state.options.items() if name not in FATAL_OPTIONS}
    # An option that this bash lacks would hide those after it; `xtrace` and the like come last.
    for name, on in options.items():
        yield f"\\builtin set {'-' if on else '+'}o {name} || \\builtin :"
    for name in sorted(state.traps, key=lambda name: name == "DEBUG"):
        if name != RESERVED_SIGNAL:
            yield f"\\builtin trap -- {quoted(state.traps[name])} {name} || \\builtin :"


def _render_definition(name: str, function: ShellFunction) -> Iterator[str]:
    """Render the definition of a function, unless its commands would end the definition early.

    Bash decides, in subshells that parse and run nothing: it must be able to parse the commands both between braces
    and between parentheses. Commands that close either are invalid in the other.
    """
    if name in RESERVED_WORDS:
        return
    # The text is written once, because each nested quotation would be several times as long.
    yield f"__command={_quote(function.commands)}"
    trials = " && ".join(
        f"( \\builtin eval $'\\\\builtin set -n\\n__trial () {begin}\\n'\"$__command\"$'\\n{end}' )"
        for begin, end in ("{}", "()")
    )
    letters = "".join(f" && \\builtin declare -f{each} {name}" for each in function.attributes)
    yield f"{trials} && \\builtin eval $'function {name} {{\\n'\"$__command\"$'\\n}}'{letters}"
    yield "\\builtin unset -v __command"


def _quote(text: str) -> str:
    """Quote the text as one word of bash, at most twice as long."""
    if "'" not in text:
        return f"'{text}'"
    return "$'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
