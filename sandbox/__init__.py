"""Machines: run a command, edit a file, tell what changed, freeze, thaw.

promises and values     machine
what all machines have  box, shell, files, changes, watch; workbench, repository
host, process           host, process, local; trees, overlay, bases; seccomp, cgroups, hierarchies, namespaces
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
    from sandbox import storage
    from sandbox.box import Box

    with storage.disk_errors():
        return Box(_backend(spec.backend).start(spec), shell_init=spec.shell_init)


def thaw(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> Sandbox:
    """A new machine with the files and the shell of `snapshot`, of the kind that `spec` says and no other.

    A snapshot of another kind of machine is converted where its base is one that `spec` starts from. `store` is the
    directory that `freeze` was given. Raises SnapshotCorrupt when the snapshot is gone or is not what its digest says,
    and SandboxUnavailable where it cannot be converted.
    """
    from sandbox import storage
    from sandbox.box import Box
    from sandbox.shell_state import read_state

    _require_convertible(snapshot, spec)
    state = read_state(snapshot.shell_state)
    with storage.disk_errors():
        enclosure = _backend(spec.backend).thaw(snapshot, store, spec)
        before, now = _rooms(snapshot.backend, snapshot.workspace), _rooms(spec.backend, enclosure.workspace)
        moved = state.moved(dict(zip(before, now, strict=False)))
        return Box(enclosure, shell_init=spec.shell_init, shell_state=moved)


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


def _require_convertible(snapshot: Snapshot, spec: SandboxSpec) -> None:
    from sandbox.bases import COPY, check_workspace

    check_workspace(snapshot)
    if snapshot.backend == spec.backend:
        return
    kind = f"the snapshot is one of a {snapshot.backend} sandbox"
    if spec.backend == "process" and snapshot.base.removeprefix(COPY).startswith("sha256:"):
        raise SandboxUnavailable(f"{kind} that began with an image; restore it with --sandbox host")
    if spec.backend == "docker" and not snapshot.base.startswith("sha256:"):
        raise SandboxUnavailable(f"{kind} that began with a directory; restore it with --sandbox host")
    if snapshot.location.startswith("sha256:") and spec.backend != "docker":
        raise SandboxUnavailable(f"{kind} and an image of its daemon; restore it with --sandbox docker")
    if snapshot.backend == "host" and spec.backend == "process" and not snapshot.base.startswith(COPY):
        raise SandboxUnavailable(f"{kind} with layers; restore it with --sandbox host")


def _rooms(backend: BackendName, workspace: str) -> tuple[str, ...]:
    """The workspace, the home and the directory for temporary files, as far as the kind of machine tells."""
    from sandbox.bases import ROOMS

    if backend == "process":
        return tuple(posixpath.join(posixpath.dirname(workspace), name) for name in ROOMS)
    if backend == "host":
        from sandbox.host import HostEnclosure

        return (workspace, *HostEnclosure.file_roots)
    return (workspace,)


def _backend(name: BackendName) -> Any:
    return import_module(_MODULES[name])
