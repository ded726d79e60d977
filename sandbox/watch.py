"""How much disk a machine uses while a command runs in it, and whether that is too much."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_S = 1.0
_DUTY = 20
"""A look that took a second is followed by at least so many seconds without one."""
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
