"""Disk and memory use of a sandbox during a command; ends a command that exceeds a limit."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from langgraph_takeover.sandbox.untrusted_trees import open_beneath, open_safely

_MIN_PAUSE_S = 1.0
_FIRST_PAUSE_S = 0.05
"""The first command of a sandbox does not wait for a count, unless the file system has lost much."""
_MIN_MEMORY_PAUSE_S = 0.2
_PAUSE_FACTOR = 20
"""A look that took a second is followed by at least this many seconds without one."""
_HURRIED_PAUSE_FACTOR = 4
"""The same, while the disk fills up quickly."""
_MAX_MEMORY_PAUSE_S = 1.0
"""Memory fills faster than a disk: this is the longest pause between two counts, even on a busy host."""
_MAX_COUNT_S = 2.0
_BLOCK_BYTES = 512
_MIN_NAME_BYTES = 4096
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY
_MAX_STEP_CHARS = 900
"""Characters of a path that is opened at once: with one more name, at most 4,096 bytes."""
_NOTABLE_LOSS_BYTES = 4 << 20
"""Free space that disappears without a reason to count again."""


class DiskWatch:
    """Checked repeatedly while a command runs; counts the bytes on disk from time to time.

    It counts when the file system has lost half of the space that the sandbox has left, and at the end of each command,
    unless the last count was slow and recent and the file system has lost little. What is written between two commands
    counts against the second one. A sandbox over its limit may run commands that do not use more, so that it can clean up,
    but only after everything in it was ended once.
    """

    def __init__(self, used: Callable[[], int], limit: int, disk: Path | None = None) -> None:
        self._used = used
        self._limit = limit
        self._allowed = limit
        self._disk = disk
        self._count_next = self._hurry_next = 0.0
        # Nothing is written at the start: that counts as a count.
        self._last_count, self._end_next = 0, time.monotonic() + _FIRST_PAUSE_S
        self._free = self._free_space()
        self.is_tripped = False

    def begin(self) -> None:
        """Note that a command starts."""
        self.is_tripped = False
        self._count_next = time.monotonic() + _MIN_PAUSE_S

    def accept_usage(self) -> None:
        """Note that everything inside was ended: its files may stay."""
        self._allowed = max(self._limit, self._count(time.monotonic()))

    def is_over_limit(self) -> bool:
        """Whether the running command must end."""
        return self._check(self._count_next, self._hurry_next)

    def was_over_limit(self) -> bool:
        """Whether the command that has just ended exceeded the limit, however short it was."""
        return self._check(self._end_next, hurry_next=0.0)

    def _check(self, count_next: float, hurry_next: float) -> bool:
        now = time.monotonic()
        if not self.is_tripped and (now >= count_next or (now >= hurry_next and self._is_filling())):
            used = self._count(now)
            self.is_tripped = used > self._allowed
            self._allowed = max(self._limit, min(used, self._allowed))
        return self.is_tripped

    def _count(self, now: float) -> int:
        self._free = self._free_space()
        self._last_count = self._used()
        spent = time.monotonic() - now
        self._count_next = now + spent + max(_MIN_PAUSE_S, _PAUSE_FACTOR * spent)
        self._hurry_next = now + spent + _HURRIED_PAUSE_FACTOR * spent
        self._end_next = now + spent + _PAUSE_FACTOR * spent
        return self._last_count

    def _is_filling(self) -> bool:
        lost = self._free - self._free_space()
        return lost > max(_NOTABLE_LOSS_BYTES, (self._allowed - self._last_count) // 2)

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
        self._next_count = time.monotonic() + _MIN_MEMORY_PAUSE_S

    def is_over_limit(self) -> bool:
        now = time.monotonic()
        if now >= self._next_count:
            found = self._processes()
            if sum(_resident_bytes(one) for one in found) > self._memory_limit:
                self._kill_largest({one: _proportional_bytes(one) for one in found})
            spent = time.monotonic() - now
            self._next_count = time.monotonic() + min(
                max(_MIN_MEMORY_PAUSE_S, _PAUSE_FACTOR * spent), _MAX_MEMORY_PAUSE_S
            )
        return super().is_over_limit()

    def _kill_largest(self, sizes: dict[psutil.Process, int]) -> None:
        if sum(sizes.values()) > self._memory_limit:
            with contextlib.suppress(psutil.Error):
                max(sizes, key=lambda process: sizes[process]).kill()


def _resident_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def _proportional_bytes(process: psutil.Process) -> int:
    """A process's share of memory that it shares with others; slower to compute."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


class _ByteCounter:
    """Bytes on disk of directories, each name counted as a block at least."""

    def __init__(self) -> None:
        self.total = 0
        self._linked: set[int] = set()
        self.deadline = time.monotonic() + _MAX_COUNT_S

    def is_late(self) -> bool:
        return time.monotonic() >= self.deadline

    def add(self, start: int) -> list[str]:
        """Count what is below an open directory; return the directories that are too deep to be counted yet."""
        waiting, distant = [""], list[str]()
        while waiting and not self.is_late():
            directory = waiting.pop()
            with (
                contextlib.suppress(OSError),
                open_safely(_descriptor_path(start), directory, _DIRECTORY_FLAGS) as descriptor,
                os.scandir(descriptor) as entries,
            ):
                for entry in entries:
                    with contextlib.suppress(OSError):
                        info = entry.stat(follow_symlinks=False)
                        self._add_file(info)
                        if stat.S_ISDIR(info.st_mode):
                            path = f"{directory}/{entry.name}" if directory else entry.name
                            (waiting if len(path) < _MAX_STEP_CHARS else distant).append(path)
        return distant

    def _add_file(self, info: os.stat_result) -> None:
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            if info.st_ino in self._linked:
                self.total += _MIN_NAME_BYTES
                return
            self._linked.add(info.st_ino)
        self.total += max(info.st_blocks * _BLOCK_BYTES, _MIN_NAME_BYTES)


class _DirectoryPosition(NamedTuple):
    """A directory from which a count has continued."""

    path: str
    """Relative to the start before it."""
    inode: tuple[int, int]
    uncounted: list[str]
    """Directories below it, as paths relative to it, that are not yet counted."""


def bytes_used(root: Path) -> int:
    """Bytes on disk of a tree, each name counted as at least one block; only the part seen if counting takes long.

    Directories are opened relative to a near one, because the kernel accepts no path of more than 4,096 bytes.
    """
    count = _ByteCounter()
    try:
        here = os.open(root, _DIRECTORY_FLAGS | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        starts = [_DirectoryPosition("", _read_inode(here), count.add(here))]
        while not count.is_late():
            if starts[-1].uncounted:
                path = starts[-1].uncounted.pop()
                with contextlib.suppress(OSError):
                    here = _replace_descriptor(
                        here, open_beneath(_descriptor_path(here), path, _DIRECTORY_FLAGS)
                    )
                    starts.append(_DirectoryPosition(path, _read_inode(here), count.add(here)))
                continue
            left = starts.pop()
            if not starts:
                break
            here = _replace_descriptor(
                here, os.open(_relative_ancestor(left.path), _DIRECTORY_FLAGS | os.O_CLOEXEC, dir_fd=here)
            )
            if _read_inode(here) != starts[-1].inode:  # a directory was moved meanwhile
                del starts[1:]
                here = _replace_descriptor(here, os.open(root, _DIRECTORY_FLAGS | os.O_CLOEXEC))
    except OSError:
        pass
    finally:
        os.close(here)
    return count.total


def _descriptor_path(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


def _read_inode(descriptor: int) -> tuple[int, int]:
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino


def _replace_descriptor(before: int, after: int) -> int:
    os.close(before)
    return after


def _relative_ancestor(path: str) -> str:
    return "/".join([".."] * (path.count("/") + 1))


def bytes_unlinked(processes: Iterable[int]) -> int:
    """Bytes on disk of unnamed files that these processes hold open or mapped."""
    deadline = time.monotonic() + _MAX_COUNT_S
    found: dict[tuple[int, int], int] = {}
    pids = list(processes)
    # The first threads first: usually, the others share their open files.
    ways = (
        way
        for find in (_list_first_thread_paths, _list_other_thread_paths)
        for pid in pids
        for way in find(pid)
    )
    for way in ways:
        # The process may end meanwhile; only root may look at mappings.
        with contextlib.suppress(OSError), os.scandir(way) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    info = entry.stat()
                    if info.st_nlink == 0 and stat.S_ISREG(info.st_mode) and info.st_dev != _memory_device():
                        found[info.st_dev, info.st_ino] = info.st_blocks * _BLOCK_BYTES
                if time.monotonic() > deadline:
                    return sum(found.values())
        if time.monotonic() > deadline:
            break
    return sum(found.values())


def _list_first_thread_paths(pid: int) -> Iterator[str]:
    yield f"/proc/{pid}/fd"
    yield f"/proc/{pid}/map_files"


def _list_other_thread_paths(pid: int) -> Iterator[str]:
    """Each may have descriptors of its own, and outlive the first one, which then shows no mappings."""
    threads: list[str] = []
    with contextlib.suppress(OSError):
        threads = [each.name for each in Path(f"/proc/{pid}/task").iterdir() if each.name != str(pid)]
    for thread in threads:
        yield f"/proc/{pid}/task/{thread}/fd"
    if threads and not _has_mappings(str(pid)):
        living = next(filter(_has_mappings, threads), None)
        if living is not None:
            yield f"/proc/{living}/map_files"


def _has_mappings(thread: str) -> bool:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{thread}/map_files") as entries:
        return next(entries, None) is not None
    return False


@functools.cache
def _memory_device() -> int:
    """The device of memfds and shared memory, which the memory limit counts."""
    descriptor = os.memfd_create("device")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
