"""The kernel's freezer: stop and resume all processes of a control group."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import cgroup_hierarchies

TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.01


def find_container_group(container: str, pid: int) -> Path | None:
    """The container's own control group; None if this process cannot freeze it.

    The daemon's own pause takes as long as the tar of a small layer.
    """
    with contextlib.suppress(OSError):
        for position in cgroup_hierarchies.list_positions(pid):
            directory = position.directory
            # Otherwise this is not the container's group, or not its process.
            if container in directory.name and can_pause(directory):
                return directory
    return None


def list_container_processes(container: str, pid: int) -> set[int]:
    """All processes of a container, as this host numbers them; empty if they cannot be listed."""
    with contextlib.suppress(OSError):
        for position in cgroup_hierarchies.list_positions(pid):
            if container in position.directory.name:
                return {int(each) for each in (position.directory / "cgroup.procs").read_text().split()}
    return set()


@contextlib.contextmanager
def pause_group(directory: Path) -> Iterator[None]:
    """Stop all processes of one group, verified. Raises SandboxUnavailableError after 10 s at most."""
    try:
        stop_processes(directory, TIMEOUT_S)
        yield
    finally:
        run_to_completion(lambda: resume_processes(directory))


def can_pause(directory: Path) -> bool:
    """Whether this process may stop the processes of the group at `directory`."""
    return any(os.access(directory / name, os.W_OK) for name in ("freezer.state", "cgroup.freeze"))


def stop_processes(directory: Path, timeout_s: float) -> None:
    """Stop all processes of the group. Raises SandboxUnavailableError if they do not stop, or the group is gone."""
    try:
        _stop_processes(directory, timeout_s)
    except OSError as error:
        raise SandboxUnavailableError(
            f"the sandbox's processes cannot be stopped: {directory}: {error.strerror}"
        ) from error


def _stop_processes(directory: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    for pause in poll_intervals():
        # Written again each time, as a process that entered meanwhile can undo it on version 1.
        if _set_paused(directory, is_paused=True):
            return
        if time.monotonic() > deadline:
            raise SandboxUnavailableError(f"the sandbox's processes did not stop within {timeout_s:.0f} s")
        time.sleep(pause)


def resume_processes(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # somebody removed it
        _set_paused(directory, is_paused=False)


def _set_paused(directory: Path, *, is_paused: bool) -> bool:
    """Stop or resume one group; return whether all its processes are stopped."""
    if (directory / "freezer.state").exists():
        cgroup_hierarchies.write_control_file(
            directory / "freezer.state", "FROZEN" if is_paused else "THAWED"
        )
        return is_paused and (directory / "freezer.state").read_text() == "FROZEN\n"
    cgroup_hierarchies.write_control_file(directory / "cgroup.freeze", int(is_paused))
    return is_paused and "frozen 1" in (directory / "cgroup.events").read_text().splitlines()


def run_to_completion(finish: Callable[[], None]) -> None:
    """Run a function that must complete; repeat it if Ctrl-C interrupts it."""
    try:
        finish()
    except BaseException:
        finish()
        raise


def poll_intervals() -> Iterator[float]:
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
