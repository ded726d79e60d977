"""The format of a snapshot's archive, with files that have large holes."""

from __future__ import annotations

import errno
import hashlib
import os
import tarfile
from collections.abc import Iterator
from typing import IO

MAX_LAYER_BYTES = 64 * 1024**3
MAX_MEMBERS = 1_000_000
MAX_EXTENDED_HEADER_BYTES = 1024**2
"""The extended header of one member in bytes: long names, times and attributes. Docker takes no more either."""
MAX_TOTAL_EXTENDED_HEADER_BYTES = 256 * 1024**2
"""The limit for all members together."""
MAX_TOTAL_PATH_BYTES = 128 * 1024**2
"""The paths of all members together, in bytes."""
WHITEOUT_PREFIX = ".wh."
OPAQUE_MARK = ".wh..wh..opq"
ROOT_NAME = "."
BLOCK_BYTES = 256 * 1024
"""Bytes that are read or written at once."""
ZEROS = bytes(BLOCK_BYTES)


def archive_name(digest: str) -> str:
    """Return the file name of a snapshot's archive in its directory, from the digest of its content."""
    return f"{digest}.tar.zst"


PART_SUFFIX = ".part"


def part_name(sha256: str) -> str:
    """Return the file name of an archive that several snapshots share, from the digest of its bytes."""
    return sha256 + PART_SUFFIX


MAX_PARTS = 32
"""Archives that one snapshot may consist of."""
MIN_HOLE_BYTES = 64 * 1024**2
"""Holes of a file that is saved without them, in bytes. Other files are saved whole."""
MAX_SPANS = 65_536
SPARSE_KEYS = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
"""Fields of the extended header, beside `GNU.sparse.name` and `GNU.sparse.realsize`."""
Span = tuple[int, int]
"""Start and length of data in a file, in bytes."""


def find_data(descriptor: int, start: int, size: int) -> Span:
    """Return where the next data starts and ends; if no data follows, the rest is a hole."""
    if start >= size:
        return size, size
    try:
        first = os.lseek(descriptor, start, os.SEEK_DATA)
        return first, os.lseek(descriptor, first, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size
        return start, size  # the file system knows no holes


def list_spans(descriptor: int) -> tuple[Span, ...] | None:
    """List the data of an open file with large holes, in blocks that are not all zeros; None if it has no large holes."""
    info = os.fstat(descriptor)
    if info.st_size - info.st_blocks * 512 < MIN_HOLE_BYTES:
        return None
    spans: list[Span] = []
    position = 0
    while position < info.st_size:
        first, end = find_data(descriptor, position, info.st_size)
        position = max(position, first - first % BLOCK_BYTES)
        while position < min(end, info.st_size):
            block = os.pread(descriptor, min(BLOCK_BYTES, info.st_size - position), position)
            if block and block != ZEROS[: len(block)]:
                if spans and sum(spans[-1]) == position:
                    spans[-1] = (spans[-1][0], spans[-1][1] + len(block))
                else:
                    spans.append((position, len(block)))
            if len(spans) > MAX_SPANS:
                return None
            position += len(block) or BLOCK_BYTES
    return tuple(spans)


def copy_content(descriptor: int, out: IO[bytes]) -> None:
    """Copy the content of an open file to an empty one, holes as holes."""
    size = os.fstat(descriptor).st_size
    position, end = find_data(descriptor, 0, size)
    while position < size:
        out.seek(position)
        if not (block := os.pread(descriptor, min(BLOCK_BYTES, end - position), position)):
            break
        out.write(block)
        position += len(block)
        if position >= end:
            position, end = find_data(descriptor, position, size)
    out.truncate(size)


def format_map(spans: tuple[Span, ...], real_size: int) -> bytes:
    """Return the map that stands before the data. A hole at the end needs an empty span, or GNU tar drops it."""
    if (sum(spans[-1]) if spans else 0) < real_size:
        spans = (*spans, (real_size, 0))
    text = "".join(f"{number}\n" for number in (len(spans), *(each for span in spans for each in span)))
    return text.encode() + bytes(-len(text) % tarfile.BLOCKSIZE)


class SparseFile:
    """The saved form of an open file with large holes; its digest covers the size, the map and the data."""

    def __init__(self, descriptor: int, spans: tuple[Span, ...]) -> None:
        self.real_size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._head = format_map(spans, self.real_size)
        self._spans = list(reversed(spans))
        self.size = len(self._head) + sum(length for _, length in spans)
        self._sum = start_digest(self.real_size)

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := self._read_part(size)):
            parts.append(part)
            size -= len(part)
        data = b"".join(parts)
        self._sum.update(data)
        return data

    def _read_part(self, size: int) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        if not self._spans:
            return b""
        start, length = self._spans.pop()
        size = min(size, length)
        # A file that was shortened meanwhile reads as zeros: callers that must know compare its times.
        data = os.pread(self._descriptor, size, start) or bytes(size)
        if len(data) < length:
            self._spans.append((start + len(data), length - len(data)))
        return data

    def digest(self) -> bytes:
        return self._sum.digest()


def start_digest(real_size: int) -> hashlib._Hash:
    """Return a SHA-256 that no file without a map has."""
    return hashlib.sha256(b"sparse %d\0" % real_size)


class WholeReader:
    """Reads the content of a file in blocks, each with its place in the file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._sum = hashlib.sha256()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        start = 0
        for block in self._blocks:
            self._sum.update(block)
            yield start, block
            start += len(block)

    def digest(self) -> bytes:
        return self._sum.digest()


class MapReader:
    """Reads a saved form in blocks: yields the data with its place in the file. Raises ValueError if the map is malformed."""

    def __init__(self, real_size: int, blocks: Iterator[bytes]) -> None:
        self._real_size = real_size
        self._blocks = blocks
        self._sum = start_digest(real_size)
        self._waiting = b""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for start, length in self._read_map():
            while length:
                data = self._take(min(length, BLOCK_BYTES))
                yield start, data
                start, length = start + len(data), length - len(data)
        if self._waiting or next(self._blocks, b""):
            raise ValueError("a sparse file has more data than its map names")

    def digest(self) -> bytes:
        return self._sum.digest()

    def _take(self, size: int) -> bytes:
        while not self._waiting:
            self._waiting = next(self._blocks, b"")
            if not self._waiting:
                raise ValueError("a sparse file has less data than its map names")
            self._sum.update(self._waiting)
        data, self._waiting = self._waiting[:size], self._waiting[size:]
        return data

    def _read_map(self) -> list[Span]:
        lines: list[bytes] = []
        text = b""
        while not lines or len(lines) <= 2 * int(lines[0]):
            block = b""
            while len(block) < tarfile.BLOCKSIZE:
                block += self._take(tarfile.BLOCKSIZE - len(block))
            *more, text = (text + block).split(b"\n")
            lines += more
            if not lines or len(lines[0]) > 5 or not lines[0].isdigit() or int(lines[0]) > MAX_SPANS:
                raise ValueError("the map of a sparse file is malformed")
        numbers = [int(each) for each in lines[1:] if each.isdigit() and len(each) < 20]
        spans = list(zip(numbers[::2], numbers[1::2], strict=False))
        ends = [0, *(start + length for start, length in spans)]
        in_order = all(end <= start for end, (start, _) in zip(ends, spans, strict=False))
        is_empty = [not length for _, length in spans]
        is_whole = ends[-1] == self._real_size and not any(is_empty[:-1])
        if text.strip(b"\0") or len(numbers) != 2 * int(lines[0]) or not in_order or not is_whole:
            raise ValueError("the map of a sparse file is malformed")
        return spans
