"""Choose the back end that restores a snapshot."""

from __future__ import annotations

from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec, SandboxUnavailableError, Snapshot
from langgraph_takeover.sandbox.snapshots.bases import (
    COPY_PREFIX,
    EMPTY_DIGEST,
    WRITABLE_DIRECTORIES,
    Base,
    check_workspace,
    prepare_empty_base,
)


def make_restore_spec(
    snapshot: Snapshot, backend: BackendName | None = None, owner: str = "takeover"
) -> SandboxSpec:
    """Build a spec that can restore a snapshot from what this host has of its base.

    Default back end: `host`, whatever the snapshot says. Raises SandboxUnavailableError if a directory's base is not on
    this host, or if the back end is not available or cannot start from the base.
    """
    check_workspace(snapshot)
    if backend is None:
        backend = require_isolated_backend()
    digest = snapshot.base.removeprefix(COPY_PREFIX)
    if digest.startswith("sha256:"):
        if backend == "process":
            raise SandboxUnavailableError(
                "the snapshot's sandbox started from an image (restore it with --sandbox host or --sandbox docker)"
            )
        return SandboxSpec(backend=backend, image=digest, workspace=snapshot.workspace, owner=owner)
    if backend == "docker":
        raise SandboxUnavailableError(
            "the snapshot's sandbox started from a directory (restore it with --sandbox host)"
        )
    base = prepare_empty_base() if digest == EMPTY_DIGEST else Base(digest=digest, is_system=False)
    for directory in (base.tree / WRITABLE_DIRECTORIES[0], base.tree):
        if directory.is_dir():
            return SandboxSpec(backend=backend, directory=directory, owner=owner)
    raise SandboxUnavailableError(
        f"the snapshot's base {digest[:19]} is not on this host (pass the repository that the run started with)"
    )


def require_isolated_backend() -> BackendName:
    """Return the back end for snapshots of unknown origin: `host`. Raises SandboxUnavailableError if it does not work here."""
    if reason := host.unavailable_reason():
        raise SandboxUnavailableError(
            f"no isolated sandbox: {reason} (or use --sandbox docker, or --sandbox process --allow-unisolated)"
        )
    return "host"
