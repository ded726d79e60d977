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
    OPAQUE_MARK,
    ROOT_NAME,
    WHITEOUT_PREFIX,
    ZEROS,
    MapReader,
    WholeReader,
)
from langgraph_takeover.sandbox.snapshots.archive_members import (
    ArchiveMember,
    ArchiveMembers,
    DigestsByPath,
    sort_key,
)
from langgraph_takeover.sandbox.snapshots.differences import ContentDigest

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


def verify(archive: Path, *, digest: str, base_digest: str, max_bytes: int | None = None) -> ArchiveContents:
    """Read the whole archive. Raises SnapshotCorruptError if it does not match these digests,
    OutOfDiskError if its files take more than `max_bytes` bytes, holes included.
    """
    return _read(archive, None, None, digest=digest, base_digest=base_digest, max_bytes=max_bytes)


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
) -> ArchiveContents:
    with _open_members(archive, base_digest) as members:
        reader = _ArchiveReader(archive, members, target, owner, max_bytes, entries)
        found = reader.read()
    if found != digest:
        raise SnapshotCorruptError(
            f"{archive}: has digest {_shorten(found)}, but the snapshot says {_shorten(digest)}"
        )
    return ArchiveContents(reader.files, reader.hidden, reader.literal_path)


@contextlib.contextmanager
def _open_members(archive: Path, base_digest: str) -> Iterator[ArchiveMembers]:
    """Yield the members of an archive for a base; errors of reading become SnapshotCorruptError or OutOfDiskError."""
    try:
        with _open_file(archive) as raw:
            members = ArchiveMembers(archive, raw)
            base = members.read_base()
            if base != base_digest:
                raise SnapshotCorruptError(
                    f"{archive}: made for base {_shorten(base)}, not for {_shorten(base_digest)}"
                )
            yield members
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


def iterate_members(archive: Path, base_digest: str) -> Iterator[tuple[ArchiveMember, ArchiveMembers]]:
    """Yield each member of an archive that was verified before, with the reader of its content, as `ArchiveMembers` does.

    Content that the caller leaves unread is skipped. Raises what `verify` raises.
    """
    with _open_members(archive, base_digest) as members:
        for member in members:
            yield member, members
            for _ in members.read_content():
                pass


class _ArchiveReader:
    """Reads members in their one order, so that it keeps only the directories on the current path."""

    def __init__(
        self,
        archive: Path,
        members: ArchiveMembers,
        target: Path | None,
        owner: int | None,
        max_bytes: int | None,
        entries: dict[str, Entry] | None = None,
    ) -> None:
        self._entries = entries
        self._archive = archive
        self._members = members
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
        waiting: ArchiveMember | None = None  # a directory, until it is known whether it is opaque
        for number, member in enumerate(self._members):
            if member.path == ROOT_NAME:
                self._require(number == 0 and member.kind == "directory", ROOT_NAME, "is not at the start")
                continue
            parent, _, name = member.path.rpartition("/")
            is_mark = name.startswith(WHITEOUT_PREFIX) and not member.is_literal
            if is_mark and name == OPAQUE_MARK:
                if waiting is None or waiting.path != parent:
                    raise SnapshotCorruptError(f"{self._archive}: {parent!r:.80} is hidden by nothing")
                self._require(member.kind == "file" and not member.size, member.path, "is no mark")
                self._read_directory(waiting, "opaque")
                self.hidden.add(parent)
                waiting = None
                continue
            if waiting is not None:
                self._read_directory(waiting, "directory")
                waiting = None
            kind = "gone" if is_mark else member.kind
            if is_mark:
                self._require(member.kind == "file" and not member.size, member.path, "is no mark")
                name = name.removeprefix(WHITEOUT_PREFIX)
                member = member._replace(path=f"{parent}/{name}".lstrip("/"))
            if name.startswith(WHITEOUT_PREFIX):
                self.literal_path = self.literal_path or member.path
            self._enter(member.path, parent, name)
            if kind == "directory":
                waiting = member
            else:
                self._read_member(member, kind)
        if waiting is not None:
            self._read_directory(waiting, "directory")
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
