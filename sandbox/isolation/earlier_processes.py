"""The processes that ran before a command began: its time-out spares them."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

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
