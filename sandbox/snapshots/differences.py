"""The difference between layers and their base, name by name, and digests of it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from langgraph_takeover.sandbox.changes.layers import LayerEntry, LayerStack, require_shallow, root_entry
from langgraph_takeover.sandbox.snapshots.archive_format import (
    BLOCK_BYTES,
    ZEROS,
    SparseFile,
    find_data,
    list_spans,
)

DifferenceKind = Literal["file", "link", "directory", "opaque", "cleared", "fifo", "gone", "masked"]
"""`opaque` marks a directory that hides the base's content; `gone` marks a name that only the base has.

`cleared` and `masked` are the same where only the saved state below has something to hide.
"""


class Difference(NamedTuple):
    """One differing name, or a directory on the path to one."""

    path: str
    kind: DifferenceKind
    item: LayerEntry


class SavedState(Protocol):
    """A saved difference to a base, on which layers are mounted."""

    def find_kind(self, path: str) -> str | None:
        """Return the kind of a path, as in a `Difference`; None without one."""

    def has_below(self, path: str) -> bool:
        """Whether the state has anything in a directory."""


class _EmptyState:
    def find_kind(self, path: str) -> str | None:
        return None

    def has_below(self, path: str) -> bool:
        return False


def list_differences(
    layers: tuple[Path, ...], base: LayerStack, *, below: SavedState | None = None
) -> Iterator[Difference]:
    """Yield the difference of unchanging layers, the top one first; sorted, a directory before its content.

    The layers mark directories like `base`. With `below`, they are mounted on the layers of that state, and the difference
    is what they change in it.

    Equal trees give equal differences: a name that was created and removed is left out, and a directory is opaque only
    if the base has something to hide. A socket or a device hides what was at its path, and is left out.
    """
    roots = tuple(root_entry(layer, base.opaque_attribute) for layer in layers)
    return _merge_layers("", roots, base, below or _EmptyState(), hidden=False)


def _merge_layers(
    path: str, parts: tuple[LayerEntry, ...], base: LayerStack, saved: SavedState, *, hidden: bool
) -> Iterator[Difference]:
    require_shallow(path)
    named: dict[str, list[LayerEntry]] = {}
    for part in parts:
        for item in part.children():
            named.setdefault(item.path, []).append(item)
    for below in sorted(named, key=os.fsencode):
        first = named[below][0]
        if first.is_directory:
            with ExitStack() as stack:
                for item in takewhile(lambda each: each.is_directory, named[below]):
                    stack.enter_context(item.make_readable())
                found, cut = list_directory_parts(named[below])
                before = saved.find_kind(below)
                replaces = before not in (None, "directory", "opaque")
                cut = cut or replaces
                kind: DifferenceKind = "directory"
                if cut and not hidden and _is_directory(base, below):
                    kind = "opaque"
                elif cut and (replaces or saved.has_below(below)):
                    kind = "cleared"
                yield Difference(below, kind, first)
                covered = hidden or cut or before == "opaque"
                yield from _merge_layers(below, found, base, saved, hidden=covered)
        elif (own_kind := _difference_kind(first.info)) is not None:
            yield Difference(below, own_kind, first)
        elif not hidden and base.find(below) is not None:
            yield Difference(below, "gone", first)
        elif saved.find_kind(below) is not None:
            yield Difference(below, "masked", first)


def list_directory_parts(items: list[LayerEntry]) -> tuple[tuple[LayerEntry, ...], bool]:
    """Return the layers' parts of one directory, down to one that hides the rest, and whether one does."""
    parts: list[LayerEntry] = []
    for item in items:
        if not item.is_directory:
            return tuple(parts), True
        parts.append(item)
        if item.is_opaque():
            return tuple(parts), True
    return tuple(parts), False


def _is_directory(base: LayerStack, path: str) -> bool:
    found = base.find(path)
    return found is not None and found.is_directory


def _difference_kind(info: os.stat_result) -> DifferenceKind | None:
    """Return the kind; None for whiteouts, and for sockets and devices, which no archive can store."""
    if stat.S_ISREG(info.st_mode):
        return "file"
    if stat.S_ISLNK(info.st_mode):
        return "link"
    return "fifo" if stat.S_ISFIFO(info.st_mode) else None


class SavedEntries(Protocol):
    """Collects the entries of an archive while it is written or read, in its order."""

    def add(self, path: str, kind: str, mode: int, payload: bytes) -> None:
        """Add an entry; arguments as in `ContentDigest.add`."""

    def add_link(self, path: str, first_path: str) -> None:
        """Say that the entry that was added last is a hard link to an earlier one."""


def format_entry(path: str, kind: str, mode: int, payload: bytes) -> bytes:
    """Return what the digest of a difference covers of one entry."""
    name = os.fsencode(path)
    if kind in ("link", "gone"):
        mode = 0
    return b"%d:%s %s %o %d:%s\0" % (len(name), name, kind.encode(), mode, len(payload), payload)


class ContentDigest:
    """SHA-256 over the paths, kinds, modes, link targets and bytes of a difference, in its order."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def add(self, path: str, kind: str, mode: int, payload: bytes) -> None:
        self._sum.update(format_entry(path, kind, mode, payload))

    def hexdigest(self) -> str:
        return self._sum.hexdigest()


def content_digest(layers: tuple[Path, ...], base: LayerStack) -> str:
    """The digest of the difference of these layers, the top one first, from a base."""
    digest = ContentDigest()
    sums: dict[tuple[int, int], bytes] = {}
    for found in list_differences(layers, base):
        payload, info = b"", found.item.info
        if found.kind == "file":
            inode = (info.st_dev, info.st_ino)
            if inode not in sums or info.st_nlink == 1:
                with found.item.open_descriptor() as descriptor:
                    sums[inode] = digest_content(descriptor)
            payload = sums[inode]
        elif found.kind == "link":
            payload = found.item.link_target()
        digest.add(found.path, found.kind, stat.S_IMODE(info.st_mode), payload)
    return digest.hexdigest()


def open_content(descriptor: int) -> HashedFile | SparseFile:
    """Return the content of an open file as an archive has it."""
    spans = list_spans(descriptor)
    return HashedFile(descriptor) if spans is None else SparseFile(descriptor, spans)


def digest_content(descriptor: int) -> bytes:
    """Return the digest of an open file's content as an archive has it."""
    content = open_content(descriptor)
    while content.read(BLOCK_BYTES):
        pass
    return content.digest()


class HashedFile:
    """An open file, hashed while it is read. A hole costs no access to the disk."""

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._sum = hashlib.sha256()
        self._at = 0
        self._data_from, self._data_to = find_data(descriptor, 0, self.size)

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := self._read_part(size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_part(self, size: int) -> bytes:
        size = min(size, self.size - self._at)
        if self._at >= self._data_to:
            self._data_from, self._data_to = find_data(self._descriptor, self._at, self.size)
        if self._at < self._data_from:
            data = ZEROS[: min(size, self._data_from - self._at)]
        else:
            data = os.pread(self._descriptor, min(size, self._data_to - self._at), self._at)
            # A file that was shortened meanwhile reads as zeros: callers that must know compare its times.
            data = data or ZEROS[:size]
        self._at += len(data)
        self._sum.update(data)
        return data

    def digest(self) -> bytes:
        return self._sum.digest()
