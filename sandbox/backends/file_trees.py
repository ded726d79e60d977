"""The files of a `host` or `process` sandbox: layered over a base, or copied; saved and restored."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.backends import overlay
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.changes.saved_files import LayerSignatures, SavedFiles
from langgraph_takeover.sandbox.interface import (
    BackendName,
    OutOfDiskError,
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.isolation.limits import bytes_used
from langgraph_takeover.sandbox.snapshots import (
    archive_format,
    archive_parts,
    archive_reader,
    archive_writer,
    bases,
    images,
)
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name
from langgraph_takeover.sandbox.snapshots.bases import COPY_PREFIX, WRITABLE_DIRECTORIES, Base
from langgraph_takeover.sandbox.snapshots.layer_archives import LayerArchives
from langgraph_takeover.sandbox.snapshots.layer_copies import (
    LayerChanges,
    copy_changes,
    find_changes,
    merge_layers,
)
from langgraph_takeover.sandbox.untrusted_trees import remove_on_failure, remove_tree

_DIFF_DIRECTORY = "diff"
_DIFF_TARBALL = "diff.tar"
_MAX_COPIED_NAMES, _MAX_COPIED_BYTES = 64, 4 << 20
"""Limits for an idle sandbox: to copy as much takes about as long as to replace the layers."""
_MAX_COPIES = 16
"""That many copies are merged into one, so that few layers are to be stacked."""

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

    def saved_layers(self) -> LayerStack:
        """The files of the last snapshot, or of the start."""

    def measure_disk_use(self) -> int:
        """Return the bytes on disk of what this sandbox has written since its start."""

    def begin_snapshot(
        self,
        store: Path,
        *,
        is_idle: bool,
        pause: PauseProcesses,
        saved: SavedFiles,
        has_mapped_files: Callable[[], bool] = bool,
    ) -> Callable[[], SavedDigests]:
        """Save the files; the returned function stores the result in `store` while the sandbox continues.

        It also ends the namespaces of layers that were replaced. `is_idle` means that only waiting shells run inside;
        otherwise `pause` stops everything while files are read. `saved` remembers what is saved; `has_mapped_files`
        says whether something inside may write to files without changing their times.
        """

    def close(self) -> None: ...


class OverlayTree:
    """Layers mounted over a base.

    A snapshot copies what has changed in the top layer since the last one to a layer of its own. If that is much, and
    nothing runs inside, the top layer itself becomes the newest lower layer: this takes the same time however many files
    changed. A successor needs no copy in either case.
    """

    is_layered = True

    def __init__(
        self,
        base: Base,
        owner: str,
        lowers: tuple[Path, ...] = (),
        *,
        max_bytes: int,
        prepared: overlay.EmptyNamespaces | None = None,
    ) -> None:
        """Own layers that take more than the limit are merged at the next idle snapshot."""
        self.base, self._base_tree = base, base.tree
        self._owner = owner
        self._max_bytes = max_bytes
        self.root = overlay.merged_directory()
        self._old_namespaces: list[overlay.NamespaceHolder] = []
        self.archives = LayerArchives(LayerStack(self._base_tree), base.digest, ownership.owner_uid() or 0)
        self._own_lowers: tuple[Path, ...] = ()
        self._measured: dict[Path, int] = {}
        self._copies: tuple[Path, ...] = ()
        self._copied: LayerSignatures | None = {}
        """What the top layer had when it was last copied; None if that is not known."""
        self._mount(lowers, prepared)

    def entry_command(self) -> list[str]:
        return self.namespaces.entry_command()

    def layers(self) -> LayerStack:
        return LayerStack(self._directory / _DIFF_DIRECTORY, *self._lowers, self._base_tree)

    def measure_disk_use(self) -> int:
        return bytes_used(self._directory / _DIFF_DIRECTORY) + self._measure_own_lowers()

    def _measure_own_lowers(self) -> int:
        """Measure each once, for nothing changes them."""
        known = self._measured
        self._measured = {layer: known.get(layer) or bytes_used(layer) for layer in self._own_lowers}
        return sum(self._measured.values())

    def saved_layers(self) -> LayerStack:
        return LayerStack(*self._copies, *self._lowers, self._base_tree)

    def begin_snapshot(
        self,
        store: Path,
        *,
        is_idle: bool,
        pause: PauseProcesses,
        saved: SavedFiles,
        has_mapped_files: Callable[[], bool] = bool,
    ) -> Callable[[], SavedDigests]:
        if len(self._copies) >= _MAX_COPIES:
            self._copies = self._merge(self._copies)
        if is_idle:
            return self._copy_few_changes(saved, store) or self._replace_top_layer(store)
        # Running processes keep their files: the top layer stays in place.
        with pause():
            saved.remember(self.layers())
            if saved.signatures is None:
                return self._copy_with_rights_inside(store)
            is_certain = not has_mapped_files()
            earlier = self._copied if is_certain and self._can_stack_copy() else None
            self._copy(
                saved.signatures, find_changes(earlier or {}, saved.signatures), is_whole=earlier is None
            )
        if not is_certain:
            self._copied = None
            saved.forget()
        return self._make_finish(store)

    def _copy_few_changes(self, saved: SavedFiles, store: Path) -> Callable[[], SavedDigests] | None:
        """Copy the changes since the last snapshot; None if they are too many, or not known."""
        now = saved.signatures
        if now is None or self._copied is None or not self._can_stack_copy():
            return None
        changes = find_changes(self._copied, now)
        if len(changes.entries) > _MAX_COPIED_NAMES or changes.size > _MAX_COPIED_BYTES:
            return None
        self._copy(now, changes, is_whole=False)
        return self._make_finish(store)

    def _can_stack_copy(self) -> bool:
        return len(self._copies) + len(self._lowers) < overlay.MAX_LAYERS - 1

    def _copy(self, now: LayerSignatures, changes: LayerChanges, *, is_whole: bool) -> None:
        """Save changes as the newest copy; with `is_whole`, as the only one. On failure, nothing has changed."""
        copies = () if is_whole else self._copies
        if changes.entries or not (*copies, *self._lowers):
            work_directory = overlay.create_layer_directory(self._owner)
            with remove_on_failure(work_directory):
                copy_changes(self._directory / _DIFF_DIRECTORY, changes, work_directory / _DIFF_DIRECTORY)
            copies = (work_directory / _DIFF_DIRECTORY, *copies)
        self._copies, self._copied = copies, now

    def _make_finish(self, store: Path) -> Callable[[], SavedDigests]:
        layers = (*self._copies, *self._lowers)
        return lambda: self._save(layers, store)

    def _copy_with_rights_inside(self, store: Path) -> Callable[[], SavedDigests]:
        """Copy the top layer as the sandbox's own root, who can read what this user cannot."""
        keeper, lowers = self.namespaces, self._lowers
        work_directory = _pack_live_directory(
            self._directory / _DIFF_DIRECTORY, self._owner, keeper, contextlib.nullcontext
        )
        self._copied = None
        return lambda: self._save((_unpack_live_directory(work_directory, keeper), *lowers), store)

    def _replace_top_layer(self, store: Path) -> Callable[[], SavedDigests]:
        keeper = self.namespaces
        own, restored = self._own_lowers, self._lowers[len(self._own_lowers) :]
        if len(self._lowers) >= overlay.MAX_LAYERS - 1 or self._exceeds_limit():
            own, restored = self._merge(own), self._merge(restored)
        own = (self._directory / _DIFF_DIRECTORY, *own)
        self._mount((*own, *restored))
        self._own_lowers = own
        self._old_namespaces.append(keeper)
        return lambda: self._save((*own, *restored), store, keeper)

    def _merge(self, layers: tuple[Path, ...]) -> tuple[Path, ...]:
        """Merge layers that nothing writes to; at most one is left."""
        if len(layers) < 2:
            return layers
        work_directory = overlay.create_layer_directory(self._owner)
        with remove_on_failure(work_directory):
            merge_layers(layers, work_directory / _DIFF_DIRECTORY)
        self.archives.replace_layers(layers, work_directory / _DIFF_DIRECTORY)
        return (work_directory / _DIFF_DIRECTORY,)

    def _exceeds_limit(self) -> bool:
        """Whether layers that hide each other's files take more disk space than the sandbox may use."""
        return len(self._own_lowers) > 1 and self._measure_own_lowers() > self._max_bytes

    def close(self) -> None:
        for keeper in (*self._old_namespaces, self.namespaces):
            keeper.close()
        self.archives.close()
        remove_tree(self._directory)

    def _mount(self, lowers: tuple[Path, ...], prepared: overlay.EmptyNamespaces | None = None) -> None:
        """Mount an empty layer on these; on failure, nothing has changed."""
        if not self.base.is_system:
            _require_directories((*lowers, self._base_tree))
        work_directory = overlay.create_layer_directory(self._owner)
        with remove_on_failure(work_directory):
            self.namespaces = overlay.NamespaceHolder(
                work_directory,
                (*lowers, self._base_tree),
                prepared=prepared,
                parts=() if self.base.is_system else WRITABLE_DIRECTORIES,
            )
        self._directory, self._lowers = work_directory, lowers
        self._copies, self._copied = (), {}

    def _save(
        self, layers: tuple[Path, ...], store: Path, old_namespaces: overlay.NamespaceHolder | None = None
    ) -> SavedDigests:
        if old_namespaces is not None:
            old_namespaces.close_later()
            self._old_namespaces.remove(old_namespaces)
        digest = self.archives.save(layers, store)
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

    def saved_layers(self) -> LayerStack:
        return LayerStack()

    def measure_disk_use(self) -> int:
        return bytes_used(self.root)

    def begin_snapshot(
        self,
        store: Path,
        *,
        is_idle: bool,
        pause: PauseProcesses,
        saved: SavedFiles,
        has_mapped_files: Callable[[], bool] = bool,
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


def start_tree(
    spec: SandboxSpec,
    *,
    is_layered: bool,
    is_isolated: bool,
    prepared: overlay.EmptyNamespaces | None = None,
) -> FileTree:
    """Prepare the files of a new sandbox. Raises SandboxUnavailableError and OutOfDiskError."""
    base = bases.prepare_base(spec)
    if is_layered:
        return OverlayTree(base, spec.owner, max_bytes=spec.disk_mb << 20, prepared=prepared)
    return CopiedTree(base, spec.owner, is_isolated=is_isolated)


def restore_tree(
    snapshot: Snapshot,
    store: Path,
    spec: SandboxSpec,
    *,
    is_isolated: bool,
    prepared: overlay.EmptyNamespaces | None = None,
) -> FileTree:
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
    tree = OverlayTree(base, spec.owner, lowers, max_bytes=spec.disk_mb << 20, prepared=prepared)
    tree.archives.remember_restored(lowers, kept, snapshot.digest)
    return tree


def _require_directories(layers: tuple[Path, ...]) -> None:
    """Raises SnapshotCorruptError if a part is not a directory: what a link names on this host would be mounted."""
    for part in WRITABLE_DIRECTORIES:
        top = next((layer / part for layer in layers if os.path.lexists(layer / part)), None)
        if top is None or top.is_symlink() or not top.is_dir():
            raise SnapshotCorruptError(
                f"{part}: not a directory in the snapshot, but a sandbox needs one there (restore another snapshot)"
            )


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
    partial = path.with_name(f".{secrets.token_hex(8)}.json")
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
    """Identify a snapshot's file and its parts. A later snapshot may link them, which changes the times of their inodes."""
    try:
        found = archive_parts.find_part_list(archive_path)
        parts = () if found is None else found.parts
        files = [archive_path.stat(), *(archive_path.with_name(part.name).stat() for part in parts)]
    except (OSError, ValueError) as error:
        raise SnapshotCorruptError(f"{archive_path}: the snapshot's archive is missing or damaged") from error
    return tuple(
        number for each in files for number in (each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns)
    )
