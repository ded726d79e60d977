"""Verify a snapshot's archive and unpack it into an overlay directory."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import IO, Any, NamedTuple

import zstandard

from langgraph_takeover.sandbox.changes.change_report import MAX_HASHED_FILE_BYTES
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError, SnapshotCorruptError
from langgraph_takeover.sandbox.snapshots.archive_format import (
    MAX_LAYER_BYTES,
    WHITEOUT_PREFIX,
    ZEROS,
    MapReader,
    WholeReader,
)
from langgraph_takeover.sandbox.snapshots.archive_members import (
    ArchiveMember,
    ArchiveMembers,
    DigestsByPath,
    ReadingLimits,
    sort_key,
)
from langgraph_takeover.sandbox.snapshots.archive_parts import (
    ContentEntry,
    list_content,
    merge_parts,
    read_part_list,
)
from langgraph_takeover.sandbox.snapshots.differences import ContentDigest, SavedEntries

_PAGE = 4096
_MIN_FREE_PAGES = 1024  # more than any attribute needs


class Entry(NamedTuple):
    """One name in an archive, as far as another archive's can be equal to it."""

    kind: str
    """`file`, `link`, `fifo`, `directory`, `opaque` (a directory that hides the base's) or `gone`."""
    mode: int
    payload: bytes
    """Digest of a file, target of a link; empty for others."""
    size: int


class ArchiveContents(NamedTuple):
    """The content of an archive, by path."""

    files: Mapping[str, str | None]
    """Files and links with the SHA-256 that a sandbox reports for them; None if it reports another."""
    hidden: Set[str]
    """Paths at which the base's content is deleted, including everything below."""
    literal_path: str | None
    """A path whose name Docker takes for a mark of its layers."""


def verify(
    archive: Path,
    *,
    digest: str,
    base_digest: str,
    max_bytes: int | None = None,
    saved: SavedEntries | None = None,
) -> ArchiveContents:
    """Read the whole archive. Raises SnapshotCorruptError if it does not match these digests,
    OutOfDiskError if its files take more than `max_bytes` bytes, holes included. `saved` gets each entry.
    """
    return _read(
        archive, None, None, digest=digest, base_digest=base_digest, max_bytes=max_bytes, saved=saved
    )


def list_entries(archive: Path, *, digest: str, base_digest: str) -> dict[str, Entry]:
    """Return everything in an archive by path, in its order. Raises what `verify` raises."""
    entries: dict[str, Entry] = {}
    _read(archive, None, None, digest=digest, base_digest=base_digest, max_bytes=None, entries=entries)
    return entries


def unpack(
    archive: Path,
    target: Path,
    *,
    digest: str,
    base_digest: str,
    owner: int | None = None,
    max_bytes: int = MAX_LAYER_BYTES,
) -> None:
    """Unpack an archive into an overlay directory, every file owned by `owner`. The archive is hostile until verified.

    Raises SnapshotCorruptError if a path leaves `target`, if a member is of a kind that no agent can create, or if the
    archive is truncated or does not match its digests. Raises OutOfDiskError if the disk is full or more than
    `max_bytes` bytes (holes excluded) would be written. `target` must be empty; after an error it is incomplete.
    """
    _read(archive, target, owner, digest=digest, base_digest=base_digest, max_bytes=max_bytes)


def _open_file(archive: Path) -> IO[bytes]:
    """The archive, open. Raises SnapshotCorruptError if it is not a regular file, OSError."""
    descriptor = os.open(archive, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SnapshotCorruptError(f"{archive}: is not a regular file")
    return os.fdopen(descriptor, "rb")


def _read(
    archive: Path,
    target: Path | None,
    owner: int | None,
    *,
    digest: str,
    base_digest: str,
    max_bytes: int | None,
    entries: dict[str, Entry] | None = None,
    saved: SavedEntries | None = None,
) -> ArchiveContents:
    with open_content(archive, base_digest) as content:
        reader = _ArchiveReader(archive, content, target, owner, max_bytes, entries, saved)
        found = reader.read()
    if found != digest:
        raise SnapshotCorruptError(
            f"{archive}: has digest {_shorten(found)}, but the snapshot says {_shorten(digest)}"
        )
    return ArchiveContents(reader.files, reader.hidden, reader.literal_path)


@contextlib.contextmanager
def open_content(archive: Path, base_digest: str) -> Iterator[Iterator[ContentEntry]]:
    """Yield the entries of a snapshot's file for a base, those of all its parts merged.

    Errors of reading become SnapshotCorruptError or OutOfDiskError.
    """
    with contextlib.ExitStack() as stack, translate_reading_errors(archive):
        raw = stack.enter_context(_open_file(archive))
        found = read_part_list(raw)
        if found is None:
            yield list_content(_open_members(archive, raw, base_digest, None))
            return
        limits = ReadingLimits(sum(part.size_bytes for part in found.parts))
        contents = []
        for part in found.parts:
            path = archive.with_name(part.name)
            raw = stack.enter_context(_open_part(path, part.size_bytes))
            contents.append(list_content(_open_members(path, raw, base_digest, limits)))
        yield merge_parts(contents)


def _open_part(path: Path, size: int) -> IO[bytes]:
    try:
        raw = _open_file(path)
    except FileNotFoundError as error:
        raise SnapshotCorruptError(
            f"{path}: a part of the snapshot is missing (restore it from a copy)"
        ) from error
    found = os.fstat(raw.fileno()).st_size
    if found != size:
        raw.close()
        raise SnapshotCorruptError(f"{path}: has {found:,} bytes, but the snapshot says {size:,}")
    return raw


def _open_members(
    path: Path, raw: IO[bytes], base_digest: str, limits: ReadingLimits | None
) -> ArchiveMembers:
    members = ArchiveMembers(path, raw, limits)
    base = members.read_base()
    if base != base_digest:
        raise SnapshotCorruptError(f"{path}: made for base {_shorten(base)}, not for {_shorten(base_digest)}")
    return members


@contextlib.contextmanager
def translate_reading_errors(archive: Path) -> Iterator[None]:
    """Translate errors of reading a snapshot's file. Raises SnapshotCorruptError and OutOfDiskError."""
    try:
        yield
    except SandboxUnavailableError:
        raise  # one of the errors below
    except FileNotFoundError as error:
        raise SnapshotCorruptError(
            f"{archive}: the snapshot's archive is missing (restore it from a copy)"
        ) from error
    except (zstandard.ZstdError, ValueError) as error:
        raise SnapshotCorruptError(f"{archive}: cannot be unpacked: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfDiskError(f"{archive}: the disk is full; the snapshot was not unpacked") from error
        raise SnapshotCorruptError(f"{archive}: cannot be unpacked: {error}") from error


def iterate_content(archive: Path, base_digest: str) -> Iterator[ContentEntry]:
    """Yield each entry of a snapshot's file that was verified before, with the reader of its content.

    Content that the caller leaves unread is skipped. Raises what `verify` raises.
    """
    with open_content(archive, base_digest) as content:
        for entry in content:
            yield entry
            entry.skip_content()


class _ArchiveReader:
    """Reads entries in their one order, so that it keeps only the directories on the current path."""

    def __init__(
        self,
        archive: Path,
        content: Iterator[ContentEntry],
        target: Path | None,
        owner: int | None,
        max_bytes: int | None,
        entries: dict[str, Entry] | None = None,
        saved: SavedEntries | None = None,
    ) -> None:
        self._entries = entries
        self._saved = saved
        self._archive = archive
        self._content = content
        self._target = target
        self._owner = owner
        self._max_bytes = max_bytes
        self._digest = ContentDigest()
        self._last_key = b""
        self._open_directories: list[ArchiveMember] = []  # the directories on the way to the last member
        self._closed_modes: list[tuple[Path, int]] = []
        self._size = self._written = 0
        self.files = DigestsByPath()
        self.hidden: set[str] = set()
        self.literal_path: str | None = None

    def read(self) -> str:
        for entry in self._content:
            member, kind, self._members = entry
            parent, _, name = member.path.rpartition("/")
            if name.startswith(WHITEOUT_PREFIX):
                self.literal_path = self.literal_path or member.path
            self._enter(member.path, parent, name)
            if kind == "directory":
                self._read_directory(member, kind)
            elif kind == "opaque":
                self._read_directory(member, kind)
                self.hidden.add(member.path)
            else:
                self._require(
                    kind not in ("cleared", "masked"), member.path, "belongs to a part of a snapshot"
                )
                self._read_member(member, kind)
        self._close_directories("")
        for path, mode in reversed(self._closed_modes):
            path.chmod(mode)
        return self._digest.hexdigest()

    def _require(self, condition: bool, path: str, problem: str) -> None:
        if not condition:
            raise SnapshotCorruptError(f"{self._archive}: {path!r:.80} {problem}")

    def _enter(self, path: str, parent: str, name: str) -> None:
        """Enter a path. Raise if it leaves the tree that the archive itself has built so far."""
        key = sort_key(path)
        self._require(
            key != self._last_key and name not in ("", ".", ".."), path, "occurs twice or has no name"
        )
        self._close_directories(parent)
        top = self._open_directories[-1].path if self._open_directories else ""
        self._require(top == parent, path, "is not in a directory of the snapshot")
        self._require(key > self._last_key, path, "is out of order")
        self._last_key = key

    def _close_directories(self, path: str) -> None:
        """Finish the directories that do not lead to a path. They get no more members."""
        while self._open_directories and not f"{path}/".startswith(f"{self._open_directories[-1].path}/"):
            directory = self._open_directories.pop()
            if self._target is None:
                continue
            target, mode = self._target / directory.path, directory.mode
            if mode & stat.S_IRWXU != stat.S_IRWXU:  # a hard link may still lead through it
                self._closed_modes.append((target, mode))
                mode |= stat.S_IRWXU
            self._set_metadata(directory, target, mode)

    def _read_directory(self, member: ArchiveMember, kind: str) -> None:
        self._add(member, kind, b"")
        self._open_directories.append(member._replace(attributes=()))
        if self._target is not None:
            target = self._target / member.path
            target.mkdir(mode=0o700)
            if kind == "opaque":
                os.setxattr(target, "user.overlay.opaque", b"y")
            self._set_attributes(member, target)

    def _read_member(self, member: ArchiveMember, kind: str) -> None:
        path, key = member.path, self._last_key
        target = self._target / path if self._target is not None else None
        payload = b""
        if kind == "file":
            payload = self._copy_content(member, target)
            is_small = member.sparse_size is None and member.size <= MAX_HASHED_FILE_BYTES
            is_told = is_small and member.mode & 0o400
            self.files.add(key, payload, DigestsByPath.FILE if is_told else DigestsByPath.UNREPORTED)
        elif kind == "hard link":
            origin = self.files.find_file(member.target)
            if origin is None:
                raise SnapshotCorruptError(
                    f"{self._archive}: {path!r:.80} is a link to no file of the snapshot"
                )
            payload, kind = origin[0], "file"
            self.files.add(key, *origin)
            if self._target is not None and target is not None:
                target.hardlink_to(self._target / member.target)
                target = None  # its owner, mode and times are the first name's
        elif kind == "link":
            payload = os.fsencode(member.target)
            self.files.add(key, hashlib.sha256(b"symlink:" + payload).digest(), DigestsByPath.LINK)
            if target is not None:
                target.symlink_to(member.target)
        else:
            self.hidden.add(path)
            if kind == "fifo" and target is not None:
                os.mkfifo(target)
            elif target is not None:
                os.mknod(target, stat.S_IFCHR, 0)
                target = None
        if target is not None:
            self._set_attributes(member, target)
            self._set_metadata(member, target, member.mode)
        self._add(member, kind, payload)

    def _add(self, member: ArchiveMember, kind: str, payload: bytes) -> None:
        self._digest.add(member.path, kind, member.mode, payload)
        if self._saved is not None:
            self._saved.add(member.path, kind, member.mode, payload)
            if member.kind == "hard link":
                self._saved.add_link(member.path, member.target)
        if self._entries is not None:
            self._entries[member.path] = Entry(kind, member.mode, payload, member.size)

    def _copy_content(self, member: ArchiveMember, target_path: Path | None) -> bytes:
        self._size += member.size
        if self._size > MAX_LAYER_BYTES:
            raise SnapshotCorruptError(f"{self._archive}: holds more than {MAX_LAYER_BYTES >> 30} GiB")
        size = member.size if member.sparse_size is None else member.sparse_size
        if target_path is None and self._max_bytes is not None:
            self._written += size
            self._require_within_limit()
        blocks = self._members.read_content() if member.size else iter(())
        with target_path.open("xb") if target_path is not None else contextlib.nullcontext() as out:
            content = MapReader(size, blocks) if member.sparse_size is not None else WholeReader(blocks)
            for start, block in content:
                if out is not None:
                    out.seek(start)
                    self._written += _write_sparse(out, block)
                    self._require_within_limit()
            if out is not None:
                out.truncate(size)
        return content.digest()

    def _require_within_limit(self) -> None:
        if self._max_bytes is not None and self._written > self._max_bytes:
            raise OutOfDiskError(
                f"{self._archive}: the snapshot holds more than {self._max_bytes >> 20:,} MB, the sandbox's limit; "
                "raise disk_mb"
            )

    def _set_attributes(self, member: ArchiveMember, target_path: Path) -> None:
        for name, value in member.attributes:
            try:
                os.setxattr(target_path, name, value)
            except OSError as error:
                if error.errno != errno.ENOSPC or os.statvfs(target_path).f_bavail < _MIN_FREE_PAGES:
                    raise
                raise SnapshotCorruptError(
                    f"{self._archive}: {member.path!r:.80} has more extended attributes than this file system "
                    "keeps; restore to another one, such as xfs"
                ) from error

    def _set_metadata(self, member: ArchiveMember, target_path: Path, mode: int) -> None:
        """Set owner, mode and times. A directory gets them last, after all its members."""
        if self._owner is not None:
            os.chown(target_path, self._owner, self._owner, follow_symlinks=False)
        if member.kind != "link":
            target_path.chmod(mode)
        os.utime(target_path, ns=(member.mtime_ns, member.mtime_ns), follow_symlinks=False)


def _write_sparse(out: IO[bytes], block: bytes) -> int:
    """Write a block, with holes for its pages of zeros. Return the number of bytes written."""
    if block == ZEROS[: len(block)]:
        out.seek(len(block), os.SEEK_CUR)
        return 0
    if ZEROS[:_PAGE] not in block:
        return out.write(block)
    written = 0
    for start in range(0, len(block), _PAGE):
        page = block[start : start + _PAGE]
        if page == ZEROS[: len(page)]:
            out.seek(len(page), os.SEEK_CUR)
        else:
            written += out.write(page)
    return written


def _shorten(digest: Any) -> str:
    return f"{str(digest)[:19]}…"
