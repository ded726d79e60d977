"""A container's processes held still for a moment, by the kernel where this host lets us, else by the daemon."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from sandbox.daemon import answering, client
from sandbox.machine import SandboxUnavailable

_CGROUPS = Path("/sys/fs/cgroup")
_LONGEST_S = 10.0


@contextlib.contextmanager
def paused(container: str, pid: int) -> Iterator[None]:
    """Hold still all that runs in a container, whose first process is `pid`."""
    switch = _switch(container, pid)
    if switch is None:
        with answering("docker pause"):
            client().api.pause(container)
        try:
            yield
        finally:
            with answering("docker unpause"):
                client().api.unpause(container)
        return
    place, on, off = switch
    try:
        place.write_text(on)
        _await_frozen(place)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # removed behind our back
            place.write_text(off)


def _switch(container: str, pid: int) -> tuple[Path, str, str] | None:
    """The file that freezes the control group, and what to write to it; None where we cannot write it.

    The daemon's own pause takes as long as the tar of a small layer.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if container not in path:
                continue  # not this container's own group, or not its process
            if controllers == "freezer":
                place, words = _CGROUPS / f"freezer{path}/freezer.state", ("FROZEN", "THAWED")
            elif not controllers:
                place, words = _CGROUPS / f"{path.lstrip('/')}/cgroup.freeze", ("1", "0")
            else:
                continue
            with place.open("r+"):
                return place, *words
    return None


def _await_frozen(place: Path) -> None:
    deadline = time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline:
        if place.name == "freezer.state":
            if place.read_text().strip() == "FROZEN":
                return
        elif "frozen 1" in place.with_name("cgroup.events").read_text():
            return
        time.sleep(0.0005)
    raise SandboxUnavailable("the container's processes could not be held still")
