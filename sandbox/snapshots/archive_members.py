"""Members of a snapshot's archive, read as strictly as `archive_writer.write` writes them.

tarfile keeps every header, follows headers recursively, and reads ten dialects, negative sizes among them. This
reads the one dialect that snapshots are written in and refuses the rest, so that no other reader of the same
bytes, such as Docker's, sees other files.
"""

from __future__ import annotations

import bisect
import io
import re
import struct
import tarfile
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

import zstandard

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.sandbox.changes.layers import MAX_DEPTH
from langgraph_takeover.sandbox.snapshots.archive_format import (
    BLOCK_BYTES,
    MAX_EXTENDED_HEADER_BYTES,
    MAX_MEMBERS,
    MAX_TOTAL_EXTENDED_HEADER_BYTES,
    MAX_TOTAL_PATH_BYTES,
    SPARSE_KEYS,
)

_MAX_WINDOW_BYTES = 8 * 1024**2
_MAX_PATH_BYTES, _MAX_NAME_BYTES = 4095, 255
_MAX_ID = 2**32 - 2
_CPU_S, _CPU_S_PER_BYTE, _CPU_S_PER_MEMBER = 60.0, 1 / 2**20, 0.001
_ENCODING, _ERRORS = "utf-8", "surrogateescape"
_KINDS = {b"0": "file", b"1": "hard link", b"2": "link", b"5": "directory", b"6": "fifo"}
_EXTENDED, _GLOBAL = b"x", b"g"
_ATTRIBUTE = b"SCHILY.xattr."
_SPARSE_NAME, _SPARSE_SIZE = b"GNU.sparse.name", b"GNU.sparse.realsize"
_SPARSE_FORM = {key.encode(): value.encode() for key, value in SPARSE_KEYS.items()}
_KEYS = {
    b"path",
    b"linkpath",
    b"size",
    b"uid",
    b"gid",
    b"mtime",
    b"hdrcharset",
    b"TAKEOVER.literal",
    b"TAKEOVER.parts",
} | {
    _SPARSE_NAME,
    _SPARSE_SIZE,
    *_SPARSE_FORM,
}
# Names, modes, owners, size, time, checksum, kind, target, version, names of owners, device, prefix, filler.
_FIELDS = struct.Struct("100s24s24s8s1s100s8s64s16s155s12s")
_NUMBERS = re.compile(rb"([0-7]{7})\0([0-7]{7})\0([0-7]{7})\0([0-7]{11})\0([0-7]{11})\0")
_LENGTH = re.compile(rb"([1-9][0-9]{0,7}) ")
_WHOLE_NUMBER = re.compile(rb"[0-9]{1,19}")
_TIME = re.compile(rb"(-?)([0-9]{1,19})(?:\.([0-9]{1,9}))?")


class MalformedArchiveError(TakeoverError, ValueError):
    """The archive does not have the format of a snapshot."""


class ArchiveMember(NamedTuple):
    """One member as its headers describe it."""

    path: str
    kind: str
    """`file`, `hard link`, `link`, `directory` or `fifo`."""
    mode: int
    size: int
    target: str
    """Of a link and of a hard link."""
    mtime_ns: int
    attributes: tuple[tuple[str, bytes], ...]
    is_literal: bool
    """Whether a name that starts with `.wh.` is a file's own."""
    sparse_size: int | None = None
    """The size of a file that is saved without its holes; its content begins with a map."""
    uid: int = 0
    gid: int = 0
    hides_parts_only: bool = False
    """Whether a mark hides something of the same snapshot's other archives, and nothing of the base."""


def open_decompressed(raw: IO[bytes]) -> io.BufferedReader:
    """The decompressed bytes of an archive. A window above 8 MiB raises ZstdError."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    return io.BufferedReader(decompressor.stream_reader(raw), BLOCK_BYTES)


class ReadingLimits:
    """What all archives of a snapshot together may take to read.

    Time counts as this thread's processor time, so that a busy host refuses no more than an idle one.
    """

    def __init__(self, compressed_bytes: int) -> None:
        self._allowed_s = time.thread_time() + _CPU_S + compressed_bytes * _CPU_S_PER_BYTE
        self._members = self._extended = self._paths = 0

    def add_member(self) -> None:
        self._members += 1
        self._allowed_s += _CPU_S_PER_MEMBER
        if self._members > MAX_MEMBERS:
            raise MalformedArchiveError(f"it has more than {MAX_MEMBERS:,} members")

    def add_path(self, path: str) -> None:
        self._paths += len(path)
        if self._paths > MAX_TOTAL_PATH_BYTES:
            raise MalformedArchiveError(f"its paths take more than {MAX_TOTAL_PATH_BYTES >> 20} MiB")

    def add_extended_header(self, size: int) -> None:
        self._extended += size
        if size > MAX_EXTENDED_HEADER_BYTES or self._extended > MAX_TOTAL_EXTENDED_HEADER_BYTES:
            raise MalformedArchiveError("its extended header is too large")

    def require_time(self) -> None:
        if time.thread_time() > self._allowed_s:
            raise MalformedArchiveError("it takes too long to read for its size")


class ArchiveMembers:
    """The members of one archive, one after another. Raises MalformedArchiveError, ZstdError, OSError."""

    def __init__(self, path: Path, raw: IO[bytes], limits: ReadingLimits | None = None) -> None:
        """`limits` are shared with other archives. Default: those of this archive alone."""
        self._stream = open_decompressed(raw)
        self._limits = limits or ReadingLimits(path.stat().st_size)
        self._count = self._left = 0

    def read_base(self) -> str | None:
        """Return the base that the global header names; None without such a header. Read it first."""
        block = self._read_exactly(tarfile.BLOCKSIZE)
        header = _TarHeader(block)
        if header.kind != _GLOBAL:
            return None
        found = self._read_records(header.size)
        if found.keys() != {b"TAKEOVER.base"}:
            raise MalformedArchiveError("its global header names more than a base")
        return found[b"TAKEOVER.base"].decode(_ENCODING, _ERRORS)

    def __iter__(self) -> Iterator[ArchiveMember]:
        while (block := self._read_exactly(tarfile.BLOCKSIZE)) != bytes(tarfile.BLOCKSIZE):
            self._count += 1
            self._limits.add_member()
            try:
                header, more = _TarHeader(block), {}
                if header.kind == _EXTENDED:
                    more = self._read_records(header.size)
                    header = _TarHeader(self._read_exactly(tarfile.BLOCKSIZE))
                member = _parse_member(header, more)
            except MalformedArchiveError as error:
                raise MalformedArchiveError(f"member {self._count:,}: {error}") from error
            self._limits.add_path(member.path)
            self._left = member.size
            yield member
            if self._left:
                raise MalformedArchiveError("its content was not read")
        self._require_end()

    def read_content(self) -> Iterator[bytes]:
        """The content of the member that came last, in blocks."""
        padding = -self._left % tarfile.BLOCKSIZE
        while self._left:
            self._limits.require_time()
            block = self._read_exactly(min(self._left, BLOCK_BYTES))
            self._left -= len(block)
            if not self._left:
                self._read_exactly(padding)
            yield block

    def _read_records(self, size: int) -> dict[bytes, bytes]:
        self._limits.add_extended_header(size)
        body = self._read_exactly(size)
        self._read_exactly(-size % tarfile.BLOCKSIZE)
        return _parse_records(body)

    def _read_exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise MalformedArchiveError("it is truncated")
        return data

    def _require_end(self) -> None:
        left = self._stream.read(tarfile.RECORDSIZE + 1)
        if len(left) > tarfile.RECORDSIZE or left.strip(b"\0"):
            raise MalformedArchiveError("it continues after its end")
        if len(left) < tarfile.BLOCKSIZE:
            raise MalformedArchiveError("it is truncated")


class _TarHeader:
    """One block before the extended header is taken into account."""

    __slots__ = ("gid", "kind", "mode", "mtime", "name", "size", "target", "uid")

    def __init__(self, block: bytes) -> None:
        name, low, high, checksum, self.kind, target, version, owners, device, prefix, rest = _FIELDS.unpack(
            block
        )
        if checksum != b"%06o\0 " % (
            _sum_bytes(block[:256]) + _sum_bytes(block[256:]) - sum(checksum) + 8 * ord(" ")
        ):
            raise MalformedArchiveError("its header's checksum differs")
        if self.kind not in _KINDS and self.kind not in (_EXTENDED, _GLOBAL):
            raise MalformedArchiveError(
                f"{name.rstrip(bytes(1))!r:.80} is of a kind that snapshots do not contain"
            )
        numbers = _NUMBERS.fullmatch(low + high)
        if numbers is None or version != b"ustar\00000" or (owners + prefix + rest + device).strip(b"\0"):
            raise MalformedArchiveError("its header does not have the format of a snapshot")
        self.mode, self.uid, self.gid, self.size, self.mtime = (int(number, 8) for number in numbers.groups())
        self.name, self.target = name.rstrip(b"\0"), target.rstrip(b"\0")


def _sum_bytes(half: bytes) -> int:
    """The sum of at most 256 bytes: the lower half of Adler-32 has it, 30 times as fast as `sum`."""
    return (zlib.adler32(half) & 0xFFFF) - 1


def _parse_records(body: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        length = _LENGTH.match(body, at)
        end = at + int(length[1]) if length is not None else 0
        if length is None or not length.end() < end <= len(body) or body[end - 1] != 0x0A:
            raise MalformedArchiveError("its extended header is malformed")
        key, equals, value = body[length.end() : end - 1].partition(b"=")
        if not equals or key in found:
            raise MalformedArchiveError("its extended header names something twice or without a value")
        found[key] = value
        at = end
    return found


def _parse_member(header: _TarHeader, extended: dict[bytes, bytes]) -> ArchiveMember:
    attributes = []
    for key, value in extended.items():
        if key.startswith(_ATTRIBUTE):
            attributes.append((_parse_attribute_name(key), value))
        elif key not in _KEYS:
            raise MalformedArchiveError(f"its extended header names {key!r:.60}, which no snapshot has")
    path = extended.get(b"path", header.name)
    kind = _KINDS.get(header.kind)
    if kind is None:
        raise MalformedArchiveError(f"{path!r:.80} is of a kind that snapshots do not contain")
    if kind == "directory":
        path = path.removesuffix(b"/")
    target = extended.get(b"linkpath", header.target)
    size = _parse_number(extended, b"size", header.size, 2**63)
    owners = [
        _parse_number(extended, key, default, _MAX_ID)
        for key, default in ((b"uid", header.uid), (b"gid", header.gid))
    ]
    _require_valid_path(path)
    sparse_size = _parse_sparse_size(extended, path) if _SPARSE_SIZE in extended else None
    if ((size or sparse_size is not None) and kind != "file") or (
        attributes and kind not in ("file", "directory")
    ):
        raise MalformedArchiveError(f"{path!r:.80} has a content or attributes that a {kind} has not")
    if (b"\0" in target or not 0 < len(target) <= _MAX_PATH_BYTES) if "link" in kind else target:
        raise MalformedArchiveError(f"{path!r:.80} has no target that a {kind} may have")
    return ArchiveMember(
        path.decode(_ENCODING, _ERRORS),
        kind,
        header.mode & 0o7777,
        size,
        target.decode(_ENCODING, _ERRORS),
        _parse_nanoseconds(extended[b"mtime"]) if b"mtime" in extended else header.mtime * 10**9,
        tuple(attributes),
        b"TAKEOVER.literal" in extended,
        sparse_size,
        owners[0],
        owners[1],
        b"TAKEOVER.parts" in extended,
    )


def _parse_sparse_size(extended: dict[bytes, bytes], path: bytes) -> int:
    """Return the size of a sparse file, which must have the one name and the one form that snapshots have."""
    if {**extended, **_SPARSE_FORM, _SPARSE_NAME: path} != extended:
        raise MalformedArchiveError(f"{path!r:.80} is a sparse file in a form that no snapshot has")
    return _parse_number(extended, _SPARSE_SIZE, 0, 2**63 - 1)


def _require_valid_path(path: bytes) -> None:
    if path == b".":
        return
    names = path.split(b"/")
    if b"\0" in path or not {b"", b".", b".."}.isdisjoint(names):
        raise MalformedArchiveError(f"{path!r:.80} leads out of the snapshot")
    if len(path) > _MAX_PATH_BYTES or len(names) > MAX_DEPTH + 1 or max(map(len, names)) > _MAX_NAME_BYTES:
        raise MalformedArchiveError(f"{path!r:.80}… is too long or too deep for a file's path")


def _parse_attribute_name(key: bytes) -> str:
    name = key.removeprefix(_ATTRIBUTE)
    if not name.startswith(b"user.") or name.startswith(b"user.overlay.") or b"\0" in name:
        raise MalformedArchiveError(f"its attribute {name!r:.60} is one that no snapshot has")
    return name.decode(_ENCODING, _ERRORS)


def _parse_number(extended: dict[bytes, bytes], key: bytes, default: int, maximum: int) -> int:
    text = extended.get(key)
    if text is None:
        return default
    if _WHOLE_NUMBER.fullmatch(text) is None or int(text) > maximum:
        raise MalformedArchiveError(f"its {key.decode()} {text!r:.40} is not a number from 0 to {maximum}")
    return int(text)


def _parse_nanoseconds(text: bytes) -> int:
    """A time that the kernel can be asked to set, which has 64 bits for the seconds."""
    found = _TIME.fullmatch(text)
    if found is None or int(found[2]) >= 2**63:
        raise MalformedArchiveError(f"its time {text!r:.40} is not a valid time of a file")
    nanoseconds = int(found[2]) * 10**9 + int((found[3] or b"").ljust(9, b"0"))
    return -nanoseconds if found[1] else nanoseconds


class DigestsByPath(Mapping[str, "str | None"]):
    """SHA-256 by path; None if a sandbox reports another. Paths come in the order of an archive.

    Takes 41 bytes per entry, plus its path.
    """

    FILE, UNREPORTED, LINK = range(3)

    def __init__(self) -> None:
        self._keys = bytearray()
        self._ends = array("Q")
        self._digests = bytearray()
        self._kinds = bytearray()

    def add(self, key: bytes, digest: bytes, kind: int) -> None:
        """Add a path, as `sort_key` gives it, behind all others."""
        self._keys += key
        self._ends.append(len(self._keys))
        self._digests += digest
        self._kinds.append(kind)

    def find_file(self, path: str) -> tuple[bytes, int] | None:
        """Return the digest of a regular file's content and its kind; None if this path is not a regular file."""
        at = self._find_index(path)
        if at is None or self._kinds[at] == self.LINK:
            return None
        return self._digest_at(at), self._kinds[at]

    def __getitem__(self, path: str) -> str | None:
        at = self._find_index(path)
        if at is None:
            raise KeyError(path)
        return None if self._kinds[at] == self.UNREPORTED else self._digest_at(at).hex()

    def __iter__(self) -> Iterator[str]:
        for at in range(len(self)):
            yield self._key_at(at).replace(b"\0", b"/").decode(_ENCODING, _ERRORS)

    def __len__(self) -> int:
        return len(self._ends)

    def _find_index(self, path: str) -> int | None:
        key = sort_key(path)
        at = bisect.bisect_left(range(len(self)), key, key=self._key_at)
        return at if at < len(self) and self._key_at(at) == key else None

    def _key_at(self, index: int) -> bytes:
        return bytes(self._keys[self._ends[index - 1] if index else 0 : self._ends[index]])

    def _digest_at(self, index: int) -> bytes:
        return bytes(self._digests[32 * index : 32 * index + 32])


def sort_key(path: str) -> bytes:
    """Return the sort key of paths in an archive: a directory before its content, and that before its next sibling."""
    return path.encode(_ENCODING, _ERRORS).replace(b"/", b"\0")
