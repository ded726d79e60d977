"""The workspace files in a snapshot, under the names that a sandbox's report of changes uses."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.interface import Snapshot
from langgraph_takeover.sandbox.shell.session import escape_non_utf8
from langgraph_takeover.sandbox.snapshots import transfer
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
    return select_workspace(snapshot, transfer.read_archive_contents(snapshot, store))


def select_workspace(snapshot: Snapshot, held: ArchiveContents) -> SnapshotContents:
    """Return the workspace files among the contents of a snapshot's archive."""
    top = _workspace_prefix(snapshot, held)
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


def _workspace_prefix(snapshot: Snapshot, archive_contents: ArchiveContents) -> str:
    """Return where the workspace is in the archive: with a directory as base, below its own directory."""
    tops = {path.partition("/")[0] for path in (*archive_contents.files, *archive_contents.hidden)}
    in_rooms = snapshot.backend == "process" or (
        snapshot.backend == "host" and tops <= set(WRITABLE_DIRECTORIES)
    )
    prefix = WRITABLE_DIRECTORIES[0] if in_rooms else snapshot.workspace.strip("/")
    return f"{prefix}/" if prefix else ""
