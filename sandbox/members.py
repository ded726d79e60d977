"""Members of a snapshot's archive, read as strictly as `archive.write` writes them.

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

from sandbox.layers import DEEPEST

MOST_MEMBERS = 1_000_000
LONGEST_EXTENDED_HEADER = 1024**2
"""The extended header of one member in bytes: long names, times and attributes. Docker takes no more either."""
LARGEST_EXTENDED_HEADERS = 256 * 1024**2
"""Those of all members together."""
LONGEST_PATHS = 128 * 1024**2
"""The paths of all members together, in bytes."""
_LARGEST_WINDOW = 8 * 1024**2
_LONGEST_PATH, _LONGEST_NAME = 4095, 255
_LARGEST_ID = 2**32 - 2
_CPU_S, _CPU_S_PER_BYTE, _CPU_S_PER_MEMBER = 60.0, 1 / 2**20, 0.001
_BLOCK = 256 * 1024
_ENCODING, _ERRORS = "utf-8", "surrogateescape"
_KINDS = {b"0": "file", b"1": "hard link", b"2": "link", b"5": "directory", b"6": "fifo"}
_EXTENDED, _GLOBAL = b"x", b"g"
_ATTRIBUTE = b"SCHILY.xattr."
_KEYS = {b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime", b"hdrcharset", b"TAKEOVER.literal"}
# Names, modes, owners, size, time, checksum, kind, target, version, names of owners, device, prefix, filler.
_FIELDS = struct.Struct("100s24s24s8s1s100s8s64s16s155s12s")
_NUMBERS = re.compile(rb"([0-7]{7})\0([0-7]{7})\0([0-7]{7})\0([0-7]{11})\0([0-7]{11})\0")
_LENGTH = re.compile(rb"([1-9][0-9]{0,7}) ")
_WHOLE = re.compile(rb"[0-9]{1,19}")
_TIME = re.compile(rb"(-?)([0-9]{1,19})(?:\.([0-9]{1,9}))?")


class MalformedArchiveError(ValueError):
    """The archive is not one that a snapshot is written as."""


class Member(NamedTuple):
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
    """Whether a name that begins with `.wh.` is a file's own."""


def unpacked(raw: IO[bytes]) -> io.BufferedReader:
    """The decompressed bytes of an archive. A window above 8 MiB raises ZstdError."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    return io.BufferedReader(decompressor.stream_reader(raw), _BLOCK)


class Members:
    """The members of one archive, one after another. Raises MalformedArchiveError, ZstdError, OSError.

    Time counts as this thread's processor time, so that a busy host refuses no more than an idle one.
    """

    def __init__(self, place: Path, raw: IO[bytes]) -> None:
        self._stream = unpacked(raw)
        self._allowed_s = time.thread_time() + _CPU_S + place.stat().st_size * _CPU_S_PER_BYTE
        self._count = self._extended = self._paths = self._left = 0

    def base(self) -> str | None:
        """The base that the global header at the beginning names; None without such a header. Read it first."""
        block = self._exactly(tarfile.BLOCKSIZE)
        header = _Header(block)
        if header.kind != _GLOBAL:
            return None
        found = self._records(header.size)
        if found.keys() != {b"TAKEOVER.base"}:
            raise MalformedArchiveError("its global header names more than a base")
        return found[b"TAKEOVER.base"].decode(_ENCODING, _ERRORS)

    def __iter__(self) -> Iterator[Member]:
        while (block := self._exactly(tarfile.BLOCKSIZE)) != bytes(tarfile.BLOCKSIZE):
            self._count += 1
            self._allowed_s += _CPU_S_PER_MEMBER
            if self._count > MOST_MEMBERS:
                raise MalformedArchiveError(f"it has more than {MOST_MEMBERS:,} members")
            try:
                header, more = _Header(block), {}
                if header.kind == _EXTENDED:
                    more = self._records(header.size)
                    header = _Header(self._exactly(tarfile.BLOCKSIZE))
                member = _member(header, more)
            except MalformedArchiveError as error:
                raise MalformedArchiveError(f"member {self._count:,}: {error}") from error
            self._paths += len(member.path)
            if self._paths > LONGEST_PATHS:
                raise MalformedArchiveError(f"its paths take more than {LONGEST_PATHS >> 20} MiB")
            self._left = member.size
            yield member
            if self._left:
                raise MalformedArchiveError("its content was not read")
        self._require_end()

    def content(self) -> Iterator[bytes]:
        """The content of the member that came last, in blocks."""
        padding = -self._left % tarfile.BLOCKSIZE
        while self._left:
            if time.thread_time() > self._allowed_s:
                raise MalformedArchiveError("it takes too long to read for its size")
            block = self._exactly(min(self._left, _BLOCK))
            self._left -= len(block)
            yield block
        self._exactly(padding)

    def _records(self, size: int) -> dict[bytes, bytes]:
        self._extended += size
        if size > LONGEST_EXTENDED_HEADER or self._extended > LARGEST_EXTENDED_HEADERS:
            raise MalformedArchiveError("its extended header is too large")
        body = self._exactly(size)
        self._exactly(-size % tarfile.BLOCKSIZE)
        return _records(body)

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise MalformedArchiveError("it is cut short")
        return data

    def _require_end(self) -> None:
        left = self._stream.read(tarfile.RECORDSIZE + 1)
        if len(left) > tarfile.RECORDSIZE or left.strip(b"\0"):
            raise MalformedArchiveError("it goes on after its end")
        if len(left) < tarfile.BLOCKSIZE:
            raise MalformedArchiveError("it is cut short")


class _Header:
    """One block before the extended header is taken into account."""

    __slots__ = ("gid", "kind", "mode", "mtime", "name", "size", "target", "uid")

    def __init__(self, block: bytes) -> None:
        name, low, high, told, self.kind, target, version, owners, device, prefix, rest = _FIELDS.unpack(
            block
        )
        if told != b"%06o\0 " % (_sum(block[:256]) + _sum(block[256:]) - sum(told) + 8 * ord(" ")):
            raise MalformedArchiveError("its header's checksum differs")
        if self.kind not in _KINDS and self.kind not in (_EXTENDED, _GLOBAL):
            raise MalformedArchiveError(f"{name.rstrip(bytes(1))!r:.80} is of a kind that no snapshot holds")
        numbers = _NUMBERS.fullmatch(low + high)
        if numbers is None or version != b"ustar\00000" or (owners + prefix + rest + device).strip(b"\0"):
            raise MalformedArchiveError("its header is not one that a snapshot has")
        self.mode, self.uid, self.gid, self.size, self.mtime = (int(number, 8) for number in numbers.groups())
        self.name, self.target = name.rstrip(b"\0"), target.rstrip(b"\0")


def _sum(half: bytes) -> int:
    """The sum of at most 256 bytes: the lower half of Adler-32 has it, 30 times as fast as `sum`."""
    return (zlib.adler32(half) & 0xFFFF) - 1


def _records(body: bytes) -> dict[bytes, bytes]:
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


def _member(header: _Header, more: dict[bytes, bytes]) -> Member:
    attributes = []
    for key, value in more.items():
        if key.startswith(_ATTRIBUTE):
            attributes.append((_attribute(key), value))
        elif key not in _KEYS:
            raise MalformedArchiveError(f"its extended header names {key!r:.60}, which no snapshot has")
    path = more.get(b"path", header.name)
    kind = _KINDS.get(header.kind)
    if kind is None:
        raise MalformedArchiveError(f"{path!r:.80} is of a kind that no snapshot holds")
    if kind == "directory":
        path = path.removesuffix(b"/")
    target = more.get(b"linkpath", header.target)
    size = _number(more, b"size", header.size, 2**63)
    for key in (b"uid", b"gid"):
        _number(more, key, 0, _LARGEST_ID)
    _require_path(path)
    if (size and kind != "file") or (attributes and kind not in ("file", "directory")):
        raise MalformedArchiveError(f"{path!r:.80} has a content or attributes that a {kind} has not")
    if (b"\0" in target or not 0 < len(target) <= _LONGEST_PATH) if "link" in kind else target:
        raise MalformedArchiveError(f"{path!r:.80} has no target that a {kind} may have")
    return Member(
        path.decode(_ENCODING, _ERRORS),
        kind,
        header.mode & 0o7777,
        size,
        target.decode(_ENCODING, _ERRORS),
        _nanoseconds(more[b"mtime"]) if b"mtime" in more else header.mtime * 10**9,
        tuple(attributes),
        b"TAKEOVER.literal" in more,
    )


def _require_path(path: bytes) -> None:
    if path == b".":
        return
    names = path.split(b"/")
    if b"\0" in path or not {b"", b".", b".."}.isdisjoint(names):
        raise MalformedArchiveError(f"{path!r:.80} leads out of the snapshot")
    if len(path) > _LONGEST_PATH or len(names) > DEEPEST + 1 or max(map(len, names)) > _LONGEST_NAME:
        raise MalformedArchiveError(f"{path!r:.80}… is too long or too deep for a file's path")


def _attribute(key: bytes) -> str:
    name = key.removeprefix(_ATTRIBUTE)
    if not name.startswith(b"user.") or name.startswith(b"user.overlay.") or b"\0" in name:
        raise MalformedArchiveError(f"its attribute {name!r:.60} is one that no snapshot has")
    return name.decode(_ENCODING, _ERRORS)


def _number(more: dict[bytes, bytes], key: bytes, default: int, largest: int) -> int:
    text = more.get(key)
    if text is None:
        return default
    if _WHOLE.fullmatch(text) is None or int(text) > largest:
        raise MalformedArchiveError(f"its {key.decode()} {text!r:.40} is no number from 0 to {largest}")
    return int(text)


def _nanoseconds(text: bytes) -> int:
    """A time that the kernel can be asked to set, which has 64 bits for the seconds."""
    found = _TIME.fullmatch(text)
    if found is None or int(found[2]) >= 2**63:
        raise MalformedArchiveError(f"its time {text!r:.40} is no time that a file can have")
    nanoseconds = int(found[2]) * 10**9 + int((found[3] or b"").ljust(9, b"0"))
    return -nanoseconds if found[1] else nanoseconds


class Sums(Mapping[str, "str | None"]):
    """SHA-256 by path; None where a sandbox reports another. Paths come in the order of an archive.

    Takes 41 bytes for each, and its path.
    """

    FILE, UNTOLD, LINK = range(3)

    def __init__(self) -> None:
        self._keys = bytearray()
        self._ends = array("Q")
        self._sums = bytearray()
        self._kinds = bytearray()

    def add(self, key: bytes, digest: bytes, kind: int) -> None:
        """Add a path, as `order` gives it, behind all others."""
        self._keys += key
        self._ends.append(len(self._keys))
        self._sums += digest
        self._kinds.append(kind)

    def of_file(self, path: str) -> tuple[bytes, int] | None:
        """The digest of a regular file's content and its kind; None where no regular file has this path."""
        at = self._find(path)
        if at is None or self._kinds[at] == self.LINK:
            return None
        return self._sum(at), self._kinds[at]

    def __getitem__(self, path: str) -> str | None:
        at = self._find(path)
        if at is None:
            raise KeyError(path)
        return None if self._kinds[at] == self.UNTOLD else self._sum(at).hex()

    def __iter__(self) -> Iterator[str]:
        for at in range(len(self)):
            yield self._key(at).replace(b"\0", b"/").decode(_ENCODING, _ERRORS)

    def __len__(self) -> int:
        return len(self._ends)

    def _find(self, path: str) -> int | None:
        key = order(path)
        at = bisect.bisect_left(range(len(self)), key, key=self._key)
        return at if at < len(self) and self._key(at) == key else None

    def _key(self, at: int) -> bytes:
        return bytes(self._keys[self._ends[at - 1] if at else 0 : self._ends[at]])

    def _sum(self, at: int) -> bytes:
        return bytes(self._sums[32 * at : 32 * at + 32])


def order(path: str) -> bytes:
    """What paths are sorted by in an archive: a directory before what it holds, and that before its next sibling."""
    return path.encode(_ENCODING, _ERRORS).replace(b"/", b"\0")
