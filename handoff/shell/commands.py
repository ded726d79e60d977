"""Simple commands of a shell command line."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple

from langgraph_takeover.handoff.shell.syntax import Connector
from langgraph_takeover.handoff.shell.windows import find_program_name

_MAX_PATH_CHARS = 4_096
_MAX_STACK = 20
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_DEVICE = re.compile(r"\A[\\/]{2}[?.][\\/](?:UNC(?=[\\/])|(?=[A-Za-z]:[\\/]))")
_DRIVE_DIRECTORY = re.compile("/[a-z]/")
_PRIVATE = re.compile(r"/private/(?:tmp|var)(?:/|$)")


class Redirect(NamedTuple):
    """One redirection of a simple command: `2>`, `errors.txt`."""

    operator: str
    target: str


class SimpleCommand(NamedTuple):
    """One program that a command line runs, without wrappers such as `timeout 60`."""

    argv: tuple[str, ...]
    environment: tuple[str, ...] = ()
    cwd: str | None = None
    """Its directory after `cd`, possibly relative to that of the shell; None if unchanged or unknown."""
    redirects: tuple[Redirect, ...] = ()
    stdin: str | None = None
    """The text of its here-document or here-string."""
    connector: Connector = ""
    """The operator between the previous command and this one."""
    stage: int = 0
    """Its position in its pipeline."""
    stages: int = 1
    """Number of commands in its pipeline."""
    exit_code_is_own: bool = True
    """The exit code of the line is that of this command."""
    success_is_own: bool = True
    """Exit code 0 of the line implies that this command succeeded; true of every part of `a && b`."""
    is_repeated: bool = False
    """It is inside a loop."""

    @property
    def name(self) -> str:
        return find_program_name(self.argv[0]) if self.argv else ""

    @property
    def shows_output(self) -> bool:
        """Whether its standard output is not redirected into a file."""
        return not any(r.operator in (">", ">>", "&>", "&>>", "1>", "1>>", ">|") for r in self.redirects)


class Place(NamedTuple):
    """The directory of a shell at one place of a command line."""

    path: str | None = None
    """Possibly relative to the directory before the line; None if that, or unknown."""
    is_known: bool = True
    before: tuple[Place, ...] = ()
    """The place before the last `cd`, if any; without its own history."""
    stack: tuple[Place, ...] = ()
    """The places that `pushd` saved, the last one at the end; without their history."""

    def move(self, argv: Sequence[str]) -> Place:
        """The place after `cd`, `pushd` or `popd`."""
        here = Place(self.path, self.is_known)
        operands = [word for word in argv[1:] if word == "-" or not word.startswith("-")]
        stack = self.stack
        if argv[0] == "popd":
            target = stack[-1] if stack and not operands else Place(None, False)
            return target._replace(before=(here,), stack=stack[:-1])
        if argv[0] == "pushd":
            stack = (*stack, here)[-_MAX_STACK:]
        target = Place(None, False)
        if operands[:1] == ["-"]:
            target = self.before[0] if self.before else target
        elif operands and "$" not in operands[0]:
            path = resolve_path(operands[0], self.path)
            target = Place(path) if 0 < len(path) <= _MAX_PATH_CHARS else target
        return target._replace(before=(here,), stack=stack)


def is_absolute(path: str) -> bool:
    """Whether a path of any system is absolute."""
    return path.startswith("/") or is_windows_path(path)


def is_windows_path(path: str) -> bool:
    """Whether a path is absolute on Windows, as `C:\\x`, `c:/x` or `\\\\server\\share`."""
    return path.startswith("\\\\") or _DRIVE.match(path) is not None


def is_drive(path: str) -> bool:
    """Whether a path in its normal form is below a directory with the name of a drive, as `/c/x`."""
    return _DRIVE_DIRECTORY.match(path) is not None


def resolve_path(path: str, cwd: str | None) -> str:
    """Path of a command joined with `cwd`; absolute paths and paths with `~` are only normalized."""
    if not path:
        return path
    if cwd is None or path.startswith("~") or is_absolute(path):
        return normalize_path(path)
    return normalize_path(posixpath.join(cwd, path))


def normalize_path(path: str) -> str:
    """The shortest form of a path. `C:\\x` becomes `/c/x`, as shells on Windows name it, and `/private/tmp` of macOS `/tmp`."""
    path = _DEVICE.sub("", path)
    if _DRIVE.match(path):
        path = f"/{path[0].lower()}/{path[3:]}".replace("\\", "/")
    elif path.startswith("\\"):
        path = path.replace("\\", "/")
    path = posixpath.normpath(path)
    path = path[1:] if path.startswith("//") else path
    return path.removeprefix("/private") if _PRIVATE.match(path) else path


def list_spellings(directory: str) -> tuple[str, ...]:
    """The absolute directory, and its other name on macOS, where `/tmp` and `/var` are links."""
    other = f"/private{directory}"
    return (directory, other) if _PRIVATE.match(other) else (directory,)
