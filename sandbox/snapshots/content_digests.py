"""Digests of the content of a sandbox's difference from its base, and of the files in it."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from langgraph_takeover.sandbox.changes.differences import list_differences
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.snapshots.archive_format import BLOCK_BYTES, ZEROS
from langgraph_takeover.sandbox.snapshots.sparse_files import SparseFile, find_data, list_spans


class ContentDigest:
    """SHA-256 over the paths, kinds, modes, link targets and bytes of a difference, in its order."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def add(self, path: str, kind: str, mode: int, payload: bytes) -> None:
        name = os.fsencode(path)
        if kind in ("link", "gone"):
            mode = 0
        self._sum.update(
            b"%d:%s %s %o %d:%s\0" % (len(name), name, kind.encode(), mode, len(payload), payload)
        )

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
