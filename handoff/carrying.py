"""One record as one file that another machine can take in, at any place that fsspec can name.

A line of magic, the length of a header, the header (the record with its notes and its review as JSON), a
SHA-256 over all that comes before it, and the snapshot as `sandbox.transfer` sends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from handoff.record import (
    NOTES_FILE,
    RECORD_FILE,
    REVIEW_FILE,
    HandoffRecord,
    RecordRefused,
    RecordStore,
    as_json,
    is_id,
    parsed,
)
from sandbox import transfer

_MAGIC = b"takeover record 1\n"
_LENGTH = struct.Struct(">Q")
_LONGEST_HEADER = transfer.LONGEST_HEADER
_LOCK = ".importing"
_IMAGE = "sha256:"


class RecordThere(ValueError):
    """The store has a record of that id already."""


def export(directory: Path, url: str) -> None:
    """Write a record, verified, to one file; it appears whole or not at all.

    Raises RecordRefused, SnapshotCorrupt, OutOfDisk, SandboxUnavailable.
    """
    record = RecordStore(directory.parent).load(directory.name)
    with contextlib.ExitStack() as stack:
        place = None
        if record.snapshot is not None:
            place = stack.enter_context(transfer.archived(record.snapshot, directory))
        header = as_json(_portable(record)).encode()
        if len(header) > _LONGEST_HEADER:
            raise RecordRefused(f"record {record.id}: is too large to be carried: {len(header):,} bytes")
        stack.enter_context(transfer.failing(url))
        out = stack.enter_context(transfer.appearing(url))
        head = _MAGIC + _LENGTH.pack(len(header)) + header
        out.write(head + hashlib.sha256(head).digest())
        if place is not None and record.snapshot is not None:
            transfer.send(record.snapshot, place, out)


def import_(url: str, root: Path, *, replace: bool = False) -> Path:
    """Put an exported record, verified, into a store; its directory.

    The file is hostile until then. Raises RecordThere, unless it is to be replaced; RecordRefused,
    SnapshotCorrupt, OutOfDisk, SandboxUnavailable.
    """
    import fsspec

    store = RecordStore(root)
    with (
        transfer.failing(url, into=root, but=(RecordRefused, RecordThere)),
        _alone(root),
        fsspec.open(url, "rb") as source,
    ):
        record = _received(url, source)
        place = store.directory(record.id)

        @contextlib.contextmanager
        def allowed() -> Iterator[None]:
            if place.exists() and not replace:
                raise RecordThere(f"{place}: is there already")
            yield

        def make(partial: Path) -> HandoffRecord:
            _take_snapshot(url, source, record, partial)
            store.restore_additions(partial, record)
            return record

        with allowed():  # before all of it is read
            store.create(record.id, make, alone=allowed)
    return place


def carried_digest(record: HandoffRecord) -> str:
    """The digest that the record has where it was taken in."""
    return _portable(record).digest


def _portable(record: HandoffRecord) -> HandoffRecord:
    """The same, with an archive where the snapshot was an image, which no other daemon has."""
    snapshot = record.snapshot
    if snapshot is None or not snapshot.location.startswith(_IMAGE):
        return record
    archived = snapshot.model_copy(update={"location": f"{snapshot.digest}.tar.zst"})
    return record.model_copy(update={"snapshot": archived}).sealed()


def _received(url: str, source: IO[bytes]) -> HandoffRecord:
    """The record that a file begins with, verified, and with names that stay in its directory."""
    magic = _taken(source, len(_MAGIC))
    if magic != _MAGIC:
        is_snapshot = magic.startswith(b"takeover snap")
        cure = "; a snapshot alone is for `python -m sandbox import`" if is_snapshot else ""
        raise RecordRefused(f"{url}: is no record of a format that is known here{cure}")
    length = _taken(source, _LENGTH.size)
    size = _LENGTH.unpack(length)[0] if len(length) == _LENGTH.size else 0
    if size > _LONGEST_HEADER:
        raise RecordRefused(f"{url}: claims to be larger than any record")
    header = _taken(source, size)
    if _taken(source, hashlib.sha256().digest_size) != hashlib.sha256(magic + length + header).digest():
        raise RecordRefused(f"{url}: is cut short or changed: its checksum differs")
    record = parsed(header, url, HandoffRecord)
    try:
        record.verify()
        if not is_id(record.id):
            raise RecordRefused(f"{record.id!r:.60} is no record's id")
        record.verify_additions()
    except RecordRefused as error:
        raise RecordRefused(f"{url}: {error}") from error
    location = record.snapshot.location if record.snapshot is not None else "none"
    if location.startswith(_IMAGE) or location in ("", RECORD_FILE, NOTES_FILE, REVIEW_FILE):
        raise RecordRefused(f"{url}: snapshot.location: {location!r:.60} is no name for an archive")
    return record


def _take_snapshot(url: str, source: IO[bytes], record: HandoffRecord, directory: Path) -> None:
    if record.snapshot is None:
        if source.read(1):
            raise RecordRefused(f"{url}: goes on after its end")
        return
    found = transfer.receive(url, source, directory / record.snapshot.location)
    if found != record.snapshot.model_copy(update={"location": found.location}):
        raise RecordRefused(f"{url}: its snapshot is not the one that its record names")


def _taken(source: IO[bytes], size: int) -> bytes:
    """So many bytes, or as many as there are."""
    blocks = []
    while size and (block := source.read(size)):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One import at a time: what another one left half done is nobody's any more."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / _LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
