"""Snapshots of a live directory that no sandbox owns, such as a person's checkout in which an agent works."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.sandbox.directories.directory_reader import (
    DirectoryReader,
    Exclusions,
    list_git_ignored,
    list_mounts,
)
from langgraph_takeover.sandbox.directories.directory_store import DirectoryStore, SavedEntry, open_store
from langgraph_takeover.sandbox.directories.directory_writer import (
    DirectoryWriter,
    PlannedChange,
    plan_changes,
)
from langgraph_takeover.sandbox.interface import CACHES, SandboxUnavailableError
from langgraph_takeover.sandbox.repository import MAX_LEFT_OUT, LeftOut
from langgraph_takeover.sandbox.shell import escape_non_utf8


class DirectorySnapshot(Frozen):
    """A saved state of a directory.

    `files` counts files and links. `stored_bytes` are new in the store: what it already has is not stored again. `left_out`
    names what is not saved, at most 500 paths, and `left_out_count` counts them: pipes, sockets, devices, unreadable or too
    large files, other file systems. Excluded names are not among them.

    Example:
        >>> from pathlib import Path
        >>> from langgraph_takeover.sandbox import DirectorySnapshots
        >>> checkout = Path("checkout")
        >>> checkout.mkdir()
        >>> _ = (checkout / "notes").write_text("first")
        >>> snapshot = DirectorySnapshots(checkout, store=Path("snapshots")).take()
        >>> snapshot.files, snapshot.left_out
        (1, ())
    """

    id: str
    label: str
    created_at: datetime
    files: int
    stored_bytes: int
    left_out: tuple[LeftOut, ...] = ()
    left_out_count: int = 0


class DirectoryChanges(Frozen):
    """What a restore changes, or has changed: sorted paths in the directory.

    `changed` are files and links with other content, mode or time, and directories with another mode. `left_out` names what
    is left as it is and may differ from the snapshot, at most 500 paths. `before` is the id of a snapshot of the state
    before a restore.

    Example:
        >>> from pathlib import Path
        >>> from langgraph_takeover.sandbox import DirectorySnapshots
        >>> checkout = Path("checkout")
        >>> checkout.mkdir()
        >>> snapshots = DirectorySnapshots(checkout, store=Path("snapshots"))
        >>> empty = snapshots.take()
        >>> _ = (checkout / "notes").write_text("first")
        >>> snapshots.compare(empty.id).removed
        ('notes',)
    """

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    left_out_count: int = 0
    before: str | None = None


class DirectorySnapshots:
    """Snapshots of a directory that is in use, and their restores.

    `store` is a directory for the snapshots of this directory only; where it lies inside, it is excluded. Directories named
    in `ignored_names`, by default caches of tools, are neither saved nor changed; `parent/name` means the name below one
    parent only. The same holds for what git ignores with `ignore_with_git`, and for files of more than `max_file_bytes`.
    Everything else is saved, `.git` included: content, modes, times, links as links; owners, if root restores. Hard links
    become files of their own; extended attributes are not saved. No program runs, except git with `ignore_with_git`.

    Stop what works in the directory before a call. What changes during one is read again, or left out and named. Each
    method waits at most 30 s for another process that uses the store.

    Raises FileNotFoundError, and SandboxUnavailableError for a directory that contains the home directory.

    Example:
        >>> from pathlib import Path
        >>> from langgraph_takeover.sandbox import DirectorySnapshots
        >>> notes = Path("checkout/notes")
        >>> notes.parent.mkdir()
        >>> _ = notes.write_text("first")
        >>> snapshots = DirectorySnapshots(notes.parent, store=Path("snapshots"))
        >>> first = snapshots.take(label="before the agent")
        >>> notes.unlink()
        >>> snapshots.restore(first.id).created
        ('notes',)
        >>> notes.read_text()
        'first'
    """

    def __init__(
        self,
        directory: Path,
        *,
        store: Path,
        ignored_names: Collection[str] = CACHES,
        ignore_with_git: bool = False,
        max_file_bytes: int = 1024**3,
    ) -> None:
        self._directory = directory.resolve(strict=True)
        self._store = store.absolute()
        self._ignored_names = frozenset(ignored_names)
        self._ignore_with_git = ignore_with_git
        self._max_file_bytes = max_file_bytes
        home = Path(os.environ.get("HOME") or "/")
        if home.resolve().is_relative_to(self._directory):
            raise SandboxUnavailableError(
                f"{self._directory}: contains the home directory {home} (pass the directory of one project)"
            )

    def take(self, *, label: str = "") -> DirectorySnapshot:
        """Save the present state; first finish a restore that was interrupted.

        Raises SandboxUnavailableError, OutOfDiskError, SnapshotCorruptError.
        """
        with self._open() as (store, root):
            if unfinished := store.find_restore():
                self._restore(store, root, unfinished)
            with store.change():
                return self._take(store, root, label)[0]

    def list(self) -> tuple[DirectorySnapshot, ...]:
        """Return all snapshots, the oldest first, including those that restores have taken."""
        with self._open() as (store, _):
            return tuple(DirectorySnapshot.model_validate_json(facts) for facts in store.list_snapshots())

    def compare(self, snapshot_id: str) -> DirectoryChanges:
        """Return what a restore would change. Nothing is saved. Raises what `take` raises."""
        with self._open() as (store, root):
            wanted = store.read_root(snapshot_id)
            with store.change(keep=False):
                reader = self._make_reader(store, root)
                changes = list(plan_changes(store, reader.read(root), wanted))
            blocked = {each.path: each.obstacle for each in changes if each.obstacle}
            return DirectoryChanges(**_sort_changes(changes), **_describe_left_out(reader.left_out | blocked))

    def restore(self, snapshot_id: str) -> DirectoryChanges:
        """Change the directory to a saved state, and save its present state first.

        Only what differs is written. A path that cannot be restored is left as it is and named. If the call is interrupted,
        the next `take` finishes it; a restore of any snapshot takes its place. Raises what `take` raises.
        """
        with self._open() as (store, root):
            return self._restore(store, root, snapshot_id)

    def prune(self, *, keep: Collection[str]) -> int:
        """Remove all snapshots except those with the ids `keep`; return how many bytes the store has become smaller."""
        with self._open() as (store, _):
            return store.keep_only(keep)

    def verify(self) -> tuple[str, ...]:
        """Read the whole store; return the ids of the snapshots that cannot be restored completely, the oldest first."""
        with self._open() as (store, _):
            return tuple(store.list_damaged())

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[DirectoryStore, int]]:
        with open_store(self._store, self._directory) as store:
            root = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                yield store, root
            finally:
                os.close(root)

    def _make_reader(self, store: DirectoryStore, root: int) -> DirectoryReader:
        place = self._store.stat()
        exclusions = Exclusions(
            names=self._ignored_names,
            max_file_bytes=self._max_file_bytes,
            paths=list_git_ignored(self._directory) if self._ignore_with_git else frozenset(),
            mounts=list_mounts(root),
            store=(place.st_dev, place.st_ino),
        )
        return DirectoryReader(store, exclusions)

    def _take(
        self, store: DirectoryStore, root: int, label: str
    ) -> tuple[DirectorySnapshot, SavedEntry, dict[str, str]]:
        reader = self._make_reader(store, root)
        entry = reader.read(root)
        snapshot = DirectorySnapshot(
            id=secrets.token_hex(8),
            label=label,
            created_at=datetime.now(UTC),
            files=reader.files,
            stored_bytes=store.added_bytes,
            **_describe_left_out(reader.left_out),
        )
        store.add_snapshot(snapshot.id, snapshot.model_dump_json(), entry)
        return snapshot, entry, reader.left_out

    def _restore(self, store: DirectoryStore, root: int, snapshot_id: str) -> DirectoryChanges:
        wanted = store.read_root(snapshot_id)
        with store.change():
            before, found, left_out = self._take(store, root, f"before the restore of {snapshot_id}")
            changes = list(plan_changes(store, found, wanted))
            store.begin_restore(snapshot_id, before.id)
        with contextlib.closing(DirectoryWriter(root, store)) as writer:
            made = [each for each in changes if writer.carry_out(each)]
        with store.change():
            store.end_restore()
        return DirectoryChanges(
            before=before.id, **_sort_changes(made), **_describe_left_out(left_out | writer.left_out)
        )


def _sort_changes(changes: Iterable[PlannedChange]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {"created": set(), "changed": set(), "removed": set()}
    for path, before, after in (each for each in changes if each.obstacle is None):
        if before is None:
            found["created"].add(path)
        elif after is None:
            found["removed"].add(path)
        elif after.kind != "directory" or before.mode != after.mode:
            found["changed"].add(path or ".")
    return {kind: tuple(sorted(map(escape_non_utf8, paths))) for kind, paths in found.items()}


def _describe_left_out(found: dict[str, str]) -> dict[str, Any]:
    listed = sorted((escape_non_utf8(path), reason) for path, reason in found.items())
    named = tuple(LeftOut(path=path, reason=reason) for path, reason in listed[:MAX_LEFT_OUT])
    return {"left_out": named, "left_out_count": len(listed)}
