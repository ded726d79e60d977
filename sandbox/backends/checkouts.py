"""Repositories of this host as snapshots that need no base, and snapshots as plain directories."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.backends import overlay
from langgraph_takeover.sandbox.backends.selection import make_restore_spec
from langgraph_takeover.sandbox.changes.differences import Difference
from langgraph_takeover.sandbox.changes.layers import LayerEntry, LayerStack
from langgraph_takeover.sandbox.changes.working_trees import (
    Listing,
    Part,
    SourceEntry,
    TreeReader,
    list_tree,
    require_unchanged,
)
from langgraph_takeover.sandbox.interface import (
    BackendName,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.shell.state import ShellState
from langgraph_takeover.sandbox.snapshots import archive_reader, archive_writer, transfer
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name
from langgraph_takeover.sandbox.snapshots.archive_members import DigestsByPath
from langgraph_takeover.sandbox.snapshots.archive_reader import ArchiveContents
from langgraph_takeover.sandbox.snapshots.bases import (
    COPY_PREFIX,
    WRITABLE_DIRECTORIES,
    prepare_empty_base,
    prepare_snapshot_base,
)
from langgraph_takeover.sandbox.snapshots.sparse_files import copy_content
from langgraph_takeover.sandbox.storage import host_directories, ownership
from langgraph_takeover.sandbox.storage.removal import remove_tree

CHECKOUT_WORKSPACE = "/testbed"
"""Where a sandbox has the repository of such a snapshot."""


class TreeSnapshot(NamedTuple):
    """The snapshot of a directory, with the findings of the capture."""

    snapshot: Snapshot
    contents: ArchiveContents
    changed: tuple[str, ...]
    """Paths that changed while they were read, and were allowed to."""


def snapshot_directory(directory: Path, store: Path, *, backend: BackendName, owner: str) -> Snapshot:
    """Save a directory as it is now, ignored files included; the directory is only read.

    Raises what `snapshot_tree` raises and SandboxUnavailableError if something in it cannot be saved.
    """

    def list_all() -> Listing:
        return list_tree((Part(directory),))

    listing = list_all()
    for path, reason in listing.omitted.items():
        raise SandboxUnavailableError(f"{directory / path}: {reason} (remove it, or make it readable)")
    return snapshot_tree(directory, listing, list_all, store, backend=backend, owner=owner).snapshot


def snapshot_tree(
    directory: Path,
    listing: Listing,
    list_all: Callable[[], Listing],
    store: Path,
    *,
    backend: BackendName,
    owner: str,
    may_change: Callable[[str], bool] = lambda _: False,
    on_bytes: Callable[[int], None] | None = None,
) -> TreeSnapshot:
    """Save what is listed of a directory; `list_all` lists it again, and `on_bytes` gets the number of bytes of each read.

    Any host can restore the snapshot, because it starts from an empty base. Raises OutOfDiskError, and
    SandboxUnavailableError if a path changes meanwhile without `may_change`.
    """
    is_layered = backend == "host" and overlay.unavailable_reason() is None
    digests = DigestsByPath()
    with host_directories.translate_disk_errors():
        base = prepare_empty_base()
        base_digest = base.digest if is_layered else f"{COPY_PREFIX}{base.digest}"
        with create_scratch_directory(owner) as scratch:
            reader = TreeReader(listing, f"{WRITABLE_DIRECTORIES[0]}/")
            differences = itertools.chain(_list_writable_directories(scratch, directory), reader)
            try:
                digest = archive_writer.write_differences_to_store(
                    differences, store, base_digest=base_digest, files=digests, on_bytes=on_bytes
                )
            except (FileNotFoundError, NotADirectoryError) as error:
                raise SandboxUnavailableError(
                    f"{directory}: {error.filename} disappeared (try again)"
                ) from error
            except PermissionError as error:
                raise SandboxUnavailableError(f"{directory}: {error}") from error
            changed = reader.list_changed(list_all())
            try:
                require_unchanged(directory, (path for path in changed if not may_change(path)))
            except SandboxUnavailableError:
                (store / archive_name(digest)).unlink()
                raise
    workspace = CHECKOUT_WORKSPACE if backend == "host" else f"{CHECKOUT_WORKSPACE}/{WRITABLE_DIRECTORIES[0]}"
    snapshot = Snapshot(
        backend=backend,
        base=base_digest,
        location=archive_name(digest),
        digest=digest,
        workspace=workspace,
        shell_state=ShellState(directory=workspace).to_json(),
    )
    return TreeSnapshot(snapshot, ArchiveContents(digests, set(), None), tuple(changed))


def _list_writable_directories(scratch: Path, directory: Path) -> Iterator[Difference]:
    """Yield the top directories of a sandbox; the last one is the workspace."""
    workspace, *others = WRITABLE_DIRECTORIES
    for name in others:
        (scratch / name).mkdir()
    (scratch / "tmp").chmod(0o1777)
    for name in sorted(others):
        yield Difference(name, "directory", SourceEntry(name, scratch, (scratch / name).lstat()))
    yield Difference(workspace, "directory", SourceEntry("", directory, directory.stat()))


def write_checkout(snapshot: Snapshot, store: Path, target: Path) -> None:
    """Write the repository of a snapshot to a new directory, as files of the current user.

    The archive is verified first. Set-user-id bits, devices and pipes are left out. Raises SnapshotCorruptError,
    SandboxUnavailableError, OutOfDiskError, and FileExistsError if the directory exists.
    """
    with host_directories.translate_disk_errors(), create_scratch_directory("checkout") as scratch:
        spec = make_restore_spec(snapshot, "host")
        base = prepare_snapshot_base(snapshot.base.removeprefix(COPY_PREFIX), spec)
        top = snapshot.workspace.strip("/") if base.is_system else WRITABLE_DIRECTORIES[0]
        files = scratch / "diff"
        with transfer.materialize_archive(snapshot, store) as archive:
            archive_reader.unpack(archive, files, digest=snapshot.digest, base_digest=snapshot.base)
        is_complete = snapshot.base.startswith(COPY_PREFIX)
        layers = LayerStack(files) if is_complete else LayerStack(files, base.tree)
        found = layers.find(top)
        if found is None or not found.is_directory:
            raise SnapshotCorruptError(f"{store}: the snapshot has no directory {top!r:.80}")
        target.mkdir(mode=0o700)
        _copy_entries(layers, top, target)
        target.chmod(stat.S_IMODE(found.info.st_mode) & 0o777 | stat.S_IRWXU)


def rebase_snapshot(snapshot: Snapshot, store: Path, image: str, target_store: Path) -> Snapshot:
    """Save a snapshot's repository again as a change to a Docker image, which has it at `/testbed`.

    Sandboxes of `docker` and `host` restore the result. Only the repository is kept, as files of the sandbox's root. Raises
    what `write_checkout` raises, and SandboxUnavailableError if the daemon does not have the image.
    """
    from langgraph_takeover.sandbox.docker.client import require_image
    from langgraph_takeover.sandbox.snapshots import docker_images

    found = require_image(image).attrs
    top = CHECKOUT_WORKSPACE.strip("/")
    with (
        host_directories.translate_disk_errors(),
        create_scratch_directory("rebase") as scratch,
        docker_images.open_image(found, found) as below,
    ):
        layer = scratch / "layer"
        layer.mkdir(mode=0o755)
        write_checkout(snapshot, store, layer / top)
        (layer / top).chmod(0o755)
        if below.base.find(top) is not None:
            os.setxattr(layer / top, below.base.opaque_attribute, b"y")
        digest = archive_writer.write_to_store(
            (layer,), below.base, target_store, base_digest=found["Id"], root_uid=os.geteuid()
        )
    return Snapshot(
        backend="docker",
        base=found["Id"],
        location=archive_name(digest),
        digest=digest,
        workspace=CHECKOUT_WORKSPACE,
        shell_state=ShellState(directory=CHECKOUT_WORKSPACE).to_json(),
    )


@contextlib.contextmanager
def create_scratch_directory(owner: str) -> Iterator[Path]:
    """A directory that garbage collection removes if this process is killed."""
    name = f"{owner}-{secrets.token_hex(4)}"
    directory = overlay.create_layer_directory(name)
    try:
        yield directory
    finally:
        remove_tree(directory.parent)
        ownership.release(name)


def _copy_entries(layers: LayerStack, top: str, target: Path) -> None:
    """Copy the content of a directory. Every parent is a directory that this function made."""
    directories: list[tuple[Path, LayerEntry]] = []
    for entry in layers.walk(top):
        path = target / entry.path[len(top) + 1 :]
        if entry.is_directory:
            path.mkdir(mode=0o700)
            directories.append((path, entry))
        elif stat.S_ISLNK(entry.info.st_mode):
            path.symlink_to(os.fsdecode(entry.link_target()))
            _set_times(path, entry)
        elif stat.S_ISREG(entry.info.st_mode):
            with entry.open_descriptor() as source, path.open("xb") as out:
                copy_content(source, out)
            _set_metadata(path, entry)
    for path, entry in reversed(directories):
        _set_metadata(path, entry)


def _set_metadata(path: Path, entry: LayerEntry) -> None:
    needed = stat.S_IRWXU if entry.is_directory else stat.S_IRUSR
    path.chmod(stat.S_IMODE(entry.info.st_mode) & 0o777 | needed)
    _set_times(path, entry)


def _set_times(path: Path, entry: LayerEntry) -> None:
    os.utime(path, ns=(entry.info.st_mtime_ns, entry.info.st_mtime_ns), follow_symlinks=False)
