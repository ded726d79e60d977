"""One snapshot as one file, at any URL of fsspec, and the workspace files in it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from langgraph_takeover.base.failures import clean_up, sync_directory
from langgraph_takeover.base.untrusted_input import parse_document
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.sandbox.docker_client import summarize_error
from langgraph_takeover.sandbox.interface import (
    OutOfDiskError,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.shell import escape_non_utf8
from langgraph_takeover.sandbox.snapshots import archive_format, archive_reader, archive_writer
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name
from langgraph_takeover.sandbox.snapshots.archive_members import MalformedArchiveError
from langgraph_takeover.sandbox.snapshots.archive_parts import find_part_list, hold_store, link_or_copy
from langgraph_takeover.sandbox.snapshots.archive_reader import ArchiveContents
from langgraph_takeover.sandbox.snapshots.bases import COPY_PREFIX, WRITABLE_DIRECTORIES


class SnapshotContents(NamedTuple):
    """The workspace files in which a snapshot differs from its base; or all of them."""

    files: dict[str, str | None]
    """SHA-256 by path, relative to the workspace; None if a report says otherwise."""
    hidden_paths: frozenset[str]
    is_complete: bool

    def is_deleted(self, path: str) -> bool:
        """Whether the path no longer exists."""
        if path in self.files:
            return False
        parents = [path[:end] for end, letter in enumerate(path) if letter == "/"]
        covered = any(parent in self.hidden_paths or parent in self.files for parent in parents)
        return self.is_complete or covered or path in self.hidden_paths or "" in self.hidden_paths


def read_contents(snapshot: Snapshot, store: Path) -> SnapshotContents:
    """Read and verify everything in a snapshot. Raises SnapshotCorruptError and SandboxUnavailableError."""
    return select_workspace(snapshot, read_archive_contents(snapshot, store))


def select_workspace(snapshot: Snapshot, held: ArchiveContents) -> SnapshotContents:
    """Return the workspace files among the contents of a snapshot's archive."""
    top = find_workspace_prefix(snapshot, (*held.files, *held.hidden))
    return SnapshotContents(
        {
            escape_non_utf8(path[len(top) :]): sha256
            for path, sha256 in held.files.items()
            if path.startswith(top)
        },
        frozenset(
            escape_non_utf8(f"{path}/"[len(top) :].rstrip("/"))
            for path in held.hidden
            if f"{path}/".startswith(top)
        ),
        snapshot.base.startswith(COPY_PREFIX),
    )


def find_workspace_prefix(snapshot: Snapshot, paths: Iterable[str]) -> str:
    """Return where the workspace is among an archive's paths: with a directory as base, below its own directory."""
    tops = {path.partition("/")[0] for path in paths}
    in_rooms = snapshot.backend == "process" or (
        snapshot.backend == "host" and tops <= set(WRITABLE_DIRECTORIES)
    )
    prefix = WRITABLE_DIRECTORIES[0] if in_rooms else snapshot.workspace.strip("/")
    return f"{prefix}/" if prefix else ""


_MAGIC = b"takeover snapshot 1\n"
_LENGTHS = struct.Struct(">QQ")
MAX_HEADER_BYTES = 64 * 1024**2
_BLOCK = 1024 * 1024


class _ExportHeader(Frozen):
    snapshot: Snapshot


def copy_to_store(snapshot: Snapshot, store: Path, target_store: Path) -> None:
    """Copy a snapshot from one store to another. An image on a Docker daemon needs no copy."""
    source, target = store / snapshot.location, target_store / snapshot.location
    if snapshot.location.startswith("sha256:") or target.exists():
        return
    target_store.mkdir(parents=True, exist_ok=True)
    try:
        found = find_part_list(source)
        with hold_store(target_store):
            for part in found.parts if found is not None else ():
                link_or_copy(source.with_name(part.name), target_store / part.name)
            sync_directory(target_store)
            link_or_copy(source, target)
            sync_directory(target_store)
    except FileNotFoundError as error:
        raise SnapshotCorruptError(
            f"{error.filename or source}: snapshot not found (restore the file from a copy)"
        ) from error
    except MalformedArchiveError as error:
        raise SnapshotCorruptError(f"{source}: cannot be copied: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfDiskError(f"{target}: the disk is full") from error
        raise


def export_snapshot(snapshot: Snapshot, store: Path, url: str) -> None:
    """Write a snapshot, without its base, to one file.

    `store` is the directory of the snapshot. If the file system at `url` can rename, the file appears complete or not
    at all. Raises SnapshotCorruptError if the snapshot does not match its digest.
    """
    with (
        materialize_archive(snapshot, store) as archive_path,
        translate_storage_errors(url),
        open_atomically(url) as out,
    ):
        write_snapshot(snapshot, archive_path, out)


def write_snapshot(snapshot: Snapshot, archive_path: Path, out: IO[bytes]) -> None:
    """Write a snapshot with its archive."""
    name = archive_name(snapshot.digest)
    header = _ExportHeader(snapshot=snapshot.model_copy(update={"location": name})).model_dump_json().encode()
    if len(header) > MAX_HEADER_BYTES:
        raise SandboxUnavailableError(
            f"snapshot {snapshot.digest[:19]}…: the shell's state takes more than {MAX_HEADER_BYTES >> 20} MiB; "
            "unset large variables"
        )
    with archive_path.open("rb") as content:
        digest = hashlib.sha256()
        size = archive_path.stat().st_size
        for block in (_MAGIC, _LENGTHS.pack(len(header), size), header):
            digest.update(block)
            out.write(block)
        while block := content.read(_BLOCK):
            digest.update(block)
            out.write(block)
        out.write(digest.digest())


def import_snapshot(url: str, store: Path) -> Snapshot:
    """Read the snapshot of an exported file into `store`, from which it can be restored.

    Raises SnapshotCorruptError, with the reason, if the file is not an export or is truncated, or if its archive does
    not match its digest or has paths outside the sandbox.
    """
    part = store / f".importing-{secrets.token_hex(8)}"
    try:
        with translate_storage_errors(url, into=store):
            store.mkdir(parents=True, exist_ok=True)
            with open_source(url) as source:
                snapshot = receive_snapshot(url, source, part)
            part.replace(store / snapshot.location)
            sync_directory(store)
    finally:
        with contextlib.suppress(OSError):  # an unwritable directory has no partial file
            part.unlink()
    return snapshot


def receive_snapshot(url: str, source: IO[bytes], archive_path: Path) -> Snapshot:
    """Write the archive of a sent snapshot to `archive_path`, durably, and verify it.

    The returned snapshot's location is a safe name for the archive. Raises SnapshotCorruptError, also for data after
    the end.
    """
    with archive_path.open("xb") as out:
        snapshot = _read_export(url, source, out)
        out.flush()
        os.fsync(out.fileno())
    with archive_reader.translate_reading_errors(archive_path):
        if find_part_list(archive_path) is not None:
            raise SnapshotCorruptError(
                f"{url}: its archive names parts, which no export has (export it again)"
            )
    archive_reader.verify(archive_path, digest=snapshot.digest, base_digest=snapshot.base)
    return snapshot


@contextlib.contextmanager
def materialize_archive(snapshot: Snapshot, store: Path) -> Iterator[Path]:
    """The verified archive of a snapshot in one file, built first for an image or from parts.

    Raises SnapshotCorruptError.
    """
    with (
        locate_archive(snapshot, store) as archive_path,
        archive_writer.join_parts(archive_path, snapshot.base) as whole,
    ):
        archive_reader.verify(whole, digest=snapshot.digest, base_digest=snapshot.base)
        yield whole


def read_archive_contents(snapshot: Snapshot, store: Path) -> archive_reader.ArchiveContents:
    """Return the snapshot's content over its base, verified. Raises SnapshotCorruptError."""
    with locate_archive(snapshot, store) as archive_path:
        return archive_reader.verify(archive_path, digest=snapshot.digest, base_digest=snapshot.base)


@contextlib.contextmanager
def locate_archive(snapshot: Snapshot, store: Path) -> Iterator[Path]:
    """The archive of a snapshot, which may not match it; of an image, a new one. Raises SnapshotCorruptError."""
    if not snapshot.location.startswith("sha256:"):
        yield store / Path(snapshot.location).name
        return
    from langgraph_takeover.sandbox.snapshots import images

    image = images.find_image(snapshot.location)
    if image is None:
        raise SnapshotCorruptError(f"snapshot image {snapshot.location[:19]} is not on this daemon")
    with tempfile.TemporaryDirectory(prefix="takeover-export-") as work_directory:
        archive_path = Path(work_directory) / "archive"
        images.write_archive(image, images.require_base_image(snapshot.base), archive_path)
        yield archive_path


def _read_export(url: str, source: IO[bytes], out: IO[bytes]) -> Snapshot:
    digest = hashlib.sha256()

    def read_exactly(size: int) -> bytes:
        blocks, missing = [], size
        while missing and (block := source.read(missing)):
            blocks.append(block)
            missing -= len(block)
        data = b"".join(blocks)
        if missing:
            raise SnapshotCorruptError(f"{url}: truncated (export or copy it again)")
        digest.update(data)
        return data

    if source.read(len(_MAGIC)) != _MAGIC:
        raise SnapshotCorruptError(
            f"{url}: unknown snapshot format (expected a file that `sandbox export` wrote)"
        )
    digest.update(_MAGIC)
    header_size, size = _LENGTHS.unpack(read_exactly(_LENGTHS.size))
    if header_size > MAX_HEADER_BYTES or size > archive_format.MAX_LAYER_BYTES:
        raise SnapshotCorruptError(f"{url}: claims to be larger than any snapshot")
    header = read_exactly(header_size)
    left = size
    while left:
        block = read_exactly(min(left, _BLOCK))
        out.write(block)
        left -= len(block)
    if source.read(digest.digest_size) != digest.digest():
        raise SnapshotCorruptError(f"{url}: wrong checksum: truncated or changed (export or copy it again)")
    if source.read(1):
        raise SnapshotCorruptError(f"{url}: continues after its end")
    try:
        snapshot = _ExportHeader.model_validate(parse_document(header)).snapshot
    except ValueError as error:
        raise SnapshotCorruptError(f"{url}: invalid snapshot header") from error
    if not re.fullmatch("[0-9a-f]{64}", snapshot.digest):
        raise SnapshotCorruptError(f"{url}: invalid digest in the snapshot header")
    return snapshot.model_copy(update={"location": archive_name(snapshot.digest)})


def open_source(url: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    """A file to read. Only URLs need fsspec, paths do not."""
    path = _find_local_path(url)
    if path is not None:
        return path.open("rb")
    import fsspec

    opened: contextlib.AbstractContextManager[IO[bytes]] = fsspec.open(url, "rb")
    return opened


def _find_local_path(url: str) -> Path | None:
    """Return the path that a URL without a scheme, or with `file`, names; None for other URLs."""
    scheme, separator, path = url.rpartition("://")
    if not separator:
        return Path(url).expanduser()
    return Path(path).expanduser() if scheme in ("file", "local") else None


@contextlib.contextmanager
def open_atomically(url: str) -> Iterator[IO[bytes]]:
    """A file to write. It gets its name when it is complete."""
    target = _find_local_path(url)
    if target is None:
        import fsspec

        system, path = fsspec.core.url_to_fs(url, skip_instance_cache=True)  # one transaction each
        with system.transaction, system.open(path, "wb") as out:
            yield out
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    with clean_up(lambda: part.unlink(missing_ok=True)):
        with part.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(target)
        sync_directory(target.parent)


@contextlib.contextmanager
def translate_storage_errors(
    url: str, *, into: Path | None = None, passthrough: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Translate a file system's errors, `passthrough` excepted.

    Raises SandboxUnavailableError, OutOfDiskError or SnapshotCorruptError.
    """
    try:
        yield
    except SandboxUnavailableError:
        raise
    except passthrough:
        raise
    except FileNotFoundError as error:
        raise SnapshotCorruptError(f"file not found: {url}") from error
    except ImportError as error:
        cure = "pip install fsspec, and the package of its file system"
        if url.startswith(("s3:", "s3a:")):
            cure = "pip install 'langgraph-takeover[s3]'"
        raise SandboxUnavailableError(f"{url}: {summarize_error(error)}; {cure}") from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutOfDiskError(f"{into or url}: the disk is full") from error
        raise SandboxUnavailableError(f"{url}: {summarize_error(error)}") from error
