"""Whose a container or an image is, in labels, and whether the process that made it still lives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

OWNER_LABEL = "takeover.owner"
HOST_LABEL = "takeover.host"
PROCESS_LABEL = "takeover.process"


def labels(owner: str) -> dict[str, str]:
    """What says that this process made something for the run `owner`."""
    return {OWNER_LABEL: owner, HOST_LABEL: socket.gethostname(), PROCESS_LABEL: _name(os.getpid())}


def is_abandoned(found: Mapping[str, str]) -> bool:
    """Whether a process of this very host made it, and is gone; False whenever that is in doubt."""
    try:
        boot, space, pid, start = found[PROCESS_LABEL].split("/")
        known = OWNER_LABEL in found and found[HOST_LABEL] == socket.gethostname()
        # Of an earlier boot nothing is known: another machine may have this one's name.
        if not known or (boot, space) != (_boot(), _space()):
            return False
        return _start(int(pid)) != start
    except (KeyError, ValueError):
        return False


def _name(pid: int) -> str:
    return f"{_boot()}/{_space()}/{pid}/{_start(pid)}"


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
