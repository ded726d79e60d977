"""One machine's difference from its base as a single file: a layer in the Open Container Initiative's format.

A name that begins with `.wh.` says that what follows is gone, `.wh..wh..opq` that the directory hides what
the base has in it; so the same file is a Docker image's layer and an overlay directory of the host backend.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import zstandard

from sandbox.changes import LARGEST_HASHED
from sandbox.differences import Difference, differences
from sandbox.layers import Stack, opened_up
from sandbox.machine import OutOfDisk, SnapshotCorrupt

LARGEST_LAYER = 64 * 1024**3
_GONE = ".wh."
_OPAQUE = ".wh..wh..opq"
_ROOT = "."
_XATTR = "SCHILY.xattr."
_BASE = "TAKEOVER.base"
_LITERAL = "TAKEOVER.literal"
_BLOCK = 256 * 1024
_ZEROS = bytes(_BLOCK)
_LEVEL = 3
_LARGEST_HEADER = 16 * 1024**2
_KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.SYMTYPE: "link",
    tarfile.DIRTYPE: "directory",
    tarfile.FIFOTYPE: "fifo",
    tarfile.LNKTYPE: "hard link",
}


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


def content_digest(layers: tuple[Path, ...], base: Stack) -> str:
    """The digest of what these layers, the top one first, come to over a base."""
    digest = ContentDigest()
    sums: dict[tuple[int, int], bytes] = {}
    for found in differences(layers, base):
        payload = b""
        if found.kind == "file":
            inode = (found.info.st_dev, found.info.st_ino)
            if inode not in sums or found.info.st_nlink == 1:
                with opened_up(found.place), found.place.open("rb") as content:
                    sums[inode] = hashlib.file_digest(content, "sha256").digest()
            payload = sums[inode]
        elif found.kind == "link":
            payload = os.fsencode(found.place.readlink())
        digest.add(found.path, found.kind, stat.S_IMODE(found.info.st_mode), payload)
    return digest.hexdigest()


def write(
    layers: tuple[Path, ...], base: Stack, archive: Path, *, base_digest: str, root_uid: int = 0
) -> str:
    """Write what these layers, the top one first, come to, durably; the content's digest.

    `root_uid` is the user id on this host of the machine's root. Raises OutOfDisk, leaving no part behind.
    """
    partial = archive.with_name(f"{archive.name}.partial")
    try:
        with partial.open("wb") as raw:
            compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
            with (
                compressor.stream_writer(raw, closefd=False) as packed,
                tarfile.open(
                    fileobj=packed,
                    mode="w|",
                    format=tarfile.PAX_FORMAT,
                    pax_headers={_BASE: base_digest},
                ) as tar,
            ):
                digest = _Writer(tar, root_uid).write(differences(layers, base))
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(archive)
        sync_directory(archive.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfDisk(f"{archive}: the disk is full; the snapshot was not taken") from error
        raise
    finally:
        partial.unlink(missing_ok=True)
    return digest


class _Writer:
    def __init__(self, tar: tarfile.TarFile, root_uid: int) -> None:
        self._tar = tar
        self._root_uid = root_uid
        self._digest = ContentDigest()
        self._inodes: dict[tuple[int, int], tuple[str, bytes]] = {}

    def write(self, found: Iterator[Difference]) -> str:
        # tarfile cannot read an archive that has nothing but a global header.
        root = tarfile.TarInfo(_ROOT)
        root.type, root.mode = tarfile.DIRTYPE, 0o755
        self._tar.addfile(root)
        for difference in found:
            payload = self._add(difference)
            mode = stat.S_IMODE(difference.info.st_mode)
            self._digest.add(difference.path, difference.kind, mode, payload)
        return self._digest.hexdigest()

    def _add(self, found: Difference) -> bytes:
        if found.kind == "gone":
            directory, _, name = found.path.rpartition("/")
            self._tar.addfile(tarfile.TarInfo(f"{directory}/{_GONE}{name}".lstrip("/")))
            return b""
        header = self._header(found)
        if found.kind == "file":
            return self._add_file(found, header)
        self._tar.addfile(header)
        if found.kind == "opaque":
            self._tar.addfile(tarfile.TarInfo(f"{found.path}/{_OPAQUE}"))
        return os.fsencode(header.linkname) if found.kind == "link" else b""

    def _header(self, found: Difference) -> tarfile.TarInfo:
        info = found.info
        header = tarfile.TarInfo(found.path)
        header.mode = stat.S_IMODE(info.st_mode)
        header.uid, header.gid = (
            n - self._root_uid if n >= self._root_uid else n for n in (info.st_uid, info.st_gid)
        )
        header.pax_headers = {"mtime": f"{info.st_mtime_ns // 10**9}.{info.st_mtime_ns % 10**9:09d}"}
        if found.path.rpartition("/")[2].startswith(_GONE):
            header.pax_headers[_LITERAL] = "1"
        if found.kind == "link":
            header.type, header.linkname = tarfile.SYMTYPE, os.fspath(found.place.readlink())
        elif found.kind == "fifo":
            header.type = tarfile.FIFOTYPE
        elif found.kind != "file":
            header.type = tarfile.DIRTYPE
        if found.kind in ("file", "directory", "opaque"):
            with opened_up(found.place):
                for name in os.listxattr(found.place, follow_symlinks=False):
                    if name.startswith("user.") and not name.startswith("user.overlay."):
                        value = os.getxattr(found.place, name, follow_symlinks=False)
                        header.pax_headers[_XATTR + name] = os.fsdecode(value)
        return header

    def _add_file(self, found: Difference, header: tarfile.TarInfo) -> bytes:
        inode = (found.info.st_dev, found.info.st_ino)
        if found.info.st_nlink > 1 and inode in self._inodes:
            header.type = tarfile.LNKTYPE
            header.linkname, payload = self._inodes[inode]
            self._tar.addfile(header)
            return payload
        with opened_up(found.place), found.place.open("rb") as content:
            header.size = os.fstat(content.fileno()).st_size
            hashed = _Hashed(content)
            self._tar.addfile(header, hashed)  # type: ignore[arg-type]
        payload = hashed.digest()
        self._inodes[inode] = (found.path, payload)
        return payload


class _Hashed:
    """A file that is hashed while it is read."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self._sum = hashlib.sha256()

    def read(self, size: int) -> bytes:
        data = self._content.read(size)
        self._sum.update(data)
        return data

    def digest(self) -> bytes:
        return self._sum.digest()


class _Member(NamedTuple):
    path: str
    kind: str  # as in `Difference`, or `hard link`
    header: tarfile.TarInfo


class Held(NamedTuple):
    """What an archive holds, by path."""

    files: dict[str, str | None]
    """Files and links with the SHA-256 that a machine tells of them; None where it tells another."""
    hidden: frozenset[str]
    """What the base may have there is gone, with all that lies below."""


def verify(archive: Path, *, digest: str, base_digest: str) -> Held:
    """Read the whole archive. Raises SnapshotCorrupt when it is not what these digests say."""
    return _read(archive, None, None, digest=digest, base_digest=base_digest)


def unpack(archive: Path, target: Path, *, digest: str, base_digest: str, owner: int | None = None) -> None:
    """Lay an archive out as an overlay directory, every file owned by `owner`; it is hostile until verified.

    Raises SnapshotCorrupt when it reaches out of `target`, holds what no agent can have made, is cut
    short, or is not what the digests say; OutOfDisk. `target` must be empty, and is not fit for use
    after an error.
    """
    _read(archive, target, owner, digest=digest, base_digest=base_digest)


def _read(archive: Path, target: Path | None, owner: int | None, *, digest: str, base_digest: str) -> Held:
    try:
        with (
            archive.open("rb") as raw,
            zstandard.ZstdDecompressor().stream_reader(raw) as unpacked,
        ):
            base = _base(unpacked)
            if base != base_digest:
                raise SnapshotCorrupt(
                    f"{archive}: made for base {_short(base)}, not for {_short(base_digest)}"
                )
            with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_Header) as tar:
                reader = _Reader(archive, tar, target, owner)
                found = reader.read()
            # Times and owners are not in the digest: the checksum, which comes last, is for them.
            if len(_exactly(unpacked, tarfile.RECORDSIZE + 1)) > tarfile.RECORDSIZE:
                raise SnapshotCorrupt(f"{archive}: goes on after its end")
    except SnapshotCorrupt:
        raise  # one of the errors below
    except FileNotFoundError as error:
        raise SnapshotCorrupt(f"{archive}: the snapshot's archive is gone") from error
    except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError) as error:
        raise SnapshotCorrupt(f"{archive}: cannot be unpacked: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfDisk(f"{archive}: the disk is full; the snapshot was not unpacked") from error
        raise SnapshotCorrupt(f"{archive}: cannot be unpacked: {error}") from error
    if found != digest:
        raise SnapshotCorrupt(f"{archive}: holds {_short(found)}, but the snapshot says {_short(digest)}")
    return Held(reader.files, frozenset(reader.hidden))


def _base(unpacked: IO[bytes]) -> str | None:
    """What the global header at the archive's very beginning says of the base.

    Read here, because `tarfile` refuses an archive that has such a header and no file.
    """
    header = tarfile.TarInfo.frombuf(_exactly(unpacked, tarfile.BLOCKSIZE), "utf-8", "strict")
    if header.type != tarfile.XGLTYPE or header.size > tarfile.BLOCKSIZE:
        return None
    body = _exactly(unpacked, tarfile.BLOCKSIZE)[: header.size].decode()
    _, _, record = body.partition(" ")
    key, _, value = record.partition("=")
    return value.removesuffix("\n") if key == _BASE else None


def _exactly(source: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size and (block := source.read(size - len(data))):
        data += block
    return data


class _Header(tarfile.TarInfo):
    """A header that claims no more memory than ours ever need."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in _KINDS and self.size > _LARGEST_HEADER:
            raise tarfile.ReadError("a header is too large")
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]


class _Reader:
    def __init__(self, archive: Path, tar: tarfile.TarFile, target: Path | None, owner: int | None) -> None:
        self._archive = archive
        self._tar = tar
        self._target = target
        self._owner = owner
        self._digest = ContentDigest()
        self._kinds: dict[str, str] = {"": "directory"}
        self._sums: dict[str, bytes] = {}
        self._directories: list[_Member] = []
        self._size = 0
        self.files: dict[str, str | None] = {}
        self.hidden: set[str] = set()

    def read(self) -> str:
        waiting: _Member | None = None  # a directory, until it is known whether it is opaque
        for header in self._tar:
            if header.name == _ROOT:
                continue
            member = self._checked(header)
            if waiting is not None:
                opaque = member.kind == "opaque"
                self._take_directory(waiting, "opaque" if opaque else "directory")
                waiting = None
                if opaque:
                    self.hidden.add(member.path)
                    continue
            if member.kind == "directory":
                waiting = member
            elif member.kind == "opaque":
                raise SnapshotCorrupt(f"{self._archive}: {member.path!r} is hidden by nothing")
            else:
                payload = self._take(member)
                self._note(member, payload)
                kind = "file" if member.kind == "hard link" else member.kind
                self._digest.add(member.path, kind, header.mode & 0o7777, payload)
        if waiting is not None:
            self._take_directory(waiting, "directory")
        for member in reversed(self._directories):
            self._finish(member)
        return self._digest.hexdigest()

    def _checked(self, header: tarfile.TarInfo) -> _Member:
        """The member, if it stays within the tree that the archive itself has built so far."""
        path = header.name
        parts = path.split("/")
        parent, _, name = path.rpartition("/")
        kind = _KINDS.get(header.type)
        if kind is None:
            raise SnapshotCorrupt(f"{self._archive}: {path!r} is of a kind that no snapshot holds")
        if path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts) or "\0" in path:
            raise SnapshotCorrupt(f"{self._archive}: {path!r} leads out of the snapshot")
        if self._kinds.get(parent) != "directory":
            raise SnapshotCorrupt(f"{self._archive}: {path!r} does not lie in a directory of the snapshot")
        if name.startswith(_GONE) and _LITERAL not in header.pax_headers:
            if name == _OPAQUE:
                return _Member(parent, "opaque", header)
            name = name.removeprefix(_GONE)
            path, kind = f"{parent}/{name}".lstrip("/"), "gone"
        if path in self._kinds or name in ("", ".", ".."):
            raise SnapshotCorrupt(f"{self._archive}: {path!r} comes twice or has no name")
        if kind == "hard link" and self._kinds.get(header.linkname) != "file":
            raise SnapshotCorrupt(f"{self._archive}: {path!r} is a link to no file of the snapshot")
        self._size += header.size
        if self._size > LARGEST_LAYER:
            raise SnapshotCorrupt(f"{self._archive}: holds more than {LARGEST_LAYER >> 30} GiB")
        self._kinds[path] = kind
        return _Member(path, kind, header)

    def _take_directory(self, member: _Member, kind: str) -> None:
        self._digest.add(member.path, kind, member.header.mode & 0o7777, b"")
        if self._target is not None:
            place = self._target / member.path
            place.mkdir(mode=0o700)
            if kind == "opaque":
                os.setxattr(place, "user.overlay.opaque", b"y")
            self._directories.append(member)

    def _take(self, member: _Member) -> bytes:
        header, target = member.header, self._target
        payload = b""
        place = target / member.path if target is not None else None
        if member.kind == "file":
            payload = self._sums[member.path] = self._copy(header, place)
        elif member.kind == "hard link":
            payload = self._sums[member.path] = self._sums[header.linkname]
            self._kinds[member.path] = "file"
            if target is not None and place is not None:
                place.hardlink_to(target / header.linkname)
            return payload
        elif member.kind == "link":
            payload = os.fsencode(header.linkname)
            if place is not None:
                place.symlink_to(header.linkname)
        elif member.kind == "fifo" and place is not None:
            os.mkfifo(place)
        elif member.kind == "gone" and place is not None:
            os.mknod(place, stat.S_IFCHR, 0)
            return payload
        if place is not None:
            self._finish(member)
        return payload

    def _note(self, member: _Member, payload: bytes) -> None:
        path, header = member.path, member.header
        if member.kind == "hard link":
            self.files[path] = self.files[header.linkname]
        elif member.kind == "link":
            self.files[path] = hashlib.sha256(b"symlink:" + payload).hexdigest()
        elif member.kind == "file":
            told = header.size <= LARGEST_HASHED and header.mode & 0o400
            self.files[path] = payload.hex() if told else None
        else:
            self.hidden.add(path)

    def _copy(self, header: tarfile.TarInfo, place: Path | None) -> bytes:
        digest = hashlib.sha256()
        content = self._tar.extractfile(header)
        assert content is not None
        with place.open("xb") if place is not None else contextlib.nullcontext() as out:
            while block := content.read(_BLOCK):
                digest.update(block)
                if out is not None and block == _ZEROS[: len(block)]:
                    out.seek(len(block), os.SEEK_CUR)
                elif out is not None:
                    out.write(block)
            if out is not None:
                out.truncate(header.size)
        return digest.digest()

    def _finish(self, member: _Member) -> None:
        """Owner, mode, attributes and times; a directory's come last, when nothing more is put into it."""
        assert self._target is not None
        place, header = self._target / member.path, member.header
        if self._owner is not None:
            os.chown(place, self._owner, self._owner, follow_symlinks=False)
        if member.kind != "link":
            for name, value in header.pax_headers.items():
                if name.startswith(f"{_XATTR}user.") and not name.startswith(f"{_XATTR}user.overlay."):
                    os.setxattr(place, name.removeprefix(_XATTR), os.fsencode(value))
            place.chmod(header.mode & 0o7777)
        nanoseconds = _nanoseconds(header)
        os.utime(place, ns=(nanoseconds, nanoseconds), follow_symlinks=False)


def _nanoseconds(header: tarfile.TarInfo) -> int:
    # tarfile's own `mtime` is a float, which is too short for nanoseconds.
    whole, _, part = str(header.pax_headers.get("mtime", int(header.mtime))).partition(".")
    sign = -1 if whole.startswith("-") else 1
    return int(whole) * 10**9 + sign * int(part.ljust(9, "0")[:9])


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _short(digest: Any) -> str:
    return f"{str(digest)[:19]}…"
