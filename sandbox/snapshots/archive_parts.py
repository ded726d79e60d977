"""Snapshots whose content is in several archives: the list of their parts, and the parts' members merged.

A part is an immutable archive of the difference between two snapshots, named by the digest of its bytes. Each directory
that has a snapshot has all its parts, as hard links where that is possible. So a part exists as long as a snapshot
names it, and removing a directory takes no part from another.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import heapq
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from pydantic import Field, ValidationError

from langgraph_takeover.base.failures import clean_up, sync_directory
from langgraph_takeover.base.untrusted_input import parse_document
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.sandbox.snapshots.archive_format import (
    MAX_LAYER_BYTES,
    MAX_PARTS,
    OPAQUE_MARK,
    PART_SUFFIX,
    ROOT_NAME,
    WHITEOUT_PREFIX,
    part_name,
)
from langgraph_takeover.sandbox.snapshots.archive_members import (
    ArchiveMember,
    ArchiveMembers,
    MalformedArchiveError,
    sort_key,
)

_HEAD = struct.Struct("<II")
"""Magic number and length of a frame that programs for zstd skip, so that the file is an archive of nothing to them."""
_MAGIC = 0x184D2A5B
_MAX_LIST_BYTES = 64 * 1024
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
_COPIED_BYTES = 1 << 30
_DIRECTORIES = frozenset({"directory", "opaque", "cleared"})


class ArchivePart(Frozen):
    """One archive of a snapshot."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of its bytes, which names its file."""
    size_bytes: int = Field(ge=0, le=MAX_LAYER_BYTES)

    @property
    def name(self) -> str:
        return part_name(self.sha256)


class PartList(Frozen):
    """The content of the file of a snapshot that consists of parts."""

    parts: tuple[ArchivePart, ...] = Field(min_length=2, max_length=MAX_PARTS)
    """The newest first; it hides what the others have at its paths."""


def read_part_list(raw: IO[bytes]) -> PartList | None:
    """Read the list at the start of an open file; None if the file is an archive. Raises MalformedArchiveError."""
    head = raw.read(_HEAD.size)
    if len(head) < _HEAD.size or _HEAD.unpack(head)[0] != _MAGIC:
        raw.seek(0)
        return None
    size = _HEAD.unpack(head)[1]
    text = raw.read(min(size, _MAX_LIST_BYTES) + 1)
    if len(text) != size:
        raise MalformedArchiveError("its list of parts has another length than it says")
    try:
        found = PartList.model_validate(parse_document(text))
    except (ValidationError, ValueError) as error:
        raise MalformedArchiveError("its list of parts is malformed") from error
    if len({part.sha256 for part in found.parts}) < len(found.parts):
        raise MalformedArchiveError("its list of parts names one twice")
    return found


def find_part_list(archive: Path) -> PartList | None:
    """Return the list in a snapshot's file; None if the file is an archive. Raises OSError and MalformedArchiveError."""
    descriptor = os.open(archive, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as raw:
        return read_part_list(raw)


def write_part_list(found: PartList, archive: Path) -> None:
    """Write the list as a snapshot's file, durably. All parts must be durable in its directory before."""
    text = found.model_dump_json().encode()
    partial = archive.with_name(f".{secrets.token_hex(8)}.partial")
    with clean_up(lambda: partial.unlink(missing_ok=True)):
        with partial.open("xb") as out:
            out.write(_HEAD.pack(_MAGIC, len(text)) + text)
            out.flush()
            os.fsync(out.fileno())
        partial.replace(archive)
        sync_directory(archive.parent)


class SizeOfSnapshot(NamedTuple):
    """Bytes of a snapshot's files."""

    total: int
    written: int
    """Of those that no earlier snapshot has."""


def measure_archive(archive: Path) -> SizeOfSnapshot:
    """Return the size of a snapshot's files. Raises OSError and MalformedArchiveError."""
    own = archive.lstat().st_size
    found = find_part_list(archive)
    if found is None:
        return SizeOfSnapshot(own, own)
    return SizeOfSnapshot(own + sum(part.size_bytes for part in found.parts), own + found.parts[0].size_bytes)


@contextlib.contextmanager
def hold_store(store: Path) -> Iterator[int]:
    """Yield a descriptor of a directory in which no part is removed meanwhile, although no snapshot names it yet."""
    descriptor = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(
            OSError
        ):  # a file system without locks: `remove_unused_part` removes nothing there
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


def list_unused_parts(store: Path) -> list[Path]:
    """List the parts in a directory that no snapshot there names; none if a snapshot's file cannot be read."""
    parts = [*store.glob(f"*{PART_SUFFIX}")]
    used: set[str] = set()
    for archive in store.glob("*.tar.zst") if parts else ():
        try:
            found = find_part_list(archive)
        except (OSError, MalformedArchiveError):
            return []
        used |= {part.name for part in found.parts} if found is not None else set()
    return [part for part in parts if part.name not in used]


def remove_unused_part(part: Path) -> bool:
    """Remove a part unless a snapshot names it or one is being written beside it; return whether it is removed."""
    descriptor = os.open(part.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if part not in list_unused_parts(part.parent):
            return False
        part.unlink(missing_ok=True)
        return True
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.ENOLCK, errno.EOPNOTSUPP):
            return False
        raise
    finally:
        os.close(descriptor)


def link_or_copy(source: Path | str, target: Path, *, directory: int | None = None) -> None:
    """Give a file a second name, or copy it, durably, where it cannot have one. An existing target is kept.

    `source` is relative to the open `directory`. The caller syncs the target's directory. Raises OSError.
    """
    with contextlib.suppress(FileExistsError):
        try:
            os.link(source, target, src_dir_fd=directory)
            return
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
        partial = target.with_name(f".{secrets.token_hex(8)}.partial")
        with clean_up(lambda: partial.unlink(missing_ok=True)):
            descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            with os.fdopen(descriptor, "rb") as content, partial.open("xb") as out:
                while os.sendfile(out.fileno(), content.fileno(), None, _COPIED_BYTES):
                    pass
                os.fsync(out.fileno())
            partial.replace(target)


class ContentEntry(NamedTuple):
    """One path of an archive, with the reader of its content."""

    member: ArchiveMember
    kind: str
    """That of the member; or as in a `Difference`: `opaque`, `gone`, and in a part `cleared` or `masked`."""
    reader: ArchiveMembers

    def skip_content(self) -> None:
        if self.kind == "file":  # the reader of a directory may be at the next member already
            for _ in self.reader.read_content():
                pass


def list_content(members: ArchiveMembers) -> Iterator[ContentEntry]:
    """Yield the entries of one archive. A mark becomes the kind of what it marks. Raises MalformedArchiveError."""
    waiting: ArchiveMember | None = None  # a directory, until it is known whether it is opaque
    for number, member in enumerate(members):
        if member.path == ROOT_NAME:
            _require(number == 0 and member.kind == "directory", ROOT_NAME, "is not at the start")
            continue
        parent, _, name = member.path.rpartition("/")
        is_mark = name.startswith(WHITEOUT_PREFIX) and not member.is_literal
        _require(not is_mark or (member.kind == "file" and not member.size), member.path, "is no mark")
        _require(is_mark or not member.hides_parts_only, member.path, "is no mark")
        if is_mark and name == OPAQUE_MARK:
            _require(waiting is not None and waiting.path == parent, parent, "is hidden by nothing")
            assert waiting is not None
            yield ContentEntry(waiting, "cleared" if member.hides_parts_only else "opaque", members)
            waiting = None
            continue
        if waiting is not None:
            yield ContentEntry(waiting, "directory", members)
            waiting = None
        if is_mark:
            path = f"{parent}/{name.removeprefix(WHITEOUT_PREFIX)}".lstrip("/")
            kind = "masked" if member.hides_parts_only else "gone"
            yield ContentEntry(member._replace(path=path), kind, members)
        elif member.kind == "directory":
            waiting = member
        else:
            yield ContentEntry(member, member.kind, members)
    if waiting is not None:
        yield ContentEntry(waiting, "directory", members)


def _require(condition: bool, path: str, problem: str) -> None:
    if not condition:
        raise MalformedArchiveError(f"{path!r:.80} {problem}")


class _Scope(NamedTuple):
    """A path and how far down the parts are visible below it."""

    prefix: bytes
    last_part: int


def merge_parts(parts: Sequence[Iterator[ContentEntry]]) -> Iterator[ContentEntry]:
    """Yield the entries of a whole snapshot from those of its parts, the newest first, in the order of an archive.

    Raises MalformedArchiveError, also for a part whose entries are out of order.
    """
    current: list[ContentEntry] = []
    heads: list[tuple[bytes, int]] = []
    for index, part in enumerate(parts):
        first = next(part, None)
        current.append(first)  # type: ignore[arg-type]
        if first is not None:
            heads.append((sort_key(first.member.path), index))
    heapq.heapify(heads)
    scopes = [_Scope(b"", len(parts) - 1)]
    while heads:
        key = heads[0][0]
        at_key: list[int] = []
        while heads and heads[0][0] == key:
            at_key.append(heapq.heappop(heads)[1])
        while not key.startswith(scopes[-1].prefix):
            scopes.pop()
        visible = [index for index in at_key if index <= scopes[-1].last_part]
        if visible:
            found, last_part = _merge_entries(
                [(index, current[index]) for index in visible], scopes[-1].last_part
            )
            scopes.append(_Scope(key + b"\0", last_part))
            if found.kind != "masked":
                yield found
        for index in at_key:
            current[index].skip_content()
            following = next(parts[index], None)
            if following is not None:
                after = sort_key(following.member.path)
                _require(after > key, following.member.path, "is out of order")
                current[index] = following
                heapq.heappush(heads, (after, index))


def _merge_entries(entries: Sequence[tuple[int, ContentEntry]], last_part: int) -> tuple[ContentEntry, int]:
    """Return what several parts have at one path, and the last part of which something is visible below it."""
    newest, first = entries[0]
    if first.kind not in _DIRECTORIES:
        return first, newest - 1
    for index, entry in entries:
        if entry.kind not in _DIRECTORIES:
            return first._replace(kind="directory"), index - 1
        if entry.kind != "directory":
            return first._replace(kind="opaque" if entry.kind == "opaque" else "directory"), index
    return first._replace(kind="directory"), last_part
