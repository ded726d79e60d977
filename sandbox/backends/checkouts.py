"""Repositories of this host as snapshots that need no base, and snapshots as plain directories."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from langgraph_takeover.sandbox.backends import overlay
from langgraph_takeover.sandbox.backends.selection import make_restore_spec
from langgraph_takeover.sandbox.changes.layers import LayerEntry, LayerStack
from langgraph_takeover.sandbox.interface import (
    BackendName,
    OutOfDiskError,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.shell.state import ShellState
from langgraph_takeover.sandbox.snapshots import archive_reader, archive_writer, transfer
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name
from langgraph_takeover.sandbox.snapshots.bases import (
    COPY_PREFIX,
    WRITABLE_DIRECTORIES,
    prepare_empty_base,
    prepare_snapshot_base,
)
from langgraph_takeover.sandbox.snapshots.content_digests import content_digest
from langgraph_takeover.sandbox.storage import host_directories, ownership
from langgraph_takeover.sandbox.storage.removal import remove_tree

CHECKOUT_WORKSPACE = "/testbed"
"""Where a sandbox has the repository of such a snapshot."""
_COPY_BYTES = 1024 * 1024


def snapshot_directory(directory: Path, store: Path, *, backend: BackendName, owner: str) -> Snapshot:
    """Save a repository as it is now, ignored files included; the directory is only read.

    Any host can restore the snapshot, because it starts from an empty base. Raises OutOfDiskError, and
    SandboxUnavailableError if a file changes meanwhile or cannot be read.
    """
    is_layered = backend == "host" and overlay.unavailable_reason() is None
    with host_directories.translate_disk_errors():
        base = prepare_empty_base()
        base_digest = base.digest if is_layered else f"{COPY_PREFIX}{base.digest}"
        with _create_scratch_directory(owner) as scratch:
            files = scratch / "diff"
            _copy_repository(directory, files)
            below = LayerStack(base.tree) if is_layered else LayerStack()
            digest = archive_writer.write_to_store((files,), below, store, base_digest=base_digest)
    workspace = CHECKOUT_WORKSPACE if backend == "host" else f"{CHECKOUT_WORKSPACE}/{WRITABLE_DIRECTORIES[0]}"
    return Snapshot(
        backend=backend,
        base=base_digest,
        location=archive_name(digest),
        digest=digest,
        workspace=workspace,
        shell_state=ShellState(directory=workspace).to_json(),
    )


def write_checkout(snapshot: Snapshot, store: Path, target: Path) -> None:
    """Write the repository of a snapshot to a new directory, as files of the current user.

    The archive is verified first. Set-user-id bits, devices and pipes are left out. Raises SnapshotCorruptError,
    SandboxUnavailableError, OutOfDiskError, and FileExistsError if the directory exists.
    """
    with host_directories.translate_disk_errors(), _create_scratch_directory("checkout") as scratch:
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
        _create_scratch_directory("rebase") as scratch,
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
def _create_scratch_directory(owner: str) -> Iterator[Path]:
    """A directory that garbage collection removes if this process is killed."""
    name = f"{owner}-{secrets.token_hex(4)}"
    directory = overlay.create_layer_directory(name)
    try:
        yield directory
    finally:
        remove_tree(directory.parent)
        ownership.release(name)


def _copy_repository(directory: Path, files: Path) -> None:
    for name in WRITABLE_DIRECTORIES[1:]:
        (files / name).mkdir()
    (files / "tmp").chmod(0o1777)
    target = files / WRITABLE_DIRECTORIES[0]
    done = subprocess.run(
        ["cp", "-a", "--no-preserve=ownership", "--reflink=auto", "--", str(directory), str(target)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    message = done.stderr.decode(errors="replace").strip()
    if "No space left" in message:
        raise OutOfDiskError(
            f"{target}: the disk is full; make room, or set {host_directories.ROOT_VARIABLE}"
        )
    changed = f"{directory}: changed while it was copied (let the agent finish its turn, then try again)"
    if done.returncode != 0:
        first = message.partition("\n")[0][:300]
        raise SandboxUnavailableError(changed if "No such file" in message else f"{directory}: {first}")
    try:
        is_same = content_digest((directory,), LayerStack()) == content_digest((target,), LayerStack())
    except FileNotFoundError:
        is_same = False
    if not is_same:
        raise SandboxUnavailableError(changed)


def _copy_entries(layers: LayerStack, top: str, target: Path) -> None:
    """Copy what is below a directory. Every parent is a directory that this function made."""
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
            with (
                entry.open_descriptor() as source,
                open(source, "rb", closefd=False) as content,
                path.open("xb") as out,
            ):
                shutil.copyfileobj(content, out, _COPY_BYTES)
            _set_metadata(path, entry)
    for path, entry in reversed(directories):
        _set_metadata(path, entry)


def _set_metadata(path: Path, entry: LayerEntry) -> None:
    path.chmod(stat.S_IMODE(entry.info.st_mode) & 0o777)
    _set_times(path, entry)


def _set_times(path: Path, entry: LayerEntry) -> None:
    os.utime(path, ns=(entry.info.st_mtime_ns, entry.info.st_mtime_ns), follow_symlinks=False)
