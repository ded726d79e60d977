"""Write the layers of a sandbox as a snapshot's archive."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import zstandard

from langgraph_takeover.base.failures import clean_up, sync_directory
from langgraph_takeover.sandbox.changes.change_report import MAX_HASHED_FILE_BYTES
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
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
)
from langgraph_takeover.sandbox.snapshots.archive_members import ArchiveMember, DigestsByPath, sort_key
from langgraph_takeover.sandbox.snapshots.differences import (
    ContentDigest,
    Difference,
    HashedFile,
    list_differences,
    open_content,
)

_XATTR = "SCHILY.xattr."
_BASE = "TAKEOVER.base"
_LITERAL = "TAKEOVER.literal"
_LEVEL = 3


def write_to_store(
    layers: tuple[Path, ...], base: LayerStack, store: Path, *, base_digest: str, root_uid: int = 0
) -> str:
    """Write a snapshot's archive into a directory, as `archive_name(digest)`; return the content's digest.

    Archives of other snapshots there stay as they are. Arguments and errors: `write`.
    """
    return write_differences_to_store(
        list_differences(layers, base), store, base_digest=base_digest, root_uid=root_uid
    )


def write_differences_to_store(
    differences: Iterator[Difference],
    store: Path,
    *,
    base_digest: str,
    root_uid: int = 0,
    files: DigestsByPath | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> str:
    """Write differences, sorted as `list_differences` gives them, as an archive of `store`; return their digest.

    `files` gets the digests that `archive_reader.verify` would find; `on_bytes` gets the number of bytes of each read.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxUnavailableError(f"{store}: {error.strerror}") from error
    partial = store / f".{secrets.token_hex(8)}"
    digest = _write(differences, partial, base_digest, root_uid, files, on_bytes)
    partial.replace(store / archive_name(digest))
    sync_directory(store)
    return digest


def write(
    layers: tuple[Path, ...], base: LayerStack, archive: Path, *, base_digest: str, root_uid: int = 0
) -> str:
    """Write the merged content of these layers, the top one first, durably; return the content's digest.

    `root_uid` is the user id on this host of the sandbox's root. Raises OutOfDiskError, leaving no partial file.
    """
    return _write(list_differences(layers, base), archive, base_digest, root_uid)


def _write(
    differences: Iterator[Difference],
    archive: Path,
    base_digest: str,
    root_uid: int,
    files: DigestsByPath | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> str:
    with _create_archive(archive, base_digest) as tar:
        return _ArchiveWriter(tar, root_uid, files, on_bytes).write(differences)


@contextmanager
def _create_archive(archive: Path, base_digest: str) -> Iterator[tarfile.TarFile]:
    """Yield an archive to write into, which becomes durable and visible at the end. Raises OutOfDiskError."""
    partial = archive.with_name(f"{archive.name}.partial")
    with clean_up(lambda: partial.unlink(missing_ok=True)):
        try:
            with partial.open("wb") as raw:
                compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
                with (
                    compressor.stream_writer(raw, closefd=False) as packed,
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
                    yield tar
                raw.flush()
                os.fsync(raw.fileno())
            partial.replace(archive)
            sync_directory(archive.parent)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutOfDiskError(
                    f"{archive.parent}: the disk is full; the snapshot was not taken"
                ) from error
            raise


class Copied(NamedTuple):
    """A member of another archive, or a new file, to write into an archive."""

    member: ArchiveMember
    kind: str
    """As in `Entry`."""
    payload: bytes
    content: IO[bytes] | None
    """What a file stores, `member.size` bytes."""


def write_members_to_store(members: Iterable[Copied], store: Path, *, base_digest: str) -> str:
    """Write members, sorted as an archive needs them, as an archive of `store`; return their digest.

    Raises OutOfDiskError.
    """
    partial, digest = store / f".{secrets.token_hex(8)}", ContentDigest()
    with _create_archive(partial, base_digest) as tar:
        for each in members:
            _copy_member(tar, each)
            kind = "file" if each.kind == "hard link" else each.kind
            digest.add(each.member.path, kind, each.member.mode, each.payload)
            tar.members.clear()  # type: ignore[attr-defined]
    partial.replace(store / archive_name(digest.hexdigest()))
    sync_directory(store)
    return digest.hexdigest()


def _copy_member(tar: tarfile.TarFile, copied: Copied) -> None:
    member = copied.member
    directory, _, name = member.path.rpartition("/")
    if copied.kind == "gone":
        tar.addfile(tarfile.TarInfo(f"{directory}/{WHITEOUT_PREFIX}{name}".lstrip("/")))
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
        tar.addfile(tarfile.TarInfo(f"{member.path}/{OPAQUE_MARK}"))


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
        files: DigestsByPath | None,
        on_bytes: Callable[[int], None] | None,
    ) -> None:
        self._tar = tar
        self._root_uid = root_uid
        self._files = files
        self._on_bytes = on_bytes
        self._digest = ContentDigest()
        self._inodes: dict[tuple[int, int], tuple[str, bytes, int]] = {}
        self._size = 0

    def write(self, differences: Iterator[Difference]) -> str:
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
            self._digest.add(difference.path, difference.kind, difference.item.mode, payload)
            self._tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every header otherwise
        return self._digest.hexdigest()

    def _add_difference(self, difference: Difference) -> bytes:
        if difference.kind == "gone":
            directory, _, name = difference.path.rpartition("/")
            self._tar.addfile(tarfile.TarInfo(f"{directory}/{WHITEOUT_PREFIX}{name}".lstrip("/")))
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
        if difference.kind == "opaque":
            self._tar.addfile(tarfile.TarInfo(f"{difference.path}/{OPAQUE_MARK}"))
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
