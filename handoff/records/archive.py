"""One record as one file that another machine can take in, at any place that fsspec can name.

A line of magic, the length of a header, the header (the record with its notes and its review as JSON), a
SHA-256 over all that comes before it, and the snapshot as `sandbox.snapshots.transfer` sends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

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
from langgraph_takeover.sandbox.interface import TakeoverError
from langgraph_takeover.sandbox.snapshots import transfer

_MAGIC = b"takeover record 1\n"
_LENGTH = struct.Struct(">Q")
_MAX_HEADER_BYTES = transfer.MAX_HEADER_BYTES
_LOCK_FILE = ".importing"
_IMAGE_PREFIX = "sha256:"


class RecordExistsError(TakeoverError, ValueError):
    """The store has a record of that id already."""


def export_record(directory: Path, url: str) -> None:
    """Write a record, verified, to one file; it appears whole or not at all.

    Raises RecordError, SnapshotCorruptError, OutOfDiskError, SandboxUnavailableError.
    """
    record = RecordStore(directory.parent).load(directory.name)
    with contextlib.ExitStack() as stack:
        place = None
        if record.snapshot is not None:
            place = stack.enter_context(transfer.materialize_archive(record.snapshot, directory))
        header = to_json(_make_portable(record)).encode()
        if len(header) > _MAX_HEADER_BYTES:
            raise RecordError(f"record {record.id}: is too large to be carried: {len(header):,} bytes")
        stack.enter_context(transfer.translate_storage_errors(url))
        out = stack.enter_context(transfer.open_atomically(url))
        head = _MAGIC + _LENGTH.pack(len(header)) + header
        out.write(head + hashlib.sha256(head).digest())
        if place is not None and record.snapshot is not None:
            transfer.write_snapshot(record.snapshot, place, out)


def import_record(url: str, root: Path, *, replace: bool = False) -> Path:
    """Put an exported record, verified, into a store; its directory.

    The file is hostile until then. Raises RecordExistsError, unless it is to be replaced; RecordError,
    SnapshotCorruptError, OutOfDiskError, SandboxUnavailableError.
    """
    import fsspec

    store = RecordStore(root)
    with (
        transfer.translate_storage_errors(url, into=root, passthrough=(RecordError, RecordExistsError)),
        _lock_imports(root),
        fsspec.open(url, "rb") as source,
    ):
        record = _receive_record(url, source)
        place = store.directory(record.id)

        @contextlib.contextmanager
        def check_replacement() -> Iterator[None]:
            if place.exists() and not replace:
                raise RecordExistsError(f"{place}: is there already")
            yield

        def build(partial: Path) -> HandoffRecord:
            _receive_snapshot(url, source, record, partial)
            store.write_attachments(partial, record)
            return record

        with check_replacement():  # before all of it is read
            store.create(record.id, build, commit_guard=check_replacement)
    return place


def compute_archive_digest(record: HandoffRecord) -> str:
    """The digest that the record has where it was taken in."""
    return _make_portable(record).digest


def _make_portable(record: HandoffRecord) -> HandoffRecord:
    """The same, with an archive where the snapshot was an image, which no other daemon has."""
    snapshot = record.snapshot
    if snapshot is None or not snapshot.location.startswith(_IMAGE_PREFIX):
        return record
    archived = snapshot.model_copy(update={"location": f"{snapshot.digest}.tar.zst"})
    return record.model_copy(update={"snapshot": archived}).seal()


def _receive_record(url: str, source: IO[bytes]) -> HandoffRecord:
    """The record that a file begins with, verified, and with names that stay in its directory."""
    magic = _read_bytes(source, len(_MAGIC))
    if magic != _MAGIC:
        is_snapshot = magic.startswith(b"takeover snap")
        cure = "; a snapshot alone is for `python -m sandbox import`" if is_snapshot else ""
        raise RecordError(f"{url}: is no record of a format that is known here{cure}")
    length = _read_bytes(source, _LENGTH.size)
    size = _LENGTH.unpack(length)[0] if len(length) == _LENGTH.size else 0
    if size > _MAX_HEADER_BYTES:
        raise RecordError(f"{url}: claims to be larger than any record")
    header = _read_bytes(source, size)
    if _read_bytes(source, hashlib.sha256().digest_size) != hashlib.sha256(magic + length + header).digest():
        raise RecordError(f"{url}: is cut short or changed: its checksum differs")
    record = parse_model(header, url, HandoffRecord)
    try:
        record.verify()
        if not is_valid_id(record.id):
            raise RecordError(f"{record.id!r:.60} is no record's id")
        record.verify_attachments()
    except RecordError as error:
        raise RecordError(f"{url}: {error}") from error
    location = record.snapshot.location if record.snapshot is not None else "none"
    if location.startswith(_IMAGE_PREFIX) or location in ("", RECORD_FILE, NOTES_FILE, REVIEW_FILE):
        raise RecordError(f"{url}: snapshot.location: {location!r:.60} is no name for an archive")
    return record


def _receive_snapshot(url: str, source: IO[bytes], record: HandoffRecord, directory: Path) -> None:
    if record.snapshot is None:
        if source.read(1):
            raise RecordError(f"{url}: goes on after its end")
        return
    found = transfer.receive_snapshot(url, source, directory / record.snapshot.location)
    if found != record.snapshot.model_copy(update={"location": found.location}):
        raise RecordError(f"{url}: its snapshot is not the one that its record names")


def _read_bytes(source: IO[bytes], size: int) -> bytes:
    """So many bytes, or as many as there are."""
    blocks = []
    while size and (block := source.read(size)):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


@contextlib.contextmanager
def _lock_imports(root: Path) -> Iterator[None]:
    """One import at a time: what another one left half done is nobody's any more."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / _LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
