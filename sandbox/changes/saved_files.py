"""The files of a sandbox as its last snapshot has them: whether they have changed, without reading their contents."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import stat
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.changes.layers import (
    MAX_DEPTH,
    LayerLookup,
    LayerStack,
    is_opaque,
    is_whiteout,
)
from langgraph_takeover.sandbox.untrusted_trees import open_at, open_safely

_TICK_NS = 20_000_000
"""Longer than a tick of the kernel's clock: files that change twice within one may keep their times."""
_NEVER_NS = -1
_PROBES, _PROBE_WRITES, _PROBE_NS = 3, 8, 1_000_000


class FileSignature(NamedTuple):
    """What `lstat` says about one name of a layer; equal signatures mean that nothing has changed.

    A name that only hides what lies below has the signature `WHITEOUT`: the kernel changes its times.
    """

    mode: int
    inode: int = 0
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    uid: int = 0
    gid: int = 0
    links: int = 1
    is_opaque: bool = False
    """Whether a directory hides what the layers below have in it."""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


WHITEOUT = FileSignature(stat.S_IFCHR)
MAX_NAMES_AT_REST = 512
"""With more names in its top layer, an idle sandbox gets another one: that is faster than to compare them."""
LayerSignatures = dict[str, FileSignature]
"""The signature of each path of one layer."""


class SavedFiles:
    """What the top layer had when the last snapshot was taken: the sizes, times, inodes and modes of its files.

    Every change of a file changes its times. Directories are compared with the layers below: one that was only listed in
    the top layer, because a file came and went, has not changed.

    Args:
        caches: directories, such as `.pytest_cache` or `node_modules/.cache`, whose content does not count.
    """

    def __init__(self, caches: Collection[str]) -> None:
        self._caches = tuple(f"/{each.strip('/')}/" for each in caches)
        self._below: LayerStack | None = None
        self.signatures: LayerSignatures | None = None
        """Everything in the top layer, caches included; None if that cannot be known."""

    def remember(self, stack: LayerStack | None, *, waits: bool = False, max_names: float = math.inf) -> None:
        """Remember the files as saved; None if they are elsewhere. More than `max_names` in the top layer stay unknown.

        Where the kernel's clock is coarse, a file that has just changed could change again without a trace. If nothing
        writes now, `waits` waits until that is over, at most 20 ms; otherwise such a file counts as changed.
        """
        self.signatures, self._below = None, None
        if stack is not None and (found := read_top_layer(stack, max_names)) is not None:
            if not _has_fine_times(stack.layers[0]):
                found = _settle(found, waits=waits)
            self._below = LayerStack(*stack.layers[1:], opaque_attribute=stack.opaque_attribute)
            self.signatures = found

    def forget(self) -> None:
        """Remember that nothing is known to be saved."""
        self.remember(None)

    def have_changed(self, stack: LayerStack | None) -> bool:
        """Whether any file has changed since; yes if that cannot be known."""
        saved, now = self.signatures, None if stack is None else read_top_layer(stack)
        if saved is None or now is None or self._below is None:
            return True
        below = LayerLookup(self._below)
        return any(
            not self._is_in_cache(path, one or other) and _counts(path, one, other, below)
            for path, one, other in _list_differences(saved, now)
        )

    def _is_in_cache(self, path: str, signature: FileSignature | None) -> bool:
        end = "/" if signature is not None and signature.is_directory else ""
        return any(each in f"/{path}{end}" for each in self._caches)


def _list_differences(
    before: LayerSignatures, after: LayerSignatures
) -> Iterator[tuple[str, FileSignature | None, FileSignature | None]]:
    for path, signature in after.items():
        if before.get(path) != signature:
            yield path, before.get(path), signature
    for path in before.keys() - after.keys():
        yield path, before[path], None


def _counts(path: str, before: FileSignature | None, after: FileSignature | None, below: LayerLookup) -> bool:
    """Whether a difference of the top layer is one of the files that its owner sees."""
    if after is None or not after.is_directory:
        return True
    if before is not None:
        return (before.mode, before.is_opaque) != (after.mode, after.is_opaque)
    lower = None if after.is_opaque else below.find(path)
    return lower is None or lower.info.st_mode != after.mode


def read_top_layer(stack: LayerStack, max_names: float = math.inf) -> LayerSignatures | None:
    """Return the signature of each path of the top layer; None if it cannot be read, or has more names."""
    try:
        with open_safely(stack.layers[0], "") as top:
            found: LayerSignatures = {}
            _scan(top, "", found, stack.opaque_attribute, max_names)
            return found
    except OSError:  # a name that came and went, or a directory that its owner cannot list
        return None


def _scan(
    directory: int, prefix: str, found: LayerSignatures, opaque_attribute: str, max_names: float
) -> None:
    if prefix.count("/") > MAX_DEPTH:
        raise OSError("nested too deeply")
    with os.scandir(directory) as entries:
        listed = list(entries)
    if len(found) + len(listed) > max_names:
        raise OSError("too many names")
    children = [(entry.name, entry.stat(follow_symlinks=False)) for entry in listed]
    for name, info in children:
        path = prefix + name
        if not stat.S_ISDIR(info.st_mode):
            found[path] = WHITEOUT if is_whiteout(info) else sign_entry(info)
            continue
        descriptor = open_at(directory, name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found[path] = sign_entry(info, is_opaque=is_opaque(descriptor, opaque_attribute))
            _scan(descriptor, f"{path}/", found, opaque_attribute, max_names)
        finally:
            os.close(descriptor)


def sign_entry(info: os.stat_result, *, is_opaque: bool = False) -> FileSignature:
    """Return the signature of one name from the result of `lstat`."""
    return FileSignature(
        info.st_mode,
        info.st_ino,
        0 if stat.S_ISDIR(info.st_mode) else info.st_size,
        info.st_mtime_ns,
        info.st_ctime_ns,
        info.st_uid,
        info.st_gid,
        info.st_nlink,
        is_opaque,
    )


def _settle(found: LayerSignatures, *, waits: bool) -> LayerSignatures:
    """Return signatures that differ after any later change."""
    now = time.time_ns()
    latest = max((each.ctime_ns for each in found.values()), default=0)
    if latest + _TICK_NS <= now:
        return found
    if waits:
        time.sleep(min(latest + _TICK_NS - now, _TICK_NS) / 1e9)
        return found
    return {
        path: each._replace(ctime_ns=_NEVER_NS) if each.ctime_ns + _TICK_NS > now else each
        for path, each in found.items()
    }


_fine_times: dict[int, bool] = {}
"""By device: whether each change of a file changes its times."""


def _has_fine_times(directory: Path) -> bool:
    """Whether each change of a file on a directory's disk changes its times, as with Linux 6.13 and later."""
    device = directory.stat().st_dev
    if device not in _fine_times:
        with contextlib.suppress(OSError):
            _fine_times[device] = any(_probe_times(directory.parent) for _ in range(_PROBES))
    return _fine_times.get(device, False)


def _probe_times(directory: Path) -> bool:
    with tempfile.TemporaryFile(dir=directory) as file:
        started, times = time.monotonic_ns(), []
        for _ in range(_PROBE_WRITES):
            os.pwrite(file.fileno(), b"x", 0)
            times.append(os.fstat(file.fileno()).st_ctime_ns)
        is_within_tick = time.monotonic_ns() - started < _PROBE_NS
    return is_within_tick and all(one < other for one, other in itertools.pairwise(times))
