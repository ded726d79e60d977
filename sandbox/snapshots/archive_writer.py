"""Write the layers of a sandbox as a snapshot's archive."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import zstandard

from langgraph_takeover.base.failures import clean_up, sync_directory
from langgraph_takeover.sandbox.changes.change_report import MAX_HASHED_FILE_BYTES
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.snapshots import archive_reader
from langgraph_takeover.sandbox.snapshots.archive_format import (
    BLOCK_BYTES,
    MAX_LAYER_BYTES,
    MAX_MEMBERS,
    MAX_TOTAL_PATH_BYTES,
    OPAQUE_MARK,
    ROOT_NAME,
    SPARSE_KEYS,
    WHITEOUT_PREFIX,
    SparseFile,
    archive_name,
    part_name,
)
from langgraph_takeover.sandbox.snapshots.archive_members import (
    ArchiveMember,
    ArchiveMembers,
    DigestsByPath,
    sort_key,
)
from langgraph_takeover.sandbox.snapshots.archive_parts import ContentEntry, find_part_list
from langgraph_takeover.sandbox.snapshots.differences import (
    ContentDigest,
    Difference,
    HashedFile,
    SavedEntries,
    list_differences,
    open_content,
)

_XATTR = "SCHILY.xattr."
_BASE = "TAKEOVER.base"
_LITERAL = "TAKEOVER.literal"
_PARTS_ONLY = "TAKEOVER.parts"
_LEVEL = 3


class WrittenArchive(NamedTuple):
    """An archive that was written to a store."""

    digest: str
    """Of the content."""
    sha256: str
    """Of the file."""
    size_bytes: int


def write_to_store(
    layers: tuple[Path, ...], base: LayerStack, store: Path, *, base_digest: str, root_uid: int = 0
) -> str:
    """Write a snapshot's archive into a directory, as `archive_name(digest)`; return the content's digest.

    Archives of other snapshots there stay as they are. Arguments and errors: `write`.
    """
    differences = list_differences(layers, base)
    return write_differences_to_store(differences, store, base_digest=base_digest, root_uid=root_uid).digest


def write_differences_to_store(
    differences: Iterator[Difference],
    store: Path,
    *,
    base_digest: str,
    root_uid: int = 0,
    files: DigestsByPath | None = None,
    on_bytes: Callable[[int], None] | None = None,
    saved: SavedEntries | None = None,
    is_part: bool = False,
) -> WrittenArchive:
    """Write differences, sorted as `list_differences` gives them, as an archive of `store`.

    Its name is `archive_name(digest)`, or `part_name(sha256)` with `is_part`. `files` gets the digests that
    `archive_reader.verify` would find; `on_bytes` gets the number of bytes of each read; `saved` gets each entry.
    """
    create_store(store)
    with _create_archive(store, base_digest) as (tar, out):
        digest = _ArchiveWriter(tar, root_uid, files, on_bytes, saved).write(differences)
        out.make_name = lambda: part_name(out.sha256.hexdigest()) if is_part else archive_name(digest)
    return WrittenArchive(digest, out.sha256.hexdigest(), out.size_bytes)


def create_store(store: Path) -> None:
    """Create a directory for snapshots if it is missing. Raises SandboxUnavailableError."""
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxUnavailableError(f"{store}: {error.strerror}") from error


def write(
    layers: tuple[Path, ...], base: LayerStack, archive: Path, *, base_digest: str, root_uid: int = 0
) -> str:
    """Write the merged content of these layers, the top one first, durably; return the content's digest.

    `root_uid` is the user id on this host of the sandbox's root. Raises OutOfDiskError, leaving no partial file.
    """
    with _create_archive(archive.parent, base_digest) as (tar, out):
        out.make_name = lambda: archive.name
        return _ArchiveWriter(tar, root_uid).write(list_differences(layers, base))


class _ArchiveFile:
    """An archive that is being written, as the file that the compressor writes to."""

    make_name: Callable[[], str]
    """Returns its name, once all is written."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size_bytes += len(data)
        return self._raw.write(data)

    def flush(self) -> None:
        self._raw.flush()


@contextmanager
def _create_archive(directory: Path, base_digest: str) -> Iterator[tuple[tarfile.TarFile, _ArchiveFile]]:
    """Yield an archive to write into, and its file; it becomes durable and visible at the end. Raises OutOfDiskError."""
    partial = directory / f".{secrets.token_hex(8)}.partial"
    with clean_up(lambda: partial.unlink(missing_ok=True)):
        try:
            with partial.open("wb") as raw:
                out = _ArchiveFile(raw)
                compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
                with (
                    compressor.stream_writer(out, closefd=False) as packed,  # type: ignore[arg-type]
                    tarfile.open(
                        fileobj=packed,
                        mode="w",  # a mode for streams copies every block three times
                        format=tarfile.PAX_FORMAT,
                        copybufsize=BLOCK_BYTES,  # type: ignore[call-overload]
                        pax_headers={_BASE: base_digest},
                    ) as tar,
                ):
                    # tarfile cannot read an archive that has nothing but a global header.
                    root = tarfile.TarInfo(ROOT_NAME)
                    root.type, root.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(root)
                    yield tar, out
                raw.flush()
                os.fsync(raw.fileno())
            partial.replace(directory / out.make_name())
            sync_directory(directory)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutOfDiskError(f"{directory}: the disk is full; the snapshot was not taken") from error
            raise


class Copied(NamedTuple):
    """A member of another archive, or a new file, to write into an archive."""

    member: ArchiveMember
    kind: str
    """As in `Entry`."""
    payload: bytes
    content: IO[bytes] | None
    """What a file stores, `member.size` bytes."""


def write_content(content: Iterable[ContentEntry], archive: Path, *, base_digest: str) -> None:
    """Write the entries of a snapshot as one archive. Raises OutOfDiskError."""
    with _create_archive(archive.parent, base_digest) as (tar, out):
        for member, kind, reader in content:
            _copy_member(tar, Copied(member, kind, b"", MemberContent(reader)))  # type: ignore[arg-type]
            tar.members.clear()  # type: ignore[attr-defined]
        out.make_name = lambda: archive.name


@contextmanager
def join_parts(archive: Path, base_digest: str) -> Iterator[Path]:
    """A snapshot's file if it is an archive, else a new archive with the content of its parts, to be verified.

    Raises SnapshotCorruptError and OutOfDiskError.
    """
    with archive_reader.translate_reading_errors(archive):
        found = find_part_list(archive)
    if found is None:
        yield archive
        return
    with tempfile.TemporaryDirectory(prefix="takeover-export-") as work_directory:
        whole = Path(work_directory) / "archive"
        with archive_reader.open_content(archive, base_digest) as content:
            write_content(content, whole, base_digest=base_digest)
        yield whole


class MemberContent:
    """The content of an archive's member, as a file to read."""

    def __init__(self, members: ArchiveMembers) -> None:
        self._blocks = members.read_content()
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (block := next(self._blocks, b"")):
            self._rest += block
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def write_members_to_store(members: Iterable[Copied], store: Path, *, base_digest: str) -> str:
    """Write members, sorted as an archive needs them, as an archive of `store`; return their digest.

    Raises OutOfDiskError.
    """
    digest = ContentDigest()
    with _create_archive(store, base_digest) as (tar, out):
        for each in members:
            _copy_member(tar, each)
            kind = "file" if each.kind == "hard link" else each.kind
            digest.add(each.member.path, kind, each.member.mode, each.payload)
            tar.members.clear()  # type: ignore[attr-defined]
        out.make_name = lambda: archive_name(digest.hexdigest())
    return digest.hexdigest()


def _copy_member(tar: tarfile.TarFile, copied: Copied) -> None:
    member = copied.member
    if copied.kind == "gone":
        _add_mark(tar, copied.kind, member.path)
        return
    header = tarfile.TarInfo(member.path)
    header.type, header.linkname = _TYPES[copied.kind], member.target
    header.mode, header.uid, header.gid, header.size = member.mode, member.uid, member.gid, member.size
    header.pax_headers = _list_common_headers(member.path, member.mtime_ns) | {
        _XATTR + key: os.fsdecode(value) for key, value in member.attributes
    }
    if member.sparse_size is not None:
        header.pax_headers |= _list_sparse_headers(member.path, member.sparse_size)
    tar.addfile(header, copied.content)
    if copied.kind == "opaque":
        _add_mark(tar, copied.kind, member.path)


def _add_mark(tar: tarfile.TarFile, kind: str, path: str) -> None:
    """Add the mark that a path, or everything below it, hides what is there in the base or in other parts."""
    directory, _, name = path.rpartition("/")
    is_directory = kind in ("opaque", "cleared")
    mark = f"{path}/{OPAQUE_MARK}" if is_directory else f"{directory}/{WHITEOUT_PREFIX}{name}".lstrip("/")
    header = tarfile.TarInfo(mark)
    if kind in ("cleared", "masked"):
        header.pax_headers = {_PARTS_ONLY: "1"}
    tar.addfile(header)


_TYPES = {
    "file": tarfile.REGTYPE,
    "hard link": tarfile.LNKTYPE,
    "link": tarfile.SYMTYPE,
    "fifo": tarfile.FIFOTYPE,
    "directory": tarfile.DIRTYPE,
    "opaque": tarfile.DIRTYPE,
}


def _list_common_headers(path: str, mtime_ns: int) -> dict[str, str]:
    """Return the extended header's time of the last change, and the mark of a name that looks like a whiteout."""
    seconds, nanoseconds = divmod(abs(mtime_ns), 10**9)
    headers = {"mtime": f"{'-' if mtime_ns < 0 else ''}{seconds}.{nanoseconds:09d}"}
    if path.rpartition("/")[2].startswith(WHITEOUT_PREFIX):
        headers[_LITERAL] = "1"
    return headers


def _list_sparse_headers(path: str, real_size: int) -> dict[str, str]:
    return {**SPARSE_KEYS, "GNU.sparse.name": path, "GNU.sparse.realsize": str(real_size)}


class _ArchiveWriter:
    def __init__(
        self,
        tar: tarfile.TarFile,
        root_uid: int,
        files: DigestsByPath | None = None,
        on_bytes: Callable[[int], None] | None = None,
        saved: SavedEntries | None = None,
    ) -> None:
        self._saved = saved
        self._tar = tar
        self._root_uid = root_uid
        self._files = files
        self._on_bytes = on_bytes
        self._digest = ContentDigest()
        self._inodes: dict[tuple[int, int], tuple[str, bytes, int]] = {}
        self._size = 0
        self._first_path: str | None = None

    def write(self, differences: Iterator[Difference]) -> str:
        members = paths = 0
        for difference in differences:
            members += 2 if difference.kind in ("opaque", "cleared") else 1
            paths += len(os.fsencode(difference.path))
            if members > MAX_MEMBERS or paths > MAX_TOTAL_PATH_BYTES:
                raise SandboxUnavailableError(
                    f"{difference.path:.80}: with this file the sandbox has changed more than {MAX_MEMBERS:,} files, or their "
                    f"paths take more than {MAX_TOTAL_PATH_BYTES >> 20} MiB, the maximum of a snapshot; remove files"
                )
            payload = self._add_difference(difference)
            entry = (difference.path, difference.kind, difference.item.mode, payload)
            self._digest.add(*entry)
            if self._saved is not None:
                self._saved.add(*entry)
                if self._first_path is not None:
                    self._saved.add_link(difference.path, self._first_path)
            self._tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every header otherwise
        return self._digest.hexdigest()

    def _add_difference(self, difference: Difference) -> bytes:
        self._first_path = None
        if difference.kind in ("gone", "masked"):
            _add_mark(self._tar, difference.kind, difference.path)
            return b""
        header = self._make_header(difference)
        if difference.kind == "file":
            return self._add_file(difference, header)
        payload = b""
        if difference.kind == "link":
            payload = difference.item.link_target()
            header.type, header.linkname = tarfile.SYMTYPE, os.fsdecode(payload)
            self._note(difference.path, hashlib.sha256(b"symlink:" + payload).digest(), DigestsByPath.LINK)
        elif difference.kind == "fifo":
            header.type = tarfile.FIFOTYPE
        else:
            header.type = tarfile.DIRTYPE
            with difference.item.open_descriptor() as descriptor:
                _add_attributes(header, descriptor)
        self._tar.addfile(header)
        if difference.kind in ("opaque", "cleared"):
            _add_mark(self._tar, difference.kind, difference.path)
        return payload

    def _make_header(self, difference: Difference) -> tarfile.TarInfo:
        info = difference.item.info
        header = tarfile.TarInfo(difference.path)
        header.mode = difference.item.mode
        header.uid, header.gid = (
            n - self._root_uid if n >= self._root_uid else n for n in (info.st_uid, info.st_gid)
        )
        header.pax_headers = _list_common_headers(difference.path, info.st_mtime_ns)
        return header

    def _add_file(self, difference: Difference, header: tarfile.TarInfo) -> bytes:
        info = difference.item.info
        inode = (info.st_dev, info.st_ino)
        if inode in self._inodes:
            header.type = tarfile.LNKTYPE
            header.linkname, payload, kind = self._inodes[inode]
            self._first_path = header.linkname
            self._tar.addfile(header)
            self._note(difference.path, payload, kind)
            return payload
        with difference.item.open_descriptor() as descriptor:
            if os.fstat(descriptor).st_uid < self._root_uid:
                raise SandboxUnavailableError(
                    f"{difference.path}: belongs to a user of this host, not to the sandbox"
                )
            _add_attributes(header, descriptor)
            content = open_content(descriptor)
            header.size = content.size
            if isinstance(content, SparseFile):
                header.pax_headers = {
                    **header.pax_headers,
                    **_list_sparse_headers(difference.path, content.real_size),
                }
            self._size += content.size
            if self._size > MAX_LAYER_BYTES:
                raise SandboxUnavailableError(
                    f"{difference.path}: with this file the sandbox holds more than {MAX_LAYER_BYTES >> 30} GiB, the "
                    "maximum of a snapshot; remove large files, sparse ones too"
                )
            self._tar.addfile(header, _Reported(content, self._on_bytes))  # type: ignore[arg-type]
        payload = content.digest()
        is_small = isinstance(content, HashedFile) and content.size <= MAX_HASHED_FILE_BYTES
        kind = DigestsByPath.FILE if is_small and header.mode & 0o400 else DigestsByPath.UNREPORTED
        self._inodes[inode] = (difference.path, payload, kind)
        self._note(difference.path, payload, kind)
        return payload

    def _note(self, path: str, digest: bytes, kind: int) -> None:
        if self._files is not None:
            self._files.add(sort_key(path), digest, kind)


class _Reported(NamedTuple):
    """A content whose reads are reported."""

    content: HashedFile | SparseFile
    report: Callable[[int], None] | None

    def read(self, size: int) -> bytes:
        if self.report is not None:
            self.report(size)
        return self.content.read(size)


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
