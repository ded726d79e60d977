"""How much disk and memory a machine uses while a command runs in it, and what is done when it is too much."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_LOOK_S = 1.0
_COUNT_S = 0.2
_DUTY = 20
"""A look that took a second is followed by at least so many seconds without one."""
_LONGEST_PAUSE_S = 1.0
"""Memory can be filled faster than a disk: on a busy host, too, it is counted so often."""
_LONGEST_LOOK_S = 2.0
_BLOCK = 512
_SMALLEST = 4096


class DiskWatch:
    """Asked again and again while a command runs; looks at the disk only now and then.

    A machine that is over its limit already may run commands that do not use more, so that it can tidy up.
    """

    def __init__(self, used: Callable[[], int], limit: int) -> None:
        self._used = used
        self._limit = limit
        self._allowed = limit
        self._next_look = 0.0
        self.tripped = False

    def begin(self) -> None:
        """A command starts."""
        self.tripped = False
        self._next_look = time.monotonic() + _LOOK_S

    def over(self) -> bool:
        """Whether the running command must be ended."""
        now = time.monotonic()
        if now >= self._next_look and not self.tripped:
            used = self._used()
            spent = time.monotonic() - now
            self._next_look = now + spent + max(_LOOK_S, _DUTY * spent)
            self.tripped = used > self._allowed
            self._allowed = max(self._limit, used)
        return self.tripped


class MemoryWatch(DiskWatch):
    """Ends, beside that, the largest process when all together use too much memory, as the kernel would."""

    def __init__(
        self,
        used: Callable[[], int],
        limit: int,
        *,
        processes: Callable[[], list[psutil.Process]],
        memory_limit: int,
    ) -> None:
        super().__init__(used, limit)
        self._processes = processes
        self._memory_limit = memory_limit
        self._next_count = 0.0

    def begin(self) -> None:
        super().begin()
        self._next_count = time.monotonic() + _COUNT_S

    def over(self) -> bool:
        now = time.monotonic()
        if now >= self._next_count:
            found = self._processes()
            if sum(_resident(one) for one in found) > self._memory_limit:
                self._relieve({one: _own(one) for one in found})
            spent = time.monotonic() - now
            self._next_count = time.monotonic() + min(max(_COUNT_S, _DUTY * spent), _LONGEST_PAUSE_S)
        return super().over()

    def _relieve(self, sizes: dict[psutil.Process, int]) -> None:
        if sum(sizes.values()) > self._memory_limit:
            with contextlib.suppress(psutil.Error):
                max(sizes, key=lambda process: sizes[process]).kill()


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def _own(process: psutil.Process) -> int:
    """A process's share of the memory that it and others have; takes longer to find out."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def bytes_used(directory: Path) -> int:
    """The room that a tree takes, each name counted as a block at least; what was seen, if it takes long."""
    deadline = time.monotonic() + _LONGEST_LOOK_S
    total, waiting, seen = 0, [os.fspath(directory)], set[int]()
    while waiting and time.monotonic() < deadline:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if info.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        if info.st_ino in seen:
                            continue
                        seen.add(info.st_ino)
                    total += max(info.st_blocks * _BLOCK, _SMALLEST)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return total
