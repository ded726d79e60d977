"""Control group hierarchies, and the kernel's freezer, which stops all processes of a group."""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.interface import SandboxUnavailableError

CONTROLLERS = ("freezer", "memory", "pids")
GROUP_NAME = re.compile(r"takeover-(\d+-\d+-\d+)-[0-9a-f]+")
"""Of a group: PID namespace, id and start of the process that made it, and a token."""
_UNIFIED = frozenset[str]()
"""Version 2 names no controllers in /proc/PID/cgroup."""


class Position(NamedTuple):
    """The group of a process in one mounted hierarchy."""

    controllers: frozenset[str]
    """Empty for version 2."""
    directory: Path
    top: Path
    """The uppermost group that this mount shows."""


def list_positions(pid: int | None = None) -> list[Position]:
    """The groups of a process, this one by default, in every hierarchy that is mounted here and shows it."""
    text = Path(f"/proc/{pid or 'self'}/cgroup").read_text()
    paths = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        paths[frozenset(names.split(",")) - {""}] = path
    found: dict[frozenset[str], Position] = {}
    for root, point, options in _list_mounts():
        for controllers, path in paths.items():
            if controllers in found or (options is None) != (controllers == _UNIFIED):
                continue
            below = posixpath.relpath(path, root)
            # What lies above the root of a control group namespace has no path that could be compared.
            if not controllers <= (options or _UNIFIED) or ".." in f"{root}/{path}/{below}".split("/"):
                continue
            directory = Path(point) / below
            if directory.is_dir():
                found[controllers] = Position(controllers, directory, Path(point))
    return list(found.values())


@functools.lru_cache(maxsize=1)
def find_parent_groups(pid: int) -> dict[str, Path]:
    """The groups below which this process can make groups, by what these can do."""
    found: dict[str, Path] = {}
    mine = list_positions()
    for controller in CONTROLLERS:
        for position in mine:
            if controller in position.controllers and controller in _probe_controllers(position.directory):
                found[controller] = position.directory
    missing = [controller for controller in CONTROLLERS if controller not in found]
    unified = [position for position in mine if position.controllers == _UNIFIED]
    if missing and unified:
        for controller, directory in _find_unified_parents(unified[0]).items():
            found.setdefault(controller, directory)
    return found


def _find_unified_parents(own_position: Position) -> dict[str, Path]:
    """The same for version 2, in which a group that holds processes cannot have child groups with limits."""
    fallback: dict[str, Path] = {}
    for directory in _list_parent_candidates(own_position):
        # What other processes get does not change: their groups keep no limit unless somebody sets one.
        try_write_control_file(directory / "cgroup.subtree_control", "+memory +pids")
        able = _probe_controllers(directory)
        if {"memory", "pids"} <= able:
            return dict.fromkeys(able, directory)
        fallback = fallback or dict.fromkeys(able, directory)
    return fallback


def _list_parent_candidates(own_position: Position) -> list[Path]:
    """Beside this process's own group, at the top, or below the own one; a memory limit is not left behind."""
    found, left = [], own_position.directory
    while left != own_position.top and not _has_memory_limit(left):
        left = left.parent
        if left in (own_position.directory.parent, own_position.top):
            found.append(left)
    return [*found, own_position.directory]


def _has_memory_limit(directory: Path) -> bool:
    with contextlib.suppress(OSError):
        return (directory / "memory.max").read_text().strip() != "max"
    return False


def _probe_controllers(parent: Path) -> set[str]:
    """Which controllers a group below `parent` has; none if it cannot be made."""
    directory = parent / make_group_name()
    try:
        directory.mkdir()
    except OSError:
        return set()
    try:
        files = {
            "freezer": ("freezer.state", "cgroup.freeze"),
            "memory": ("memory.limit_in_bytes", "memory.max"),
            "pids": ("pids.max",),
        }
        return {name for name, listed in files.items() if any((directory / file).exists() for file in listed)}
    finally:
        directory.rmdir()


def describe_obstacle() -> str:
    """Why no group can be made, of the hierarchy that comes closest."""
    mine = list_positions()
    wanted = [one for one in mine if one.controllers == _UNIFIED or one.controllers.intersection(CONTROLLERS)]
    for position in wanted:
        directory = position.directory / make_group_name()
        try:
            directory.mkdir()
        except OSError as error:
            return f"{position.directory}: {error.strerror}"
        directory.rmdir()
    return "no control group file system is mounted that shows this process"


def make_group_name() -> str:
    return f"{group_name_prefix()}-{secrets.token_hex(4)}"


def group_name_prefix() -> str:
    """Names this process among all of this boot: its namespace, id and start."""
    return "takeover-" + ownership.current_process_identity().partition("/")[2].replace("/", "-")


def _list_mounts() -> Iterator[tuple[str, str, frozenset[str] | None]]:
    """Root, mount point and, for version 1, options of each hierarchy that is mounted here."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = (_unescape(field) for field in fields.split(" ")[3:5])
            yield root, point, frozenset(options.split(",")) if kind == "cgroup" else None


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def write_control_file(file: Path, value: object) -> None:
    """Write to a file of the kernel's, which must exist."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, str(value).encode())
    except OSError as error:
        error.filename = str(file)
        raise
    finally:
        os.close(descriptor)


def try_write_control_file(file: Path, value: object) -> bool:
    try:
        write_control_file(file, value)
    except OSError:
        return False
    return True


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_NAMED, _MAX_COMMAND_LINE_CHARS = 20, 100


class _Process(NamedTuple):
    parent: int
    start_tick: int


class EarlierProcesses(NamedTuple):
    """What ran on this host at one moment."""

    pids: frozenset[int]
    tick: int
    """The moment, in clock ticks since the boot: a process that began later only has the id of an earlier one."""

    def select(self, pids: Iterable[int]) -> set[int]:
        """Return those of these processes that ran at that moment, and their descendants among them."""
        found = {pid: process for pid in pids if (process := _read_process(pid)) is not None}
        children = defaultdict[int, list[int]](list)
        for pid, process in found.items():
            children[process.parent].append(pid)
        waiting = [
            pid for pid, process in found.items() if pid in self.pids and process.start_tick <= self.tick
        ]
        selected = set[int]()
        while waiting:
            pid = waiting.pop()
            if pid not in selected:
                selected.add(pid)
                waiting += children[pid]
        return selected

    def filter(self, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
        """Like `select`, of processes that `psutil` knows."""
        listed = list(processes)
        selected = self.select(process.pid for process in listed)
        return [process for process in listed if process.pid in selected]


NO_PROCESSES = EarlierProcesses(frozenset(), 0)


def record_processes() -> EarlierProcesses:
    """Record what runs on this host now; takes 0.1 ms for 200 processes."""
    tick = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S)
    return EarlierProcesses(frozenset(psutil.pids()), tick)


def describe_processes(pids: Collection[int]) -> tuple[str, ...]:
    """Return command lines with the process ids that the sandbox shows, at most 20."""
    found = [text for pid in sorted(pids) if (text := _describe_process(pid))]
    more = len(found) - _MAX_NAMED
    return (*found[:_MAX_NAMED], *([f"{more} more"] if more > 0 else []))


def innermost_pid(pid: int) -> int | None:
    """Return a process's id in its own namespace; None if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None


def _describe_process(pid: int) -> str:
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/cmdline").open("rb") as file:
        line = (
            file.read(4 * _MAX_COMMAND_LINE_CHARS).rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        )
        shown = "".join(char if char.isprintable() else "?" for char in line)
        clipped = shown if len(shown) <= _MAX_COMMAND_LINE_CHARS else f"{shown[:_MAX_COMMAND_LINE_CHARS]}…"
        named = clipped or _read_name(pid)
        return f"{named} (pid {innermost_pid(pid)})" if named else ""
    return ""


def _read_name(pid: int) -> str:
    """Return the name of a process without a command line, as during `exec`; empty if it has ended."""
    name, _, state = Path(f"/proc/{pid}/stat").read_bytes().partition(b"(")[2].rpartition(b")")
    shown = "".join(char if char.isprintable() else "?" for char in name.decode(errors="replace"))
    return "" if state.split()[:1] in ([b"Z"], [b"X"]) else f"[{shown}]"


def _read_process(pid: int) -> _Process | None:
    """Read a process's parent and start; None if it has ended."""
    with contextlib.suppress(OSError):
        # The name before the last parenthesis can contain anything.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _Process(int(fields[1]), int(fields[19]))
    return None


TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.01


def find_container_group(container: str, pid: int) -> Path | None:
    """The container's own control group; None if this process cannot freeze it.

    The daemon's own pause takes as long as the tar of a small layer.
    """
    with contextlib.suppress(OSError):
        for position in list_positions(pid):
            directory = position.directory
            # Otherwise this is not the container's group, or not its process.
            if container in directory.name and can_pause(directory):
                return directory
    return None


def list_container_processes(container: str, pid: int) -> set[int]:
    """All processes of a container, as this host numbers them; empty if they cannot be listed."""
    with contextlib.suppress(OSError):
        for position in list_positions(pid):
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
        write_control_file(directory / "freezer.state", "FROZEN" if is_paused else "THAWED")
        return is_paused and (directory / "freezer.state").read_text() == "FROZEN\n"
    write_control_file(directory / "cgroup.freeze", int(is_paused))
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
