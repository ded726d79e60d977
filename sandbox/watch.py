"""How much disk and memory a sandbox uses while a command runs, and the end of a command that uses too much."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from sandbox.descriptors import opened

_LOOK_S = 1.0
_COUNT_S = 0.2
_DUTY = 20
"""A look that took a second is followed by at least this many seconds without one."""
_HURRIED_DUTY = 4
"""The same, while the disk fills up quickly."""
_LONGEST_PAUSE_S = 1.0
"""Memory fills faster than a disk: this is the longest pause between two counts, even on a busy host."""
_LONGEST_LOOK_S = 2.0
_BLOCK = 512
_SMALLEST = 4096
_NOTABLE = 4 << 20
"""Free space that disappears without a reason to count again."""


class DiskWatch:
    """Asked again and again while a command runs; counts the bytes on disk from time to time.

    It counts at once when the file system has lost half of the space that is left to the sandbox. A sandbox that is
    over its limit already may run commands that do not use more, so that it can tidy up.
    """

    def __init__(self, used: Callable[[], int], limit: int, disk: Path | None = None) -> None:
        self._used = used
        self._limit = limit
        self._allowed = limit
        self._disk = disk
        self._count_next = self._hurry_next = 0.0
        self._seen = 0
        self._free = self._free_space()
        self.tripped = False

    def begin(self) -> None:
        """A command starts."""
        self.tripped = False
        if self._is_filling():
            self._count(time.monotonic())  # by the command before: this one answers for its own growth only
        self._count_next = time.monotonic() + _LOOK_S

    def over(self) -> bool:
        """Whether the running command must end."""
        now = time.monotonic()
        if not self.tripped and (now >= self._count_next or (now >= self._hurry_next and self._is_filling())):
            allowed = self._allowed
            self.tripped = self._count(now) > allowed
        return self.tripped

    def _count(self, now: float) -> int:
        self._free = self._free_space()
        self._seen = self._used()
        spent = time.monotonic() - now
        self._count_next = now + spent + max(_LOOK_S, _DUTY * spent)
        self._hurry_next = now + spent + _HURRIED_DUTY * spent
        self._allowed = max(self._limit, self._seen)
        return self._seen

    def _is_filling(self) -> bool:
        lost = self._free - self._free_space()
        return lost > max(_NOTABLE, (self._allowed - self._seen) // 2)

    def _free_space(self) -> int:
        with contextlib.suppress(OSError):
            if self._disk is not None:
                found = os.statvfs(self._disk)
                return found.f_bfree * found.f_frsize
        return 0


class MemoryWatch(DiskWatch):
    """Also ends the largest process when all together use too much memory, as the kernel would."""

    def __init__(
        self,
        used: Callable[[], int],
        limit: int,
        disk: Path | None = None,
        *,
        processes: Callable[[], list[psutil.Process]],
        memory_limit: int,
    ) -> None:
        super().__init__(used, limit, disk)
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


def bytes_used(root: Path) -> int:
    """Bytes on disk of a tree, each name counted as a block at least; the part seen, if counting takes long."""
    deadline = time.monotonic() + _LONGEST_LOOK_S
    total, waiting, seen = 0, [""], set[int]()
    while waiting and time.monotonic() < deadline:
        directory = waiting.pop()
        with (
            contextlib.suppress(OSError),
            opened(root, directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            for entry in entries:
                with contextlib.suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        waiting.append(f"{directory}/{entry.name}" if directory else entry.name)
                    elif info.st_nlink > 1:
                        if info.st_ino in seen:
                            continue
                        seen.add(info.st_ino)
                    total += max(info.st_blocks * _BLOCK, _SMALLEST)
    return total


def bytes_unnamed(processes: Iterable[int]) -> int:
    """Bytes on disk of files that have no name any more and that these processes hold open or mapped."""
    deadline = time.monotonic() + _LONGEST_LOOK_S
    found: dict[tuple[int, int], int] = {}
    for pid in processes:
        for kind in ("fd", "map_files"):
            # The process may end meanwhile; only root may look at mappings.
            with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/{kind}") as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        info = entry.stat()
                        if info.st_nlink == 0 and stat.S_ISREG(info.st_mode) and info.st_dev != _in_memory():
                            found[info.st_dev, info.st_ino] = info.st_blocks * _BLOCK
                    if time.monotonic() > deadline:
                        return sum(found.values())
    return sum(found.values())


@functools.cache
def _in_memory() -> int:
    """The device of memfds and shared memory, which the limit on memory counts."""
    descriptor = os.memfd_create("device")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
