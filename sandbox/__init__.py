"""Machines: run a command, edit a file, tell what changed, freeze, thaw.

promises and values     machine
what all machines have  box, shell, files, changes, watch; workbench, repository
host, process           host, process, local; trees, overlay, bases; seccomp
docker                  container, containment, daemon, wire, freezer; images, tarballs
snapshots as files      layers, differences, archive, contents, transfer
directories and owners  storage, removal, ownership
garbage collection      gc
commands                __main__, probe, listing
for other backends      contract
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any

from sandbox.machine import (
    OWNER,
    BackendName,
    ExecResult,
    FileChange,
    FileRefused,
    OutOfDisk,
    Sandbox,
    SandboxSpec,
    SandboxUnavailable,
    Snapshot,
    SnapshotCorrupt,
)

__all__ = [
    "BackendName",
    "ExecResult",
    "FileChange",
    "FileRefused",
    "OutOfDisk",
    "Sandbox",
    "SandboxSpec",
    "SandboxUnavailable",
    "Snapshot",
    "SnapshotCorrupt",
    "default_backend",
    "remove_leftovers",
    "start",
    "thaw",
]

_MODULES = {"docker": "sandbox.container", "host": "sandbox.host", "process": "sandbox.process"}


def start(spec: SandboxSpec) -> Sandbox:
    """Start a machine from its base. Raises SandboxUnavailable, with what to do about it."""
    from sandbox.box import Box

    return Box(_backend(spec.backend).start(spec), shell_init=spec.shell_init)


def thaw(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> Sandbox:
    """A new machine as it was when `snapshot` was taken, files and shell alike.

    `store` is the directory that `freeze` was given. Raises SnapshotCorrupt when the snapshot is gone
    or is not what its digest says.
    """
    from sandbox.box import Box

    enclosure = _backend(snapshot.backend).thaw(snapshot, store, spec)
    before, now = snapshot.workspace, enclosure.workspace
    if snapshot.backend == "process":
        # Home and tmp lie beside the workspace and have moved with it.
        before, now = posixpath.dirname(before), posixpath.dirname(now)
    state = snapshot.shell_state.replace(before, now)
    return Box(enclosure, shell_init=spec.shell_init, shell_state=state)


def default_backend() -> BackendName:
    """The embedded machine that this host can have: `host` where bubblewrap works, else `process`."""
    from sandbox.host import unavailable

    return "process" if unavailable() else "host"


def describe(backend: BackendName) -> str:
    """One line on how far a backend isolates, for the person who runs it."""
    from sandbox.host import files_way, unavailable

    if backend == "docker":
        return "a container each: no network, no host files"
    if backend == "host":
        return f"bubblewrap: no network, no host files but the read-only system; {files_way()}"
    return f"plain processes without isolation ({unavailable() or 'as asked'})"


def remove_leftovers(backend: BackendName, *owners: str, keep: Collection[str] | None = ()) -> None:
    """Remove what killed runs left behind: their machines, and frozen images not in `keep`; None keeps all.

    Raises ValueError for what is no owner's name, and SandboxUnavailable.
    """
    for owner in owners:
        if not re.fullmatch(OWNER, owner):
            raise ValueError(f"{owner!r:.60} is the name of no run")
    if backend == "docker":
        from sandbox.gc.docker import remove_owned

        remove_owned(owners, keep)
    else:
        from sandbox.local import remove_run

        for owner in owners:
            remove_run(owner)


def _backend(name: BackendName) -> Any:
    return import_module(_MODULES[name])
