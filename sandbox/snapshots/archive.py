"""A sandbox's difference from its base as a single file: a layer in the format of the Open Container Initiative.

`.wh.NAME` means that NAME was deleted; `.wh..wh..opq` means that the directory hides the base's content. So the same file
is a Docker image's layer and an overlay directory of the `host` back end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import IO, Any, NamedTuple

import zstandard

from langgraph_takeover.sandbox.changes.differences import Difference, list_differences
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.changes.report import MAX_HASHED_FILE_BYTES
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError, SnapshotCorruptError
from langgraph_takeover.sandbox.snapshots.archive_members import (
    MAX_MEMBERS,
    MAX_TOTAL_PATH_BYTES,
    ArchiveMember,
    ArchiveMembers,
    DigestsByPath,
    sort_key,
)

MAX_LAYER_BYTES = 64 * 1024**3
_WHITEOUT_PREFIX = ".wh."
_OPAQUE_MARK = ".wh..wh..opq"
_ROOT = "."
_XATTR = "SCHILY.xattr."
_BASE = "TAKEOVER.base"
_LITERAL = "TAKEOVER.literal"
_BLOCK = 256 * 1024
_ZEROS = bytes(_BLOCK)
_PAGE = 4096
_MIN_FREE_PAGES = 1024  # more than any attribute needs
_LEVEL = 3


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
                    sums[inode] = HashedFile(descriptor).read_all()
            payload = sums[inode]
        elif found.kind == "link":
            payload = found.item.link_target()
        digest.add(found.path, found.kind, stat.S_IMODE(info.st_mode), payload)
    return digest.hexdigest()


def write(
    layers: tuple[Path, ...], base: LayerStack, archive: Path, *, base_digest: str, root_uid: int = 0
) -> str:
    """Write the merged content of these layers, the top one first, durably; return the content's digest.

    `root_uid` is the user id on this host of the sandbox's root. Raises OutOfDiskError, leaving no partial file.
    """
    partial = archive.with_name(f"{archive.name}.partial")
    try:
        with partial.open("wb") as raw:
            compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
            with (
                compressor.stream_writer(raw, closefd=False) as packed,
                tarfile.open(
                    fileobj=packed,
                    mode="w",  # a mode for streams copies every block three times
                    format=tarfile.PAX_FORMAT,
                    copybufsize=_BLOCK,  # type: ignore[call-overload]
                    pax_headers={_BASE: base_digest},
                ) as tar,
            ):
                digest = _ArchiveWriter(tar, root_uid).write(list_differences(layers, base))
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(archive)
        sync_directory(archive.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfDiskError(f"{archive}: the disk is full; the snapshot was not taken") from error
        raise
    finally:
        partial.unlink(missing_ok=True)
    return digest


class _ArchiveWriter:
    def __init__(self, tar: tarfile.TarFile, root_uid: int) -> None:
        self._tar = tar
        self._root_uid = root_uid
        self._digest = ContentDigest()
        self._inodes: dict[tuple[int, int], tuple[str, bytes]] = {}
        self._size = 0

    def write(self, differences: Iterator[Difference]) -> str:
        # tarfile cannot read an archive that has nothing but a global header.
        root = tarfile.TarInfo(_ROOT)
        root.type, root.mode = tarfile.DIRTYPE, 0o755
        self._tar.addfile(root)
        members = paths = 0
        for difference in differences:
            members += 2 if difference.kind == "opaque" else 1
            paths += len(os.fsencode(difference.path))
            if members > MAX_MEMBERS or paths > MAX_TOTAL_PATH_BYTES:
                raise SandboxUnavailableError(
                    f"{difference.path:.80}: with this file the sandbox has changed more than {MAX_MEMBERS:,} files, or their "
                    f"paths take more than {MAX_TOTAL_PATH_BYTES >> 20} MiB, the maximum of a snapshot; remove files"
                )
            payload = self._add_difference(difference)
            mode = stat.S_IMODE(difference.item.info.st_mode)
            self._digest.add(difference.path, difference.kind, mode, payload)
            self._tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every header otherwise
        return self._digest.hexdigest()

    def _add_difference(self, difference: Difference) -> bytes:
        if difference.kind == "gone":
            directory, _, name = difference.path.rpartition("/")
            self._tar.addfile(tarfile.TarInfo(f"{directory}/{_WHITEOUT_PREFIX}{name}".lstrip("/")))
            return b""
        header = self._make_header(difference)
        if difference.kind == "file":
            return self._add_file(difference, header)
        payload = b""
        if difference.kind == "link":
            payload = difference.item.link_target()
            header.type, header.linkname = tarfile.SYMTYPE, os.fsdecode(payload)
        elif difference.kind == "fifo":
            header.type = tarfile.FIFOTYPE
        else:
            header.type = tarfile.DIRTYPE
            with difference.item.open_descriptor() as descriptor:
                _add_attributes(header, descriptor)
        self._tar.addfile(header)
        if difference.kind == "opaque":
            self._tar.addfile(tarfile.TarInfo(f"{difference.path}/{_OPAQUE_MARK}"))
        return payload

    def _make_header(self, difference: Difference) -> tarfile.TarInfo:
        info = difference.item.info
        header = tarfile.TarInfo(difference.path)
        header.mode = stat.S_IMODE(info.st_mode)
        header.uid, header.gid = (
            n - self._root_uid if n >= self._root_uid else n for n in (info.st_uid, info.st_gid)
        )
        seconds, nanoseconds = divmod(abs(info.st_mtime_ns), 10**9)
        more = {"mtime": f"{'-' if info.st_mtime_ns < 0 else ''}{seconds}.{nanoseconds:09d}"}
        if difference.path.rpartition("/")[2].startswith(_WHITEOUT_PREFIX):
            more[_LITERAL] = "1"
        header.pax_headers = more
        return header

    def _add_file(self, difference: Difference, header: tarfile.TarInfo) -> bytes:
        info = difference.item.info
        inode = (info.st_dev, info.st_ino)
        if info.st_nlink > 1 and inode in self._inodes:
            header.type = tarfile.LNKTYPE
            header.linkname, payload = self._inodes[inode]
            self._tar.addfile(header)
            return payload
        with difference.item.open_descriptor() as descriptor:
            if os.fstat(descriptor).st_uid < self._root_uid:
                raise SandboxUnavailableError(
                    f"{difference.path}: belongs to a user of this host, not to the sandbox"
                )
            _add_attributes(header, descriptor)
            content = HashedFile(descriptor)
            header.size = content.size
            self._size += content.size
            if self._size > MAX_LAYER_BYTES:
                raise SandboxUnavailableError(
                    f"{difference.path}: with this file the sandbox holds more than {MAX_LAYER_BYTES >> 30} GiB, the "
                    "maximum of a snapshot; remove large files, sparse ones too"
                )
            self._tar.addfile(header, content)  # type: ignore[arg-type]
        payload = content.digest()
        self._inodes[inode] = (difference.path, payload)
        return payload


def _add_attributes(header: tarfile.TarInfo, descriptor: int) -> None:
    """Add the user's extended attributes of an open file or directory to its header.

    Attributes whose names an archive cannot express, with `=` or not in UTF-8, are left out.
    """
    names = (
        name
        for name in os.listxattr(descriptor)
        if name.startswith("user.") and "=" not in name and name.isprintable()
    )
    kept = {
        _XATTR + name: os.fsdecode(os.getxattr(descriptor, name))
        for name in names
        if not name.startswith("user.overlay.")
    }
    header.pax_headers = {**header.pax_headers, **kept}


class HashedFile:
    """An open file, hashed while it is read. A hole costs no access to the disk."""

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._sum = hashlib.sha256()
        self._at = 0
        self._data_from, self._data_to = self._find_data(0)

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := self._read_part(size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_part(self, size: int) -> bytes:
        size = min(size, self.size - self._at)
        if self._at >= self._data_to:
            self._data_from, self._data_to = self._find_data(self._at)
        if self._at < self._data_from:
            data = _ZEROS[: min(size, self._data_from - self._at)]
        else:
            data = os.pread(self._descriptor, min(size, self._data_to - self._at), self._at)
        self._at += len(data)
        self._sum.update(data)
        return data

    def read_all(self) -> bytes:
        """The digest of the whole content."""
        while self.read(_BLOCK):
            pass
        return self.digest()

    def digest(self) -> bytes:
        return self._sum.digest()

    def _find_data(self, start: int) -> tuple[int, int]:
        """Return where the next data starts and ends; if no data follows, the rest is a hole."""
        if start >= self.size:
            return self.size, self.size
        try:
            first = os.lseek(self._descriptor, start, os.SEEK_DATA)
            return first, os.lseek(self._descriptor, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.size, self.size
            return start, self.size  # the file system knows no holes


class ArchiveContents(NamedTuple):
    """The content of an archive, by path."""

    files: Mapping[str, str | None]
    """Files and links with the SHA-256 that a sandbox reports for them; None if it reports another."""
    hidden: Set[str]
    """Paths at which the base's content is deleted, including everything below."""
    literal_path: str | None
    """A path whose name Docker takes for a mark of its layers."""


def verify(
    archive: Path, *, digest: str, base_digest: str, max_bytes: int = MAX_LAYER_BYTES
) -> ArchiveContents:
    """Read the whole archive. Raises SnapshotCorruptError if it does not match these digests,
    OutOfDiskError if its files take more than `max_bytes` bytes.
    """
    return _read(archive, None, None, digest=digest, base_digest=base_digest, max_bytes=max_bytes)


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
    archive: Path, target: Path | None, owner: int | None, *, digest: str, base_digest: str, max_bytes: int
) -> ArchiveContents:
    try:
        with _open_file(archive) as raw:
            members = ArchiveMembers(archive, raw)
            base = members.read_base()
            if base != base_digest:
                raise SnapshotCorruptError(
                    f"{archive}: made for base {_shorten(base)}, not for {_shorten(base_digest)}"
                )
            reader = _ArchiveReader(archive, members, target, owner, max_bytes)
            found = reader.read()
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
    if found != digest:
        raise SnapshotCorruptError(
            f"{archive}: has digest {_shorten(found)}, but the snapshot says {_shorten(digest)}"
        )
    return ArchiveContents(reader.files, reader.hidden, reader.literal_path)


class _ArchiveReader:
    """Reads members in their one order, so that it keeps only the directories on the current path."""

    def __init__(
        self, archive: Path, members: ArchiveMembers, target: Path | None, owner: int | None, max_bytes: int
    ) -> None:
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
            if member.path == _ROOT:
                self._require(number == 0 and member.kind == "directory", _ROOT, "is not at the start")
                continue
            parent, _, name = member.path.rpartition("/")
            is_mark = name.startswith(_WHITEOUT_PREFIX) and not member.is_literal
            if is_mark and name == _OPAQUE_MARK:
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
                name = name.removeprefix(_WHITEOUT_PREFIX)
                member = member._replace(path=f"{parent}/{name}".lstrip("/"))
            if name.startswith(_WHITEOUT_PREFIX):
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
        self._digest.add(member.path, kind, member.mode, b"")
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
            is_told = member.size <= MAX_HASHED_FILE_BYTES and member.mode & 0o400
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
        self._digest.add(path, kind, member.mode, payload)

    def _copy_content(self, member: ArchiveMember, target_path: Path | None) -> bytes:
        self._size += member.size
        if self._size > MAX_LAYER_BYTES:
            raise SnapshotCorruptError(f"{self._archive}: holds more than {MAX_LAYER_BYTES >> 30} GiB")
        if target_path is None:
            self._written += member.size
            self._require_within_limit()
        digest = hashlib.sha256()
        with target_path.open("xb") if target_path is not None else contextlib.nullcontext() as out:
            for block in self._members.read_content() if member.size else ():
                digest.update(block)
                if out is not None:
                    self._written += _write_sparse(out, block)
                    self._require_within_limit()
            if out is not None:
                out.truncate(member.size)
        return digest.digest()

    def _require_within_limit(self) -> None:
        if self._written > self._max_bytes:
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
    if block == _ZEROS[: len(block)]:
        out.seek(len(block), os.SEEK_CUR)
        return 0
    if _ZEROS[:_PAGE] not in block:
        return out.write(block)
    written = 0
    for start in range(0, len(block), _PAGE):
        page = block[start : start + _PAGE]
        if page == _ZEROS[: len(page)]:
            out.seek(len(page), os.SEEK_CUR)
        else:
            written += out.write(page)
    return written


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _shorten(digest: Any) -> str:
    return f"{str(digest)[:19]}…"
