"""Undo what capture and continuation created, images included, without removing anything that has changed since."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.continuation.known_records import (
    CreatedDirectory,
    CreatedFile,
    KnownRecord,
    Manifest,
    compute_key,
    forget_known,
    hash_file,
    hash_tree,
    identify,
    list_manifests,
    load_known,
    load_manifest,
    remove_empty_state,
    save_known,
    save_manifest,
)
from langgraph_takeover.graph.usage_errors import ContinuationError
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore
from langgraph_takeover.sandbox.backends.checkouts import CHECKOUT_WORKSPACE, rebase_snapshot
from langgraph_takeover.sandbox.snapshots.bases import COPY_PREFIX, EMPTY_DIGEST
from langgraph_takeover.sandbox.untrusted_trees import is_directory, remove_tree, set_aside

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


STAGING_SUFFIX = ".partial"


class Removal(Frozen):
    """What was removed, and what stays, with the reason."""

    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """What stays as asked."""


def undo_continuations(home: Path, record_id: str) -> Removal:
    """Remove what this user's continuations of a record created, the newest first, unless it has changed since.

    Only files and directories with the identity that they had at their creation are removed. What stays is kept in the
    manifest, so that a later call removes it from there once it is gone. Raises ContinuationError if there is nothing to
    undo, or if a manifest cannot be read.
    """
    paths = list_manifests(home, record_id)
    if not paths:
        raise ContinuationError(
            f"record {record_id}: nothing to undo: you have not continued it from {home} (pass its --home)"
        )
    removed: list[str] = []
    left: list[str] = []
    for path in reversed(paths):
        manifest = load_manifest(path)
        remaining = undo_manifest(manifest, removed, left) if manifest is not None else None
        if remaining is None:
            path.unlink()
        else:
            save_manifest(path, remaining)
    remove_empty_state()
    return Removal(removed=tuple(removed), left=tuple(left))


def undo_manifest(manifest: Manifest, removed: list[str], left: list[str]) -> Manifest | None:
    """Remove what one continuation created; return the manifest of what stays, if anything does."""
    before = len(left)
    _remove_staging(manifest, left)
    _undo_checkout(manifest, removed, left)
    files = tuple(each for each in manifest.files if not _undo_file(each, removed, left))
    directories = tuple(each for each in reversed(manifest.directories) if not _undo_directory(each, left))
    if len(left) == before:
        return None
    return manifest.model_copy(update={"files": files, "directories": directories[::-1]})


def _remove_staging(manifest: Manifest, left: list[str]) -> None:
    staging = Path(manifest.staging)
    found = identify(staging)
    if found is None:
        return
    if found in (manifest.staging_inode, manifest.checkout_inode):
        remove_tree(staging)
        return
    if manifest.staging_inode is None:  # killed before its identity was saved: it is empty
        with contextlib.suppress(OSError):
            staging.rmdir()
            return
    left.append(f"{staging} (not what the continuation created)")


def _undo_checkout(manifest: Manifest, removed: list[str], left: list[str]) -> None:
    checkout = Path(manifest.checkout)
    if not manifest.checkout_digest or not os.path.lexists(checkout):
        return
    if identify(checkout) != manifest.checkout_inode or hash_tree(checkout) != manifest.checkout_digest:
        if not (manifest.checkout_existed and is_directory(checkout) and not any(checkout.iterdir())):
            left.append(f"{checkout} (changed since; to remove it: rm -rf {checkout})")
        return
    checkout.rename(manifest.staging)  # a name from which a later undo removes it if this one is killed
    _remove_staging(manifest, left)
    if manifest.checkout_existed:
        checkout.mkdir()
    removed.append(str(checkout))


def _undo_file(file: CreatedFile, removed: list[str], left: list[str]) -> bool:
    path = Path(file.path)
    found = identify(path)
    if found is None:
        return True
    if hash_file(path) != file.sha256 or found != (file.inode or found):
        left.append(f"{path} (changed since: the agent has continued the session)")
        return False
    path.unlink()
    removed.append(str(path))
    return True


def _undo_directory(directory: CreatedDirectory, left: list[str]) -> bool:
    path = Path(directory.path)
    found = identify(path)
    if found is None:
        return True
    if found != directory.inode:
        left.append(f"{path} (not what the continuation created)")
        return False
    with contextlib.suppress(OSError):  # not empty: others use it too
        path.rmdir()
    return True


def discard_record(home: Path, record_id: str, *, force: bool = False) -> Removal:
    """Remove a captured record with its snapshot, and what this user's `--image` made of it.

    `force`: also a record that was continued. Its continuations stay, and their manifests are removed. Raises RecordError,
    and ContinuationError if it was continued.
    """
    left: list[str] = []
    manifests = list_manifests(home, record_id)
    if manifests and not force:
        raise ContinuationError(
            f"record {record_id}: it was continued (first: handoff continue {record_id} --undo --home {home}; to keep "
            f"what that leaves: handoff discard {record_id} --force --home {home})"
        )
    store = RecordStore(home / "records")
    record = store.load(record_id)
    kept = [path for manifest in manifests for path in _list_created(load_manifest(manifest))]
    kept += _list_children(store, record)
    discarded = [record]
    for name in list_rebased(home, record_id):
        try:
            rebased = store.load(name)
            is_own = is_made_of(home, rebased, record)
        except RecordError:
            is_own = False
        if is_own:
            discarded.append(rebased)
        else:
            left.append(f"{store.directory(name)} (not made here of this record)")
    removed = [store.directory(each.id) for each in discarded]
    for each, directory in zip(discarded, removed, strict=True):
        remove_tree(set_aside(directory))
        if each.snapshot is not None:
            forget_known(home, each)
    for manifest in manifests:
        manifest.unlink(missing_ok=True)
    remove_empty_state()
    for empty in (home / "records", home):
        with contextlib.suppress(OSError):
            empty.rmdir()
    return Removal(removed=tuple(map(str, removed)), left=tuple(left), kept=tuple(dict.fromkeys(kept)))


def _list_children(store: RecordStore, record: HandoffRecord) -> list[str]:
    """List the records that continue a record, each with a description."""
    children = []
    for name in store.list_ids():
        with contextlib.suppress(RecordError):
            parent = store.load(name).parent
            if parent is not None and (parent.id, parent.digest) == (record.id, record.digest):
                children.append(f"{store.directory(name)} (continues it, with a snapshot of its own)")
    return children


def _list_created(manifest: Manifest | None) -> list[str]:
    """List the existing files and directories of a continuation, each with a description."""
    if manifest is None:
        return []
    places = [
        (
            manifest.checkout if manifest.checkout_digest else "",
            f"checkout of {manifest.agent}, with its files such as .env",
        ),
        (manifest.staging, "unfinished checkout"),
        *((each.path, f"session of {manifest.agent}") for each in manifest.files),
    ]
    return [f"{path} ({what})" for path, what in places if path and os.path.lexists(path)]
