"""How much disk and memory a sandbox uses while a command runs, and the end of a command that uses too much."""

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

from sandbox.descriptors import open_beneath, opened

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
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_LONGEST_STEP = 900
"""Characters of a path that is opened at once: with one more name, at most 4,096 bytes."""
_NOTABLE = 4 << 20
"""Free space that disappears without a reason to count again."""


class DiskWatch:
    """Asked again and again while a command runs; counts the bytes on disk from time to time.

    It counts at once when the file system has lost half of the space that is left to the sandbox. What is written
    between two commands counts against the second one. A sandbox that is over its limit may run commands that do not
    use more, so that it can tidy up, but only after everything in it was ended once.
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
        self._count_next = time.monotonic() + _LOOK_S

    def accept(self) -> None:
        """Everything inside was ended: what it has written may stay."""
        self._allowed = max(self._limit, self._count(time.monotonic()))

    def over(self) -> bool:
        """Whether the command must end that runs, or that has just ended."""
        now = time.monotonic()
        if not self.tripped and (now >= self._count_next or (now >= self._hurry_next and self._is_filling())):
            used = self._count(now)
            self.tripped = used > self._allowed
            self._allowed = max(self._limit, min(used, self._allowed))
        return self.tripped

    def _count(self, now: float) -> int:
        self._free = self._free_space()
        self._seen = self._used()
        spent = time.monotonic() - now
        self._count_next = now + spent + max(_LOOK_S, _DUTY * spent)
        self._hurry_next = now + spent + _HURRIED_DUTY * spent
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


class _Count:
    """Bytes on disk of directories, each name counted as a block at least."""

    def __init__(self) -> None:
        self.total = 0
        self._linked: set[int] = set()
        self.deadline = time.monotonic() + _LONGEST_LOOK_S

    def is_late(self) -> bool:
        return time.monotonic() >= self.deadline

    def add(self, start: int) -> list[str]:
        """Count what lies below an open directory; the directories that are too far below it to be counted yet."""
        waiting, distant = [""], list[str]()
        while waiting and not self.is_late():
            directory = waiting.pop()
            with (
                contextlib.suppress(OSError),
                opened(_place(start), directory, _DIRECTORY) as descriptor,
                os.scandir(descriptor) as entries,
            ):
                for entry in entries:
                    with contextlib.suppress(OSError):
                        info = entry.stat(follow_symlinks=False)
                        self._add_one(info)
                        if stat.S_ISDIR(info.st_mode):
                            path = f"{directory}/{entry.name}" if directory else entry.name
                            (waiting if len(path) < _LONGEST_STEP else distant).append(path)
        return distant

    def _add_one(self, info: os.stat_result) -> None:
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            if info.st_ino in self._linked:
                self.total += _SMALLEST
                return
            self._linked.add(info.st_ino)
        self.total += max(info.st_blocks * _BLOCK, _SMALLEST)


class _Start(NamedTuple):
    """A directory that a count has gone on from."""

    path: str
    """Relative to the start before it."""
    inode: tuple[int, int]
    distant: list[str]
    """Directories below it, as paths relative to it, that are not yet counted."""


def bytes_used(root: Path) -> int:
    """Bytes on disk of a tree, each name counted as a block at least; the part seen, if counting takes long.

    Directories are opened from one that is near, because the kernel takes no path of more than 4,096 bytes.
    """
    count = _Count()
    try:
        here = os.open(root, _DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        starts = [_Start("", _inode(here), count.add(here))]
        while not count.is_late():
            if starts[-1].distant:
                path = starts[-1].distant.pop()
                with contextlib.suppress(OSError):
                    here = _moved(here, open_beneath(_place(here), path, _DIRECTORY))
                    starts.append(_Start(path, _inode(here), count.add(here)))
                continue
            left = starts.pop()
            if not starts:
                break
            here = _moved(here, os.open(_upwards(left.path), _DIRECTORY | os.O_CLOEXEC, dir_fd=here))
            if _inode(here) != starts[-1].inode:  # a directory was moved meanwhile
                del starts[1:]
                here = _moved(here, os.open(root, _DIRECTORY | os.O_CLOEXEC))
    except OSError:
        pass
    finally:
        os.close(here)
    return count.total


def _place(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


def _inode(descriptor: int) -> tuple[int, int]:
    info = os.fstat(descriptor)
    return info.st_dev, info.st_ino


def _moved(before: int, after: int) -> int:
    os.close(before)
    return after


def _upwards(path: str) -> str:
    return "/".join([".."] * (path.count("/") + 1))


def bytes_unnamed(processes: Iterable[int]) -> int:
    """Bytes on disk of files that have no name any more and that these processes hold open or mapped."""
    deadline = time.monotonic() + _LONGEST_LOOK_S
    found: dict[tuple[int, int], int] = {}
    pids = list(processes)
    # The first threads first: mostly, the others share what these have open.
    ways = (way for find in (_of_first_thread, _of_other_threads) for pid in pids for way in find(pid))
    for way in ways:
        # The process may end meanwhile; only root may look at mappings.
        with contextlib.suppress(OSError), os.scandir(way) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    info = entry.stat()
                    if info.st_nlink == 0 and stat.S_ISREG(info.st_mode) and info.st_dev != _in_memory():
                        found[info.st_dev, info.st_ino] = info.st_blocks * _BLOCK
                if time.monotonic() > deadline:
                    return sum(found.values())
        if time.monotonic() > deadline:
            break
    return sum(found.values())


def _of_first_thread(pid: int) -> Iterator[str]:
    yield f"/proc/{pid}/fd"
    yield f"/proc/{pid}/map_files"


def _of_other_threads(pid: int) -> Iterator[str]:
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
def _in_memory() -> int:
    """The device of memfds and shared memory, which the limit on memory counts."""
    descriptor = os.memfd_create("device")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
