"""What a snapshot holds of its workspace, under the names that a machine's report of changes has."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sandbox import transfer
from sandbox.archive import Held
from sandbox.bases import COPY, ROOMS
from sandbox.machine import Snapshot
from sandbox.shell import shown


class Contents(NamedTuple):
    """The workspace's files in which a snapshot differs from its base; or all of them, if it is `whole`."""

    files: dict[str, str | None]
    """SHA-256 by path, relative to the workspace; None where a report tells another."""
    hidden: frozenset[str]
    whole: bool

    def is_gone(self, path: str) -> bool:
        """Whether nothing lies there any more."""
        if path in self.files:
            return False
        parents = [path[:end] for end, letter in enumerate(path) if letter == "/"]
        covered = any(parent in self.hidden or parent in self.files for parent in parents)
        return self.whole or covered or path in self.hidden or "" in self.hidden


def contents(snapshot: Snapshot, store: Path) -> Contents:
    """What is in a snapshot, all of it verified. Raises SnapshotCorrupt, SandboxUnavailable."""
    held = transfer.held(snapshot, store)
    top = _workspace(snapshot, held)
    return Contents(
        {shown(path[len(top) :]): sha256 for path, sha256 in held.files.items() if path.startswith(top)},
        frozenset(
            shown(f"{path}/"[len(top) :].rstrip("/")) for path in held.hidden if f"{path}/".startswith(top)
        ),
        snapshot.base.startswith(COPY),
    )


def _workspace(snapshot: Snapshot, held: Held) -> str:
    """Where the workspace lies in the archive: what stands on a directory has rooms, and no system around it."""
    tops = {path.partition("/")[0] for path in (*held.files, *held.hidden)}
    in_rooms = snapshot.backend == "process" or (snapshot.backend == "host" and tops <= set(ROOMS))
    place = ROOMS[0] if in_rooms else snapshot.workspace.strip("/")
    return f"{place}/" if place else ""
