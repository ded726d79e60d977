"""Programs that only run another program, such as `timeout` and `poetry run`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}


class _Wrapper(NamedTuple):
    words: tuple[str, ...]
    """The words that it starts with."""
    valued_options: frozenset[str] = frozenset()
    """Options with a separate value."""
    operand_count: int = 0
    """Number of its operands before the wrapped command."""


def _row(words: str, valued: str = "", operands: int = 0) -> _Wrapper:
    return _Wrapper(tuple(words.split()), frozenset(valued.split()), operands)


_WRAPPERS = (
    _row("env", "-u --unset -C --chdir"),
    _row("timeout", "-s --signal -k --kill-after", operands=1),
    _row("gtimeout", "-s --signal -k --kill-after", operands=1),
    _row("time", "-f --format -o --output"),
    _row("nohup"),
    _row("exec", "-a"),
    _row("command"),
    _row("builtin"),
    _row("nice", "-n --adjustment"),
    _row("ionice", "-c -n"),
    _row("stdbuf", "-i -o -e"),
    _row("setsid"),
    _row("unbuffer"),
    _row("sudo", "-u -g -E"),
    _row("xvfb-run", "-n -s -e"),
    _row("xargs", "-n -I -P -d -L -a -s -E --max-args --max-procs --delimiter"),
    _row("uv run", "--with --python -p --extra --group --project"),
    _row("uvx", "--with --python -p --from"),
    _row("uv tool run", "--with --python -p --from"),
    _row("pipx run"),
    _row("taskset", "-c", operands=1),
    _row("cross-env", operands=1),
    _row("nyc"),
    _row("c8"),
    _row("poetry run"),
    _row("pipenv run"),
    _row("pdm run"),
    _row("hatch run"),
    _row("rye run"),
    _row("conda run", "-n --name -p --prefix --cwd"),
    _row("mamba run", "-n --name -p --prefix"),
    _row("micromamba run", "-n --name -p --prefix"),
    _row("bundle exec"),
    _row("npx", "-p --package"),
    _row("pnpm exec"),
    _row("pnpm dlx"),
    _row("yarn exec"),
    _row("bunx"),
)
_WRAPPERS_BY_NAME = {
    name: tuple(w for w in _WRAPPERS if w.words[0] == name) for name in {w.words[0] for w in _WRAPPERS}
}


class UnwrappedCommand(NamedTuple):
    """A command without its wrappers."""

    argv: tuple[str, ...]
    environment: tuple[str, ...]
    """The assignments of `env`, such as `NAME=value`."""


def unwrap_command(words: Sequence[str]) -> UnwrappedCommand:
    """Remove the wrappers of a command."""
    argv = list(words)
    environment: list[str] = []
    while argv:
        name = posixpath.basename(argv[0])
        wrapper = next(
            (w for w in _WRAPPERS_BY_NAME.get(name, ()) if tuple(argv[1 : len(w.words)]) == w.words[1:]), None
        )
        if wrapper is None or (wrapper.words == ("command",) and argv[1:2] in (["-v"], ["-V"])):
            break
        rest = argv[len(wrapper.words) :]
        while rest and rest[0].startswith("-") and len(rest[0]) > 1:
            option = rest.pop(0)
            if option in wrapper.valued_options and rest:
                rest.pop(0)
            if option == "--":
                break
        rest = rest[wrapper.operand_count :]
        while wrapper.words == ("env",) and rest and _ASSIGNMENT.match(rest[0]):
            environment.append(rest.pop(0))
        if not rest:
            break
        argv = rest
    return UnwrappedCommand(tuple(argv), tuple(environment))


def find_inline_script(argv: Sequence[str], stdin: str | None) -> str | None:
    """The shell text that `bash -c TEXT`, `eval TEXT` or `bash <<EOF` runs; None for other commands."""
    name = posixpath.basename(argv[0])
    if name == "eval":
        return " ".join(argv[1:])
    if name not in _SHELLS:
        return None
    words = list(argv[1:])
    prefix = ""
    while words and words[0][:1] in "-+" and len(words[0]) > 1:
        flag = words.pop(0)
        if flag.startswith("--"):
            continue
        if flag.endswith("o") and words:
            prefix += f"set -o {words.pop(0)}\n"
        if "e" in flag:
            prefix += "set -e\n"
        if "c" in flag:
            return prefix + words[0] if words else None
    no_script = not words or words == ["-"]
    return prefix + stdin if no_script and stdin is not None else None
