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
    argv = tuple(words)
    environment: list[str] = []
    start = 0
    while start < len(argv):
        name = posixpath.basename(argv[start])
        wrapper = next(
            (
                w
                for w in _WRAPPERS_BY_NAME.get(name, ())
                if argv[start + 1 : start + len(w.words)] == w.words[1:]
            ),
            None,
        )
        if wrapper is None or (
            wrapper.words == ("command",) and argv[start + 1 : start + 2] in (("-v",), ("-V",))
        ):
            break
        at = start + len(wrapper.words)
        while at < len(argv) and argv[at].startswith("-") and len(argv[at]) > 1:
            option = argv[at]
            at += 2 if option in wrapper.valued_options else 1
            if option == "--":
                break
        at += wrapper.operand_count
        while wrapper.words == ("env",) and at < len(argv) and _ASSIGNMENT.match(argv[at]):
            environment.append(argv[at])
            at += 1
        if at >= len(argv):
            break
        start = at
    return UnwrappedCommand(argv[start:], tuple(environment))


def find_inline_script(argv: Sequence[str], stdin: str | None) -> str | None:
    """The shell text that `bash -c TEXT`, `eval TEXT` or `bash <<EOF` runs; None for other commands."""
    name = posixpath.basename(argv[0])
    if name == "eval":
        return " ".join(argv[1:])
    if name not in _SHELLS:
        return None
    at, prefix = 1, ""
    while at < len(argv) and argv[at][:1] in "-+" and len(argv[at]) > 1:
        flag = argv[at]
        at += 1
        if flag.startswith("--"):
            continue
        if flag.endswith("o") and at < len(argv):
            prefix += f"set -o {argv[at]}\n"
            at += 1
        if "e" in flag:
            prefix += "set -e\n"
        if "c" in flag:
            return prefix + argv[at] if at < len(argv) else None
    no_script = at == len(argv) or tuple(argv[at:]) == ("-",)
    return prefix + stdin if no_script and stdin is not None else None
