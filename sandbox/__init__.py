"""Sandboxes: run commands, edit files, list changes, take snapshots and restore them.

Example:
    >>> from langgraph_takeover.sandbox import SandboxSpec, start
    >>> with start(SandboxSpec(backend="host", directory=repository)) as sandbox:
    ...     sandbox.run("echo hi", timeout_s=10).output
    'hi\\n'
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph_takeover.base.failures import end_block
from langgraph_takeover.base.telemetry import start_span

if TYPE_CHECKING:
    from langgraph_takeover.sandbox.backends.asynchronous import AsyncSandbox
    from langgraph_takeover.sandbox.directories.directory_snapshots import (
        DirectoryChanges,
        DirectorySnapshot,
        DirectorySnapshots,
    )
    from langgraph_takeover.sandbox.interface import (
        BackendName,
        BackgroundProcess,
        ExecResult,
        FileAccessError,
        FileChange,
        OutOfDiskError,
        ProcessStart,
        ProgramMount,
        Sandbox,
        SandboxSpec,
        SandboxUnavailableError,
        Snapshot,
        SnapshotCorruptError,
    )

__all__ = [
    "AsyncSandbox",
    "BackendName",
    "BackgroundProcess",
    "DirectoryChanges",
    "DirectorySnapshot",
    "DirectorySnapshots",
    "ExecResult",
    "FileAccessError",
    "FileChange",
    "OutOfDiskError",
    "ProcessStart",
    "ProgramMount",
    "Sandbox",
    "SandboxSpec",
    "SandboxUnavailableError",
    "Snapshot",
    "SnapshotCorruptError",
    "default_backend",
    "remove_stale_resources",
    "restore",
    "start",
]

_MODULES = {
    "docker": "langgraph_takeover.sandbox.backends.docker",
    "host": "langgraph_takeover.sandbox.backends.host",
    "process": "langgraph_takeover.sandbox.backends.process",
}


def start(spec: SandboxSpec) -> Sandbox:
    """Start a sandbox from its base. Raises SandboxUnavailableError, with a cure.

    Example:
        >>> from langgraph_takeover.sandbox import start
        >>> with start(sandbox_spec) as sandbox:
        ...     sandbox.run("git status --short", timeout_s=10).output
        ''
    """
    from langgraph_takeover.sandbox import ownership
    from langgraph_takeover.sandbox.backends.base import BackendSandbox

    with ownership.translate_disk_errors():
        backend = _load_backend(spec.backend).start(spec)
        return BackendSandbox(
            backend, shell_init=spec.shell_init, directories=_list_volumes(spec), caches=spec.caches
        )


def _list_volumes(spec: SandboxSpec) -> tuple[str, ...]:
    """The directories that an image declares as volumes, which its layers need not have."""
    if spec.image is None:
        return ()
    from langgraph_takeover.sandbox.docker_client import require_image

    return tuple(require_image(spec.image).attrs["Config"].get("Volumes") or ())


def restore(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> Sandbox:
    """Start a sandbox with the files and the shell of `snapshot`, in the back end of `spec` and no other.

    A snapshot of another back end is converted if `spec` can start from its base. `store` is the directory that
    `Sandbox.snapshot` got. With `restart_processes="always"`, what ran in the background is started again.
    Raises SnapshotCorruptError if the snapshot is missing or does not match its digest, and SandboxUnavailableError if it
    cannot be converted.

    Example:
        >>> from langgraph_takeover.sandbox import restore
        >>> with restore(record.snapshot, home.records.directory(record.id), sandbox_spec) as sandbox:
        ...     sandbox.run("git diff --name-only", timeout_s=10).output
        'galley/wrap.py\\n'
    """
    sandbox = _restore(snapshot, store, spec)
    if spec.restart_processes == "always":
        try:
            sandbox.start_processes(sandbox.earlier_processes or ())
        except BaseException:
            sandbox.close()
            raise
    return sandbox


def _restore(snapshot: Snapshot, store: Path, spec: SandboxSpec) -> Sandbox:
    """Like `restore`, without its processes."""
    from langgraph_takeover.sandbox import ownership
    from langgraph_takeover.sandbox.backends.base import BackendSandbox, describe_snapshot
    from langgraph_takeover.sandbox.background_processes import relocate_processes
    from langgraph_takeover.sandbox.shell_state import build_relocation, parse_state

    with (
        start_span("takeover.restore", {"takeover.operation": "restore"}) as span,
        ownership.translate_disk_errors(),
    ):
        describe_snapshot(span, snapshot, store)
        span.set({"takeover.backend": spec.backend, "takeover.snapshot.backend": snapshot.backend})
        _require_convertible(snapshot, spec)
        state = parse_state(snapshot.shell_state)
        backend = _load_backend(spec.backend).restore(snapshot, store, spec)
        before, now = (
            _writable_directories(snapshot.backend, snapshot.workspace),
            _writable_directories(spec.backend, backend.workspace),
        )
        moved = dict(zip(before, now, strict=False))
        processes, relocation = snapshot.processes, build_relocation(moved)
        if processes and relocation is not None:
            processes = relocate_processes(processes, relocation)
        return BackendSandbox(
            backend,
            shell_init=spec.shell_init,
            shell_state=state.relocate(moved),
            caches=spec.caches,
            earlier_processes=processes,
        )


def default_backend(*, allow_process: bool = False) -> BackendName:
    """Return the best back end of this host without Docker: `host` if bubblewrap works.

    Otherwise `process`, which isolates nothing, if you allow it: only for commands that you trust.
    Raises SandboxUnavailableError.

    Example:
        >>> from langgraph_takeover.sandbox import default_backend
        >>> default_backend(allow_process=True) in ("host", "process")
        True
    """
    from langgraph_takeover.sandbox.backends.host import unavailable_reason
    from langgraph_takeover.sandbox.interface import SandboxUnavailableError

    reason = unavailable_reason()
    if reason is None:
        return "host"
    if not allow_process:
        raise SandboxUnavailableError(
            f"no isolated sandbox is available here: {reason} (see sandbox probe; or use Docker; or, for commands that "
            "you trust, pass allow_process=True)"
        )
    return "process"


def describe_backend(backend: BackendName) -> str:
    """Describe how far a back end isolates, in one line."""
    from langgraph_takeover.sandbox.backends.host import describe_file_layers, unavailable_reason

    if backend == "docker":
        return "one container each: no network, no host files"
    if backend == "host":
        return f"bubblewrap: no network, no host files except the read-only system; {describe_file_layers()}"
    return f"plain processes without isolation ({unavailable_reason() or 'as requested'})"


def remove_stale_resources(
    backend: BackendName, *owners: str, kept_images: Collection[str] | None = ()
) -> None:
    """Remove the sandboxes of killed runs, and their Docker snapshot images except `kept_images` (None keeps all).

    Raises ValueError for an invalid owner name, and SandboxUnavailableError.

    Example:
        >>> from langgraph_takeover.sandbox import remove_stale_resources
        >>> remove_stale_resources(sandbox_spec.backend, "killed-run")
    """
    from langgraph_takeover.sandbox.ownership import is_owner

    for owner in owners:
        if not is_owner(owner):
            raise ValueError(f"not the name of a run: {owner!r:.60}")
    if backend == "docker":
        from langgraph_takeover.sandbox.gc import remove_owned

        remove_owned(owners, kept_images)
    else:
        from langgraph_takeover.sandbox.backends.processes import remove_run

        for owner in owners:
            remove_run(owner)


class SandboxManager:
    """The one sandbox that a run works on, started, restored and ended in one place: it holds at most one at a time."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self._sandbox: Sandbox | None = None
        self.was_started = False
        """Whether there has been a sandbox."""

    def sandbox(self) -> Sandbox:
        """Return the current sandbox; start it from its base at the first call."""
        if self._sandbox is None:
            self._sandbox = start(self.spec)
            self.was_started = True
        return self._sandbox

    @property
    def current(self) -> Sandbox | None:
        """The current sandbox, if there is one."""
        return self._sandbox

    def restore(self, snapshot: Snapshot, store: Path) -> Sandbox:
        """Replace the current sandbox by a restored one, whose processes the caller starts."""
        self.close()
        self._sandbox = _restore(snapshot, store, self.spec)
        self.was_started = True
        return self._sandbox

    def close(self) -> None:
        """Close the current sandbox. Another thread may call this while the sandbox works."""
        closed, self._sandbox = self._sandbox, None
        if closed is not None:
            closed.close()

    def __enter__(self) -> SandboxManager:
        return self

    def __exit__(self, *details: object) -> None:
        end_block(self.close, *details)


def _require_convertible(snapshot: Snapshot, spec: SandboxSpec) -> None:
    from langgraph_takeover.sandbox.interface import SandboxUnavailableError
    from langgraph_takeover.sandbox.snapshots.bases import COPY_PREFIX, check_workspace

    check_workspace(snapshot)
    if snapshot.backend == spec.backend:
        return
    kind = f"the snapshot belongs to a {snapshot.backend} sandbox"
    if spec.backend == "process" and snapshot.base.removeprefix(COPY_PREFIX).startswith("sha256:"):
        raise SandboxUnavailableError(f"{kind} that started from an image (restore it with --sandbox host)")
    if spec.backend == "docker" and not snapshot.base.startswith("sha256:"):
        raise SandboxUnavailableError(
            f"{kind} that started from a directory (restore it with --sandbox host)"
        )
    if snapshot.location.startswith("sha256:") and spec.backend != "docker":
        raise SandboxUnavailableError(
            f"{kind} and is an image on its daemon (restore it with --sandbox docker)"
        )
    if snapshot.backend == "host" and spec.backend == "process" and not snapshot.base.startswith(COPY_PREFIX):
        raise SandboxUnavailableError(f"{kind} with layers (restore it with --sandbox host)")


def _writable_directories(backend: BackendName, workspace: str) -> tuple[str, ...]:
    """Return the workspace, the home and the directory for temporary files, if the back end fixes them."""
    from langgraph_takeover.sandbox.snapshots.bases import WRITABLE_DIRECTORIES

    if backend == "process":
        return tuple(posixpath.join(posixpath.dirname(workspace), name) for name in WRITABLE_DIRECTORIES)
    if backend == "host":
        from langgraph_takeover.sandbox.backends.host import HostBackend

        return (workspace, *HostBackend.file_roots)
    return (workspace,)


def _load_backend(name: BackendName) -> Any:
    return import_module(_MODULES[name])


def __getattr__(name: str) -> Any:
    """Import a class when it is first used: a command's `--help` needs neither pydantic nor asyncio."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "backends.asynchronous" if name == "AsyncSandbox" else "interface"
    if name.startswith("Directory"):
        module = "directories.directory_snapshots"
    value = getattr(import_module(f"langgraph_takeover.sandbox.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if __name__ == "sandbox":  # the short name in a checkout
    from langgraph_takeover._checkout import alias

    alias(__name__)
