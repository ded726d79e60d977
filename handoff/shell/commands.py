"""Simple commands of a shell command line."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from langgraph_takeover.handoff.shell.syntax import Connector


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
        return posixpath.basename(self.argv[0]) if self.argv else ""

    @property
    def shows_output(self) -> bool:
        """Whether its standard output is not redirected into a file."""
        return not any(r.operator in (">", ">>", "&>", "&>>", "1>", "1>>", ">|") for r in self.redirects)


def resolve_path(path: str, cwd: str | None) -> str:
    """Path of a command joined with `cwd`; absolute paths and paths with `~` are only normalized."""
    if path.startswith(("/", "~")) or cwd is None:
        return posixpath.normpath(path) if path else path
    return posixpath.normpath(posixpath.join(cwd, path))
