"""Whose a container or an image is, in labels, and whether the process that made it still lives."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sandbox import depot
from sandbox.machine import SandboxUnavailable

OWNER_LABEL = "takeover.owner"
HOST_LABEL = "takeover.host"
PROCESS_LABEL = "takeover.process"
PLACE_LABEL = "takeover.place"
"""Where this host marks which runs are alive."""
MAKING_LABEL = "takeover.making"
"""New each time. A container that a person starts from a frozen image inherits all labels, this one too."""

Maker = Literal["alive", "dead", "earlier", "unknown"]
"""The process that made something: `earlier` says that this host has started anew since, as far as names tell."""
Origin = Literal["here", "elsewhere", "unknown"]
"""`here` says that this host, with the place for marks that it uses now, would know if the run were alive."""


def labels(owner: str) -> dict[str, str]:
    """What says that this process made something for the run `owner`, which from now on counts as alive."""
    found = {
        OWNER_LABEL: owner,
        HOST_LABEL: socket.gethostname(),
        PROCESS_LABEL: this_process(),
        MAKING_LABEL: secrets.token_hex(8),
    }
    # Containers work where this host has no room for such marks; what is left then is never taken for dead.
    with contextlib.suppress(SandboxUnavailable, OSError):
        depot.hold(owner)
        found[PLACE_LABEL] = str(depot.root())
    return found


def this_process() -> str:
    """A name that no other process has, on whichever host."""
    return f"{_boot()}/{_space()}/{os.getpid()}/{_start(os.getpid())}"


def became_of(process: str) -> Maker:
    """What became of the process of that name; `earlier` may as well say that it was another host's."""
    try:
        boot, space, pid, start = process.split("/")
        if boot != _boot():
            return "earlier"
        return _state(int(pid), start) if space == _space() else "unknown"
    except (ValueError, OverflowError):
        return "unknown"


def maker(found: Mapping[str, str]) -> Maker:
    """What became of the process that made it; `unknown` whenever that is in doubt."""
    if OWNER_LABEL not in found or found.get(HOST_LABEL) != socket.gethostname():
        return "unknown"
    return became_of(found.get(PROCESS_LABEL, ""))


def origin(found: Mapping[str, str]) -> Origin:
    """Where it was made, as far as its labels tell."""
    here = {HOST_LABEL: socket.gethostname(), PLACE_LABEL: str(depot.root())}
    told = {name: found[name] for name in here if name in found}
    if any(here[name] != value for name, value in told.items()):
        return "elsewhere"
    return "here" if told == here else "unknown"


def _state(pid: int, start: str) -> Maker:
    if pid <= 0:
        return "unknown"
    if _start(pid):
        return "alive" if _start(pid) == start else "dead"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        return "unknown"  # /proc does not show us everybody's
    return "dead" if Path(f"/proc/{pid}").exists() else "unknown"  # it waits to be reaped


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _space() -> str:
    # A process id means something only within its namespace.
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _start(pid: int) -> str:
    """When the process began, in clock ticks since boot: ids come again, but not at the same time."""
    try:
        # The name, which is in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]
