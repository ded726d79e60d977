"""The files of a sandbox as its last snapshot has them: whether they have changed, without reading their contents."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection

from langgraph_takeover.sandbox.changes.layers import (
    MAX_DEPTH,
    LayerLookup,
    LayerStack,
    is_opaque,
)
from langgraph_takeover.sandbox.untrusted_trees import open_at, open_safely

_RACY_NS = 20_000_000
"""A file that changed this shortly before it was looked at may change again within the same tick of the kernel's clock."""
_Signatures = dict[str, object]


class SavedFiles:
    """What the top layer had when the last snapshot was taken: the sizes, times, inodes and modes of its files.

    Every change of a file changes its times. Directories are compared with the layers below: one that was only listed in
    the top layer, because a file came and went, has not changed.

    Args:
        caches: directories, such as `.pytest_cache` or `node_modules/.cache`, whose content does not count.
    """

    def __init__(self, caches: Collection[str]) -> None:
        self._caches = tuple(f"/{each.strip('/')}" for each in caches)
        self._saved: _Signatures | None = None

    def remember(self, stack: LayerStack | None) -> None:
        """Remember the files as saved; None if they are elsewhere."""
        self._saved = None if stack is None else self._read(stack)

    def have_changed(self, stack: LayerStack | None) -> bool:
        """Whether any file has changed since; yes if that cannot be known."""
        return stack is None or self._saved is None or self._read(stack) != self._saved

    def _read(self, stack: LayerStack) -> _Signatures | None:
        """Return the signature of each path of the top layer that differs from those below; None if it cannot be read."""
        try:
            with open_safely(stack.layers[0], "") as top:
                found: _Signatures = {}
                below = LayerStack(*stack.layers[1:], opaque_attribute=stack.opaque_attribute)
                self._scan(top, "", found, LayerLookup(below), stack.opaque_attribute)
                return found
        except OSError:  # a name that came and went, or a directory that its owner cannot list
            return None

    def _scan(
        self, directory: int, prefix: str, found: _Signatures, below: LayerLookup, opaque_attribute: str
    ) -> None:
        if prefix.count("/") > MAX_DEPTH:
            raise OSError("nested too deeply")
        latest = time.time_ns() - _RACY_NS
        with os.scandir(directory) as entries:
            children = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        for name, info in children:
            path = prefix + name
            if not stat.S_ISDIR(info.st_mode):
                times = (info.st_mtime_ns, info.st_ctime_ns)
                signature = (info.st_mode, info.st_ino, info.st_size, info.st_rdev, *times)
                found[path] = signature if info.st_ctime_ns < latest else object()
            elif not f"/{path}".endswith(self._caches):
                descriptor = open_at(directory, name, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    is_new = is_opaque(descriptor, opaque_attribute)
                    lower = None if is_new else below.find(path)
                    if lower is None or lower.info.st_mode != info.st_mode:
                        found[path] = info.st_mode, is_new
                    self._scan(descriptor, f"{path}/", found, below, opaque_attribute)
                finally:
                    os.close(descriptor)
