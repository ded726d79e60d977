"""A record as one file that another host can import, at any place that fsspec supports.

A line of magic, the length of a header, the header (the record with its notes and review as JSON), a SHA-256 over all
of this, and the snapshot as `sandbox.snapshots.transfer` writes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.records.record import (
    NOTES_FILE,
    RECORD_FILE,
    REVIEW_FILE,
    HandoffRecord,
    RecordError,
    RecordStore,
    is_valid_id,
    parse_model,
    to_json,
)
from langgraph_takeover.sandbox.snapshots import transfer
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name

_MAGIC = b"takeover record 1\n"
_LENGTH = struct.Struct(">Q")
_MAX_HEADER_BYTES = transfer.MAX_HEADER_BYTES
_LOCK_FILE = ".importing"
_IMAGE_PREFIX = "sha256:"


class RecordExistsError(TakeoverError, ValueError):
    """The store already has a record with that id."""


def export_record(directory: Path, url: str) -> int:
    """Write a verified record to one file, completely or not at all; return its size in bytes.

    Raises RecordError, SnapshotCorruptError, OutOfDiskError and SandboxUnavailableError.
    """
    record = RecordStore(directory.parent).load(directory.name)
    with contextlib.ExitStack() as stack:
        archive_path = None
        if record.snapshot is not None:
            archive_path = stack.enter_context(transfer.materialize_archive(record.snapshot, directory))
        header = to_json(_make_portable(record)).encode()
        if len(header) > _MAX_HEADER_BYTES:
            raise RecordError(f"record {record.id}: too large to export: {len(header):,} bytes")
        stack.enter_context(transfer.translate_storage_errors(url))
        out = stack.enter_context(transfer.open_atomically(url))
        head = _MAGIC + _LENGTH.pack(len(header)) + header
        out.write(head + hashlib.sha256(head).digest())
        if archive_path is not None and record.snapshot is not None:
            transfer.write_snapshot(record.snapshot, archive_path, out)
        return out.tell()


def import_record(url: str, root: Path, *, replace: bool = False) -> Path:
    """Verify an exported record and add it to a store; return its directory.

    The file is hostile until then. Raises RecordExistsError unless `replace`, RecordError, SnapshotCorruptError,
    OutOfDiskError and SandboxUnavailableError.
    """
    store = RecordStore(root)
    with (
        transfer.translate_storage_errors(url, into=root, passthrough=(RecordError, RecordExistsError)),
        _lock_imports(root),
        transfer.open_source(url) as source,
    ):
        record = _receive_record(url, source)
        directory = store.directory(record.id)

        @contextlib.contextmanager
        def check_replacement() -> Iterator[None]:
            if directory.exists() and not replace:
                raise RecordExistsError(f"{directory}: exists already")
            yield

        def build(partial: Path) -> HandoffRecord:
            _receive_snapshot(url, source, record, partial)
            store.write_attachments(partial, record)
            return record

        with check_replacement():  # before all of it is read
            store.create(record.id, build, commit_guard=check_replacement)
    return directory


def compute_archive_digest(record: HandoffRecord) -> str:
    """Return the digest that the record has after its import."""
    return _make_portable(record).digest


def _make_portable(record: HandoffRecord) -> HandoffRecord:
    """Convert a snapshot that is an image, which no other daemon has, to an archive."""
    snapshot = record.snapshot
    if snapshot is None or not snapshot.location.startswith(_IMAGE_PREFIX):
        return record
    archived = snapshot.model_copy(update={"location": archive_name(snapshot.digest)})
    return record.model_copy(update={"snapshot": archived}).seal()


def _receive_record(url: str, source: IO[bytes]) -> HandoffRecord:
    """Read the record at the start of a file, verify it, and check that its names stay in its directory."""
    magic = _read_bytes(source, len(_MAGIC))
    if magic != _MAGIC:
        is_snapshot = magic.startswith(b"takeover snap")
        cure = "; `sandbox import` reads a snapshot alone" if is_snapshot else ""
        raise RecordError(f"{url}: unknown record format{cure}")
    length = _read_bytes(source, _LENGTH.size)
    size = _LENGTH.unpack(length)[0] if len(length) == _LENGTH.size else 0
    if size > _MAX_HEADER_BYTES:
        raise RecordError(f"{url}: claims to be larger than any record")
    header = _read_bytes(source, size)
    if _read_bytes(source, hashlib.sha256().digest_size) != hashlib.sha256(magic + length + header).digest():
        raise RecordError(f"{url}: truncated or changed: its checksum differs")
    record = parse_model(header, url, HandoffRecord)
    try:
        record.verify()
        if not is_valid_id(record.id):
            raise RecordError(f"invalid record id: {record.id!r:.60}")
        record.verify_attachments()
    except RecordError as error:
        raise RecordError(f"{url}: {error}") from error
    location = record.snapshot.location if record.snapshot is not None else "none"
    if location.startswith(_IMAGE_PREFIX) or location in ("", RECORD_FILE, NOTES_FILE, REVIEW_FILE):
        raise RecordError(f"{url}: snapshot.location: not the name of an archive: {location!r:.60}")
    return record


def _receive_snapshot(url: str, source: IO[bytes], record: HandoffRecord, directory: Path) -> None:
    if record.snapshot is None:
        if source.read(1):
            raise RecordError(f"{url}: continues after its end")
        return
    found = transfer.receive_snapshot(url, source, directory / record.snapshot.location)
    if found != record.snapshot.model_copy(update={"location": found.location}):
        raise RecordError(f"{url}: its snapshot is not the one that its record names")


def _read_bytes(source: IO[bytes], size: int) -> bytes:
    """Read that many bytes, or all that are left."""
    blocks = []
    while size and (block := source.read(size)):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


@contextlib.contextmanager
def _lock_imports(root: Path) -> Iterator[None]:
    """Allow one import at a time, so that leftovers are always those of an interrupted import."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / _LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
