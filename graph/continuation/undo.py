"""Undo what capture and continuation created, without removing anything that has changed since."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from langgraph_takeover.graph.continuation.files import (
    Manifest,
    hash_file,
    hash_tree,
    list_manifests,
    load_manifest,
    remove_origin,
    save_manifest,
)
from langgraph_takeover.graph.continuation.images import list_rebased
from langgraph_takeover.graph.errors import ContinuationError
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.sandbox.interface import Frozen
from langgraph_takeover.sandbox.storage.removal import is_directory, remove_tree, set_aside

STAGING_SUFFIX = ".partial"


class Removal(Frozen):
    """What was removed, and what stays, with the reason."""

    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def undo_continuations(home: Path, record_id: str) -> Removal:
    """Remove what the continuations of a record created, the newest first, unless it has changed since.

    What stays is kept in the manifest, so that a later call removes it from there once it is gone. Raises
    ContinuationError if there is nothing to undo, or if a manifest cannot be read.
    """
    paths = list_manifests(home, record_id)
    if not paths:
        raise ContinuationError(
            f"record {record_id}: nothing to undo: it was not continued from {home} (pass its --home)"
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
    with contextlib.suppress(OSError):  # not empty
        paths[0].parent.rmdir()
        paths[0].parent.parent.rmdir()
    return Removal(removed=tuple(removed), left=tuple(left))


def undo_manifest(manifest: Manifest, removed: list[str], left: list[str]) -> Manifest | None:
    """Remove what one continuation created; return the manifest of what stays, if anything does."""
    before = len(left)
    _remove_staging(manifest)
    _undo_checkout(manifest, removed, left)
    kept = tuple(each for each in manifest.files if not _undo_file(each.path, each.sha256, removed, left))
    for directory in reversed(manifest.directories):
        with contextlib.suppress(OSError):  # not empty, or gone
            Path(directory).rmdir()
    if len(left) == before:
        return None
    return manifest.model_copy(update={"files": kept})


def _remove_staging(manifest: Manifest) -> None:
    staging = Path(manifest.staging)
    if staging.name.startswith(".") and staging.name.endswith(STAGING_SUFFIX):
        remove_tree(staging)


def _undo_checkout(manifest: Manifest, removed: list[str], left: list[str]) -> None:
    checkout = Path(manifest.checkout)
    if not manifest.checkout_digest or not os.path.lexists(checkout):
        return
    if not is_directory(checkout) or hash_tree(checkout) != manifest.checkout_digest:
        if not (manifest.checkout_existed and is_directory(checkout) and not any(checkout.iterdir())):
            left.append(f"{checkout} (changed since; to remove it: rm -rf {checkout})")
        return
    checkout.rename(manifest.staging)  # a name from which a later undo removes it if this one is killed
    _remove_staging(manifest)
    if manifest.checkout_existed:
        checkout.mkdir()
    removed.append(str(checkout))


def _undo_file(name: str, sha256: str, removed: list[str], left: list[str]) -> bool:
    path = Path(name)
    if not os.path.lexists(path):
        return True
    if hash_file(path) != sha256:
        left.append(f"{path} (changed since: the agent has continued the session)")
        return False
    path.unlink()
    removed.append(str(path))
    return True


def discard_record(home: Path, record_id: str) -> Removal:
    """Remove a captured record with its snapshot, and what `--image` made of it.

    Raises RecordError, and ContinuationError if it was continued.
    """
    if list_manifests(home, record_id):
        raise ContinuationError(
            f"record {record_id}: it was continued (first: handoff continue {record_id} --undo --home {home})"
        )
    store = RecordStore(home / "records")
    store.load(record_id)
    removed = [store.directory(each) for each in (record_id, *list_rebased(home, record_id))]
    for directory in removed:
        remove_tree(set_aside(directory))
        remove_origin(home, directory.name)
    for empty in (home / "records", home / "captures", home):
        with contextlib.suppress(OSError):
            empty.rmdir()
    return Removal(removed=tuple(map(str, removed)))
