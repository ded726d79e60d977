"""Captured records in an image of the user: the same work, with the tools that it needs around it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from langgraph_takeover.graph.continuation.files import load_origin, save_origin
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
    from langgraph_takeover.sandbox.docker.client import require_image

    store = RecordStore(home / "records")
    record = store.load(record_id)
    if not is_captured(record):
        raise ContinuationError(f"--image: record {record_id} has an environment of its own (omit --image)")
    image_id = str(require_image(image).id)
    new_id = (
        f"{record_id[:_MAX_ID_CHARS]}{_IMAGE_SEPARATOR}{hashlib.sha256(image_id.encode()).hexdigest()[:8]}"
    )
    if new_id in store.list_ids():
        return store.load(new_id)
    if (origin := load_origin(home, record_id)) is not None:
        save_origin(home, new_id, origin)

    def build(directory: Path) -> HandoffRecord:
        snapshot = rebase_snapshot(record.required_snapshot, store.directory(record_id), image, directory)
        task = record.task.model_copy(update={"workspace": CHECKOUT_WORKSPACE})
        return record.model_copy(update={"id": new_id, "snapshot": snapshot, "task": task})

    return store.create(new_id, build)


def list_rebased(home: Path, record_id: str) -> list[str]:
    """List the records that `rebase_record` made of a record."""
    own = re.compile(rf"{re.escape(record_id[:_MAX_ID_CHARS])}{_IMAGE_SEPARATOR}[0-9a-f]{{8}}")
    return [each for each in RecordStore(home / "records").list_ids() if own.fullmatch(each)]
