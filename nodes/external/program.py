"""The program of an external agent on this host: found on PATH, checked, and mounted read-only into sandboxes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from langgraph_takeover.sandbox.interface import Frozen, ProgramMount, TakeoverError

if TYPE_CHECKING:
    from langgraph_takeover.handoff.agents.adapter import AgentAdapter

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_TIMEOUT_S = 10.0


class AgentProgramError(TakeoverError, LookupError):
    """The program of an external agent is missing or cannot be used."""

    def __str__(self) -> str:
        return str(self.args[0])


class AgentProgram(Frozen):
    """The program of an external agent: its mounts, its command line inside, and its version."""

    mounts: tuple[ProgramMount, ...]
    argv: tuple[str, ...]
    version: str


def find_program(adapter: AgentAdapter, path: Path | None = None) -> AgentProgram:
    """Return the program of an agent; `path` is its command, by default the one on PATH. Raises AgentProgramError."""
    wanted = adapter.program
    command = path or shutil.which(wanted.executable)
    if command is None:
        raise AgentProgramError(f"{adapter.name}: {wanted.executable} is not on PATH (install it)")
    resolved = Path(command).resolve()
    package = next((each for each in resolved.parents if each.name == "node_modules"), resolved.parent)
    found = [
        (directory, each.file)
        for each in wanted.packaged
        if each.directory
        for directory in sorted(package.glob(each.directory))
    ]
    root, file = found[0] if found else (resolved.parent, resolved.name)
    program = root / file
    try:
        done = subprocess.run(
            [program, "--version"], env={}, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AgentProgramError(f"{program}: cannot be run: {error}") from error
    version = _VERSION.search(done.stdout)
    inside = f"/opt/takeover/{adapter.name}"
    return AgentProgram(
        mounts=(ProgramMount(directory=root, inside=inside),),
        argv=(f"{inside}/{file}",),
        version=version[0] if version else "",
    )
