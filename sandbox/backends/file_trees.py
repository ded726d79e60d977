"""The files of a `host` or `process` sandbox: layered over a base, or copied; saved and restored."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.backends import overlay
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.interface import (
    BackendName,
    OutOfDiskError,
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.isolation.limits import bytes_used
from langgraph_takeover.sandbox.snapshots import archive_format, archive_reader, archive_writer, bases, images
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name
from langgraph_takeover.sandbox.snapshots.bases import COPY_PREFIX, Base
from langgraph_takeover.sandbox.untrusted_trees import remove_on_failure, remove_tree

_DIFF_DIRECTORY = "diff"
_DIFF_TARBALL = "diff.tar"

PauseProcesses = Callable[[], contextlib.AbstractContextManager[None]]
SavedDigests = tuple[str, str]
"""The digests of a base and of the changes to it."""


class FileTree(Protocol):
    """The files of one sandbox."""

    base: Base
    root: Path
    """The whole tree, as seen after `entry_command`."""
    is_layered: bool
    """Whether a snapshot of an idle sandbox replaces its layers."""

    @property
    def namespaces(self) -> overlay.NamespaceHolder | None:
        """The namespaces in which the files are visible; None for plain processes."""

    def entry_command(self) -> list[str]:
        """Return the start of a command line that sees the files."""

    def layers(self) -> LayerStack: ...

    def own_layers(self) -> tuple[Path, ...]:
        """The directories that this sandbox has written since its start, the current one first."""

    def begin_snapshot(
        self, store: Path, *, is_idle: bool, pause: PauseProcesses
    ) -> Callable[[], SavedDigests]:
        """Save the files; the returned function stores the result in `store` while the sandbox continues.

        It also ends the namespaces of the old layers. `is_idle` means that only waiting shells run inside; otherwise
        `pause` stops everything while files are read.
        """

    def close(self) -> None: ...


class OverlayTree:
    """Layers mounted over a base. A snapshot turns the top layer into the newest lower layer.

    This takes the same time however many files changed, and a successor needs no copy either.
    """

    is_layered = True

    def __init__(self, base: Base, owner: str, lowers: tuple[Path, ...] = (), *, max_bytes: int) -> None:
        """Own layers that take more than the limit are merged at the next idle snapshot."""
        self.base = base
        self._owner = owner
        self._max_bytes = max_bytes
        self.root = overlay.merged_directory()
        self._old_namespaces: list[overlay.NamespaceHolder] = []
        self._own_lowers: tuple[Path, ...] = ()
        self._mount(lowers)

    def entry_command(self) -> list[str]:
        return self.namespaces.entry_command()

    def layers(self) -> LayerStack:
        return LayerStack(self._directory / _DIFF_DIRECTORY, *self._lowers, self.base.tree)

    def own_layers(self) -> tuple[Path, ...]:
        return (self._directory / _DIFF_DIRECTORY, *self._own_lowers)

    def begin_snapshot(
        self, store: Path, *, is_idle: bool, pause: PauseProcesses
    ) -> Callable[[], SavedDigests]:
        keeper = self.namespaces
        if not is_idle:
            # Running processes keep their files: the top layer stays in place and is copied.
            work_directory, lowers = (
                _pack_live_directory(self._directory / _DIFF_DIRECTORY, self._owner, keeper, pause),
                self._lowers,
            )
            return lambda: self._save((_unpack_live_directory(work_directory, keeper), *lowers), store)
        layers = (self._directory / _DIFF_DIRECTORY, *self._lowers)
        if len(layers) < overlay.MAX_LAYERS and not self._exceeds_limit():
            own = self.own_layers()
            self._mount(layers)
            self._own_lowers = own
            self._old_namespaces.append(keeper)
            return lambda: self._save(layers, store, keeper)
        # An archive holds the merged layers, so it is the only layer to continue with.
        with pause():  # the shell's own traps may start programs that still write
            kept = self._save(layers, store)
        merged = _unpack_archive(store / archive_name(kept[1]), *kept, self._owner)
        self._mount((merged,))
        self._own_lowers = (merged,)
        self._old_namespaces.append(keeper)
        return lambda: kept

    def _exceeds_limit(self) -> bool:
        """Whether layers that hide each other's files take more disk space than the sandbox may use."""
        return len(self._own_lowers) > 1 and sum(map(bytes_used, self._own_lowers)) > self._max_bytes

    def close(self) -> None:
        for keeper in (*self._old_namespaces, self.namespaces):
            keeper.close()
        remove_tree(self._directory)

    def _mount(self, lowers: tuple[Path, ...]) -> None:
        """Mount an empty layer on these; on failure, nothing has changed."""
        work_directory = overlay.create_layer_directory(self._owner)
        with remove_on_failure(work_directory):
            self.namespaces = overlay.NamespaceHolder(work_directory, (*lowers, self.base.tree))
        self._directory, self._lowers = work_directory, lowers

    def _save(
        self, layers: tuple[Path, ...], store: Path, old_namespaces: overlay.NamespaceHolder | None = None
    ) -> SavedDigests:
        if old_namespaces is not None:
            old_namespaces.close_later()
            self._old_namespaces.remove(old_namespaces)
        digest = archive_writer.write_to_store(
            layers,
            LayerStack(self.base.tree),
            store,
            base_digest=self.base.digest,
            root_uid=ownership.owner_uid() or 0,
        )
        _cache_layers(self._owner, digest, store / archive_name(digest), layers)
        return self.base.digest, digest


class CopiedTree:
    """A copy of the base, where overlayfs is not available; a snapshot is another copy."""

    is_layered = False

    def __init__(
        self, base: Base, owner: str, existing_copy: Path | None = None, *, is_isolated: bool
    ) -> None:
        self.base = base
        self._owner = owner
        self.root = existing_copy or _copy_base(base.tree, owner, keeps_current_user=not is_isolated)
        self.namespaces: overlay.NamespaceHolder | None = None
        with remove_on_failure(self.root.parent):
            if is_isolated:
                self.namespaces = overlay.NamespaceHolder(self.root.parent, ())

    def entry_command(self) -> list[str]:
        return self.namespaces.entry_command() if self.namespaces is not None else []

    def layers(self) -> LayerStack:
        return LayerStack(self.root)

    def own_layers(self) -> tuple[Path, ...]:
        return (self.root,)

    def begin_snapshot(
        self, store: Path, *, is_idle: bool, pause: PauseProcesses
    ) -> Callable[[], SavedDigests]:
        work_directory = _pack_live_directory(self.root, self._owner, self.namespaces, pause)
        return lambda: self._save(_unpack_live_directory(work_directory, self.namespaces), store)

    def close(self) -> None:
        if self.namespaces is not None:
            self.namespaces.close()
        remove_tree(self.root.parent)

    def _save(self, copy: Path, store: Path) -> SavedDigests:
        base = COPY_PREFIX + self.base.digest
        try:
            root_uid = ownership.owner_uid() if self.namespaces is not None else None
            digest = archive_writer.write_to_store(
                (copy,), LayerStack(), store, base_digest=base, root_uid=root_uid or 0
            )
        finally:
            remove_tree(copy.parent)
        return base, digest


def start_tree(spec: SandboxSpec, *, is_layered: bool, is_isolated: bool) -> FileTree:
    """Prepare the files of a new sandbox. Raises SandboxUnavailableError and OutOfDiskError."""
    base = bases.prepare_base(spec)
    if is_layered:
        return OverlayTree(base, spec.owner, max_bytes=spec.disk_mb << 20)
    return CopiedTree(base, spec.owner, is_isolated=is_isolated)


def restore_tree(snapshot: Snapshot, store: Path, spec: SandboxSpec, *, is_isolated: bool) -> FileTree:
    """Prepare the files of a sandbox as they were when `snapshot` was taken.

    Layers that are on this host are mounted; otherwise the archive in `store` is unpacked. Raises
    SnapshotCorruptError, SandboxUnavailableError and OutOfDiskError.
    """
    base = bases.prepare_snapshot_base(snapshot.base.removeprefix(COPY_PREFIX), spec)
    kept = store / snapshot.location
    if snapshot.base.startswith(COPY_PREFIX):
        return CopiedTree(
            base,
            spec.owner,
            _unpack_archive(
                kept, snapshot.base, snapshot.digest, spec.owner, keeps_current_user=not is_isolated
            ),
            is_isolated=is_isolated,
        )
    if not is_isolated or overlay.unavailable_reason() is not None:
        raise SandboxUnavailableError(
            f"{kept}: has layers, and {overlay.unavailable_reason() or 'these need a host sandbox'}"
        )
    lowers = _find_cached_layers(spec.owner, snapshot.digest, kept)
    if lowers is None:
        largest = spec.disk_mb << 20
        lowers = (_unpack_archive(kept, snapshot.base, snapshot.digest, spec.owner, max_bytes=largest),)
        _cache_layers(spec.owner, snapshot.digest, kept, lowers)
    return OverlayTree(base, spec.owner, lowers, max_bytes=spec.disk_mb << 20)


def make_snapshot_builder(
    backend: BackendName, workspace: str, finish: Callable[[], SavedDigests]
) -> Callable[[str], Snapshot]:
    """Make the function from the agent's shell state to the snapshot."""

    def snapshot(shell_state: str) -> Snapshot:
        base, digest = finish()
        return Snapshot(
            backend=backend,
            base=base,
            location=archive_name(digest),
            digest=digest,
            workspace=workspace,
            shell_state=shell_state,
        )

    return snapshot


def _unpack_archive(
    archive_path: Path,
    base: str,
    digest: str,
    owner: str,
    *,
    keeps_current_user: bool = False,
    max_bytes: int = archive_format.MAX_LAYER_BYTES,
) -> Path:
    work_directory = overlay.create_layer_directory(owner)
    with remove_on_failure(work_directory):
        archive_reader.unpack(
            archive_path,
            work_directory / _DIFF_DIRECTORY,
            digest=digest,
            base_digest=base,
            owner=None if keeps_current_user else ownership.owner_uid(),
            max_bytes=max_bytes,
        )
    return work_directory / _DIFF_DIRECTORY


def _copy_base(tree: Path, owner: str, *, keeps_current_user: bool = False) -> Path:
    """Copy a base to its own directory, sharing disk blocks if the file system can.

    With `keeps_current_user`, the current user owns the copy.
    """
    keep = ["--no-preserve=ownership"] if keeps_current_user else []
    work_directory = overlay.create_layer_directory(owner)
    with remove_on_failure(work_directory):
        done = subprocess.run(
            ["cp", "-a", *keep, "--reflink=auto", f"{tree}/.", str(work_directory / _DIFF_DIRECTORY)],
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip()[-300:]
            kind = OutOfDiskError if "No space left" in message else SandboxUnavailableError
            raise kind(f"the sandbox's files could not be copied: {message}")
    return work_directory / _DIFF_DIRECTORY


def _pack_live_directory(
    directory: Path, owner: str, namespaces: overlay.NamespaceHolder | None, pause: PauseProcesses
) -> Path:
    """Archive a directory in use to a new directory, while everything that could write to it is stopped."""
    work_directory = overlay.create_layer_directory(owner)
    with remove_on_failure(work_directory), pause():
        images.pack(
            directory,
            work_directory / _DIFF_TARBALL,
            entry_command=namespaces.entry_command() if namespaces is not None else (),
        )
    return work_directory


def _unpack_live_directory(directory: Path, namespaces: overlay.NamespaceHolder | None) -> Path:
    """Return the archive that was written to a directory."""
    with remove_on_failure(directory):
        images.unpack(
            directory / _DIFF_TARBALL,
            directory / _DIFF_DIRECTORY,
            entry_command=namespaces.entry_command() if namespaces is not None else (),
        )
        (directory / _DIFF_TARBALL).unlink()
    return directory / _DIFF_DIRECTORY


class _CachedLayers(NamedTuple):
    """Return layers of this host with the content of an archive, if the archive file is unchanged."""

    layers: tuple[str, ...]
    archive: tuple[int, ...]


def _cache_layers(owner: str, digest: str, archive_path: Path, layers: tuple[Path, ...]) -> None:
    live = _CachedLayers(tuple(map(str, layers)), _identify_file(archive_path))
    path = ownership.runs_directory() / owner / f"{digest}.json"
    partial = layers[0].parent / "live.json"
    partial.write_text(json.dumps(live._asdict()))
    partial.replace(path)


def _find_cached_layers(owner: str, digest: str, archive_path: Path) -> tuple[Path, ...] | None:
    ownership.hold(owner)
    try:
        cached = json.loads((ownership.runs_directory() / owner / f"{digest}.json").read_text())
    except FileNotFoundError:
        return None
    layers = tuple(map(Path, cached["layers"]))
    if tuple(cached["archive"]) != _identify_file(archive_path) or not all(
        layer.is_dir() for layer in layers
    ):
        return None
    return layers


def _identify_file(archive_path: Path) -> tuple[int, ...]:
    try:
        info = archive_path.stat()
    except OSError as error:
        raise SnapshotCorruptError(f"{archive_path}: the snapshot's archive is missing") from error
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
