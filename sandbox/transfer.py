"""One snapshot as one file that another host can thaw, at any place that fsspec can name.

A line of magic, the length of a header, the header (the snapshot as JSON), the archive, and a SHA-256 over all
that comes before it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sandbox import archive
from sandbox.daemon import one_line
from sandbox.documents import parse_document
from sandbox.machine import Frozen, OutOfDisk, SandboxUnavailable, Snapshot, SnapshotCorrupt

_MAGIC = b"takeover snapshot 1\n"
_LENGTHS = struct.Struct(">QQ")
LONGEST_HEADER = 64 * 1024**2
_BLOCK = 1024 * 1024


class _Header(Frozen):
    snapshot: Snapshot


def bring(snapshot: Snapshot, store: Path, other: Path) -> None:
    """Let a snapshot that lies in one store lie in another as well; one that lies on a daemon needs nothing.

    Raises SnapshotCorrupt when it is gone, OutOfDisk when there is no room.
    """
    source, target = store / snapshot.location, other / snapshot.location
    if snapshot.location.startswith("sha256:") or target.exists():
        return
    other.mkdir(parents=True, exist_ok=True)
    part = other / f".bringing-{secrets.token_hex(8)}"
    try:
        try:
            os.link(source, part)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                raise
            with source.open("rb") as content, part.open("xb") as out:
                shutil.copyfileobj(content, out)
                out.flush()
                os.fsync(out.fileno())
        part.replace(target)
        archive.sync_directory(other)
    except FileNotFoundError as error:
        raise SnapshotCorrupt(f"{source}: the snapshot is gone") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfDisk(f"{target}: the disk is full") from error
        raise
    finally:
        part.unlink(missing_ok=True)


def export(snapshot: Snapshot, store: Path, url: str) -> None:
    """Write a snapshot and all that it needs but its base to one file.

    `store` is where it was frozen to. The file appears whole or not at all where the file system at `url` can
    rename. Raises SnapshotCorrupt when the snapshot is not what its digest says.
    """
    with archived(snapshot, store) as place, failing(url), appearing(url) as out:
        send(snapshot, place, out)


def send(snapshot: Snapshot, place: Path, out: IO[bytes]) -> None:
    """Write a snapshot whose archive lies at `place`."""
    name = f"{snapshot.digest}.tar.zst"
    header = _Header(snapshot=snapshot.model_copy(update={"location": name})).model_dump_json().encode()
    if len(header) > LONGEST_HEADER:
        raise SandboxUnavailable(
            f"snapshot {snapshot.digest[:19]}…: the shell's state takes more than {LONGEST_HEADER >> 20} MiB; "
            "unset large variables"
        )
    with place.open("rb") as content:
        digest = hashlib.sha256()
        size = place.stat().st_size
        for block in (_MAGIC, _LENGTHS.pack(len(header), size), header):
            digest.update(block)
            out.write(block)
        while block := content.read(_BLOCK):
            digest.update(block)
            out.write(block)
        out.write(digest.digest())


def import_(url: str, store: Path) -> Snapshot:
    """Put the snapshot of an exported file into `store`, verified; it can be thawed from there.

    Raises SnapshotCorrupt, with the reason, when the file is not one or is not whole, or its archive is not
    what its digest says or reaches out of a machine.
    """
    import fsspec

    part = store / f".importing-{secrets.token_hex(8)}"
    try:
        with failing(url, into=store):
            store.mkdir(parents=True, exist_ok=True)
            with fsspec.open(url, "rb") as source:
                snapshot = receive(url, source, part)
            part.replace(store / snapshot.location)
            archive.sync_directory(store)
    finally:
        with contextlib.suppress(OSError):  # where nothing can be written, there is none
            part.unlink()
    return snapshot


def receive(url: str, source: IO[bytes], place: Path) -> Snapshot:
    """Put the archive of what was sent at `place`, durably, and verify it; what follows it is refused.

    The snapshot's location is the name that the archive may have. Raises SnapshotCorrupt.
    """
    with place.open("xb") as out:
        snapshot = _received(url, source, out)
        out.flush()
        os.fsync(out.fileno())
    archive.verify(place, digest=snapshot.digest, base_digest=snapshot.base)
    return snapshot


@contextlib.contextmanager
def archived(snapshot: Snapshot, store: Path) -> Iterator[Path]:
    """The snapshot's archive, verified; an image's is made first. Raises SnapshotCorrupt."""
    with _archive(snapshot, store) as place:
        archive.verify(place, digest=snapshot.digest, base_digest=snapshot.base)
        yield place


def held(snapshot: Snapshot, store: Path) -> archive.Held:
    """What the snapshot holds over its base, verified. Raises SnapshotCorrupt."""
    with _archive(snapshot, store) as place:
        return archive.verify(place, digest=snapshot.digest, base_digest=snapshot.base)


@contextlib.contextmanager
def _archive(snapshot: Snapshot, store: Path) -> Iterator[Path]:
    if not snapshot.location.startswith("sha256:"):
        yield store / Path(snapshot.location).name
        return
    from sandbox import images

    image = images.find(snapshot.location)
    if image is None:
        raise SnapshotCorrupt(f"snapshot image {snapshot.location[:19]} is not on this daemon")
    with tempfile.TemporaryDirectory(prefix="takeover-export-") as room:
        place = Path(room) / "archive"
        images.write_archive(image, images.require_base(snapshot.base), place)
        yield place


def _received(url: str, source: IO[bytes], out: IO[bytes]) -> Snapshot:
    digest = hashlib.sha256()

    def take(size: int) -> bytes:
        blocks, missing = [], size
        while missing and (block := source.read(missing)):
            blocks.append(block)
            missing -= len(block)
        data = b"".join(blocks)
        if missing:
            raise SnapshotCorrupt(f"{url}: is cut short")
        digest.update(data)
        return data

    if source.read(len(_MAGIC)) != _MAGIC:
        raise SnapshotCorrupt(f"{url}: is no snapshot of a format that is known here")
    digest.update(_MAGIC)
    header_size, size = _LENGTHS.unpack(take(_LENGTHS.size))
    if header_size > LONGEST_HEADER or size > archive.LARGEST_LAYER:
        raise SnapshotCorrupt(f"{url}: claims to be larger than any snapshot")
    header = take(header_size)
    left = size
    while left:
        block = take(min(left, _BLOCK))
        out.write(block)
        left -= len(block)
    if source.read(digest.digest_size) != digest.digest():
        raise SnapshotCorrupt(f"{url}: is cut short or changed: its checksum differs")
    if source.read(1):
        raise SnapshotCorrupt(f"{url}: goes on after its end")
    try:
        snapshot = _Header.model_validate(parse_document(header)).snapshot
    except ValueError as error:
        raise SnapshotCorrupt(f"{url}: its header is no snapshot") from error
    if not re.fullmatch("[0-9a-f]{64}", snapshot.digest):
        raise SnapshotCorrupt(f"{url}: its header names no digest")
    return snapshot.model_copy(update={"location": f"{snapshot.digest}.tar.zst"})


@contextlib.contextmanager
def appearing(url: str) -> Iterator[IO[bytes]]:
    """A file to write that gets its name when it is whole."""
    import fsspec

    system, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)  # one transaction each
    if "file" not in system.protocol:
        with system.transaction, system.open(path, "wb") as out:
            yield out
        return
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    try:
        with part.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(place)
        archive.sync_directory(place.parent)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def failing(url: str, *, into: Path | None = None, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """What a file system says goes on as SandboxUnavailable, OutOfDisk or SnapshotCorrupt; `but` as it is."""
    try:
        yield
    except SandboxUnavailable:
        raise
    except but:
        raise
    except FileNotFoundError as error:
        raise SnapshotCorrupt(f"{url}: there is no such file") from error
    except ImportError as error:
        cure = (
            "; pip install '.[s3]' in the checkout of langgraph-takeover"
            if url.startswith(("s3:", "s3a:"))
            else ""
        )
        raise SandboxUnavailable(f"{url}: {one_line(error)}{cure}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfDisk(f"{into or url}: the disk is full") from error
        raise SandboxUnavailable(f"{url}: {one_line(error)}") from error
