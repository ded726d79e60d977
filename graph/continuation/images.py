"""Captured records in an image of the user: the same work, with the tools that it needs around it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from langgraph_takeover.graph.continuation.files import KnownRecord, compute_key, load_known, save_known
from langgraph_takeover.graph.errors import ContinuationError
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore
from langgraph_takeover.sandbox.backends.checkouts import CHECKOUT_WORKSPACE, rebase_snapshot
from langgraph_takeover.sandbox.snapshots.bases import COPY_PREFIX, EMPTY_DIGEST

_IMAGE_SEPARATOR = "-on-"
_MAX_ID_CHARS = 180


def is_captured(record: HandoffRecord) -> bool:
    """Whether a record has a captured repository, and so no system around it that its work depends on."""
    snapshot = record.required_snapshot
    return not record.thread_id and snapshot.base.removeprefix(COPY_PREFIX) == EMPTY_DIGEST


def rebase_record(home: Path, record_id: str, image: str) -> HandoffRecord:
    """Save a captured record again with its repository in a Docker image; return the new record, or the one that exists.

    Raises ContinuationError, RecordError, SnapshotCorruptError, SandboxUnavailableError and OutOfDiskError.
    """
    from langgraph_takeover.sandbox.docker_client import require_image

    store = RecordStore(home / "records")
    record = store.load(record_id)
    if not is_captured(record):
        raise ContinuationError(f"--image: record {record_id} has an environment of its own (omit --image)")
    image_id = str(require_image(image).id)
    new_id = (
        f"{record_id[:_MAX_ID_CHARS]}{_IMAGE_SEPARATOR}{hashlib.sha256(image_id.encode()).hexdigest()[:8]}"
    )
    if new_id in store.list_ids():
        existing = store.load(new_id)
        if not is_made_of(home, existing, record):
            raise ContinuationError(
                f"--image: record {new_id} exists, but was not made here of {record_id} (remove it: handoff discard "
                f"{new_id} --home {home})"
            )
        return existing

    def build(directory: Path) -> HandoffRecord:
        snapshot = rebase_snapshot(record.required_snapshot, store.directory(record_id), image, directory)
        task = record.task.model_copy(update={"workspace": CHECKOUT_WORKSPACE})
        return record.model_copy(update={"id": new_id, "snapshot": snapshot, "task": task})

    rebased = store.create(new_id, build)
    known = load_known(home, record) or KnownRecord()
    save_known(home, rebased, known.model_copy(update={"image_of": compute_key(record)}))
    return rebased


def list_rebased(home: Path, record_id: str) -> list[str]:
    """List the records whose names say that `rebase_record` made them of a record; `is_made_of` knows whether it did."""
    own = re.compile(rf"{re.escape(record_id[:_MAX_ID_CHARS])}{_IMAGE_SEPARATOR}[0-9a-f]{{8}}")
    return [each for each in RecordStore(home / "records").list_ids() if own.fullmatch(each)]


def is_made_of(home: Path, rebased: HandoffRecord, record: HandoffRecord) -> bool:
    """Whether `rebase_record` of this user made exactly the first record of exactly the second."""
    known = load_known(home, rebased) if rebased.snapshot and record.snapshot else None
    return known is not None and known.image_of == compute_key(record)
