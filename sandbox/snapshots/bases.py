"""The bases that sandboxes start from: unpacked once per content, then only read."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langgraph_takeover.base.failures import clean_up
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.interface import (
    OutOfDiskError,
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.snapshots.differences import content_digest
from langgraph_takeover.sandbox.untrusted_trees import remove_tree, walk

WRITABLE_DIRECTORIES = ("workspace", "home", "tmp")
"""The writable directories of a sandbox with this host's system around it."""
EMPTY_DIGEST = hashlib.sha256().hexdigest()
"""Digest of the base without files."""
COPY_PREFIX = "copy of "
"""Prefix of a snapshot's base if the snapshot holds every file, not only the changed ones."""
_TREE = "tree"
_METADATA_FILE = "base.json"
_started_bases: dict[tuple[str, str], Base] = {}


class Base(Frozen):
    """A tree of files that sandboxes share and never change.

    It is a complete system, or only the writable directories of a sandbox, with this host's own system read-only around
    them. `environment` comes from the system's image.
    """

    digest: str
    is_system: bool
    environment: tuple[str, ...] = ()

    @property
    def tree(self) -> Path:
        return bases_directory() / _directory_name(self.digest) / _TREE


def bases_directory() -> Path:
    """Return the directory of all bases; this process now counts as a user of all of them."""
    found = ownership.ensure_directory(ownership.ensure_root() / "bases")
    ownership.hold(ownership.BASES_LOCK)
    return found


def prepare_base(spec: SandboxSpec) -> Base:
    """Return the base that a sandbox of this kind starts from; unpack it if it is missing.

    Raises SandboxUnavailableError and OutOfDiskError.
    """
    if spec.image is not None:
        from langgraph_takeover.sandbox.docker_client import require_image

        base = _prepare_or_reuse(_prepare_from_image, require_image(spec.image).id)
        _started_bases[spec.image, base.digest] = base
        return base
    assert spec.directory is not None
    directory = spec.directory.absolute()
    if not directory.is_dir():
        raise SandboxUnavailableError(f"directory not found: {directory} (a sandbox cannot start from it)")
    base = _prepare_or_reuse(_prepare_from_directory, directory, _compute_signature(directory))
    _started_bases[str(directory), base.digest] = base
    return base


def _prepare_or_reuse(prepare: Any, *arguments: object) -> Base:
    """Return a base that was unpacked before, or unpack it again."""
    base: Base = prepare(*arguments)
    if not base.tree.is_dir():
        prepare.cache_clear()
        base = prepare(*arguments)
    return base


def prepare_empty_base() -> Base:
    """Return the base without files, which every host has: a snapshot over it holds the whole repository.

    Raises SandboxUnavailableError and OutOfDiskError.
    """
    with tempfile.TemporaryDirectory(prefix="takeover-empty-") as directory:
        return prepare_base(SandboxSpec(backend="host", directory=Path(directory)))


def prepare_snapshot_base(digest: str, spec: SandboxSpec) -> Base:
    """Return the base that a snapshot was made for. Raises SnapshotCorruptError if `spec` starts from another."""
    origin = spec.image or str(spec.directory and spec.directory.absolute())
    known = _started_bases.get((origin, digest))
    base = known if known is not None and known.tree.is_dir() else prepare_base(spec)
    if base.digest != digest:
        actual = f"{spec.image or spec.directory} is {base.digest[:19]}…"
        raise SnapshotCorruptError(f"the snapshot was made for base {digest[:19]}…, but {actual}")
    return base


def check_workspace(snapshot: Snapshot) -> None:
    """Raises SnapshotCorruptError."""
    if not snapshot.workspace.startswith("/") or "\0" in snapshot.workspace:
        raise SnapshotCorruptError(
            f"the snapshot's workspace is not an absolute path: {snapshot.workspace!r:.80}"
        )


def _compute_signature(directory: Path) -> str:
    """Return a value that changes whenever a file below does, in the time that `lstat` takes."""
    signature = hashlib.sha256()
    for path, info in sorted(walk(directory)):
        times = (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        signature.update(os.fsencode(path) + b"\0%d %d %d %d %d\0" % times)
    return signature.hexdigest()


@functools.lru_cache(maxsize=256)
def _prepare_from_directory(directory: Path, signature: str) -> Base:
    whole = _is_system(directory)
    changed = f"{directory}: changed while a sandbox started from it (try again)"
    try:
        digest = content_digest((directory,), LayerStack())
    except FileNotFoundError as error:
        raise SandboxUnavailableError(changed) from error
    base = Base(digest=digest, is_system=whole)

    def fill(tree: Path) -> None:
        if whole:
            tree.rmdir()
        else:
            for name in WRITABLE_DIRECTORIES[1:]:
                (tree / name).mkdir()
            (tree / "tmp").chmod(0o1777)
        target = tree if whole else tree / WRITABLE_DIRECTORIES[0]
        _run("cp", "-a", "--reflink=auto", str(directory), str(target))
        if content_digest((target,), LayerStack()) != digest:
            raise SandboxUnavailableError(changed)
        _change_owner(tree)

    return _create_base(base, fill)


@functools.lru_cache(maxsize=256)
def _prepare_from_image(name: str) -> Base:
    from langgraph_takeover.sandbox.docker_client import client, require_image
    from langgraph_takeover.sandbox.ownership import make_labels

    image = require_image(name)
    environment = tuple(image.attrs["Config"].get("Env") or ())

    def fill(tree: Path) -> None:
        container = client().containers.create(image.id, ["true"], labels=make_labels("bases"))
        with clean_up(lambda: container.remove(force=True, v=True)):
            try:
                unpacking = subprocess.Popen(
                    ["tar", "-x", "-p", "--numeric-owner", "--exclude=dev/*", "-C", str(tree)],
                    stdin=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
                assert unpacking.stdin is not None
                for chunk in container.export(chunk_size=1024 * 1024):
                    unpacking.stdin.write(chunk)
                _, message = unpacking.communicate()
            except BrokenPipeError:
                _, message = unpacking.communicate()
        if unpacking.returncode != 0:
            raise _make_error(f"image {name} could not be unpacked", message.decode(errors="replace"))
        _change_owner(tree)

    return _create_base(Base(digest=image.id, is_system=True, environment=environment), fill)


def _create_base(base: Base, fill: Callable[[Path], None]) -> Base:
    home = base.tree.parent
    if (home / _METADATA_FILE).exists():
        return base
    partial = bases_directory() / f"{secrets.token_hex(6)}.partial"
    partial.mkdir(mode=0o711)
    try:
        (partial / _TREE).mkdir(mode=0o755)
        fill(partial / _TREE)
        (partial / _METADATA_FILE).write_text(json.dumps(base.model_dump(mode="json")))
        try:
            partial.rename(home)
        except OSError:
            if not (home / _METADATA_FILE).exists():  # else another process was faster
                raise
    finally:
        remove_tree(partial)
    return base


def _is_system(directory: Path) -> bool:
    """Whether a directory is a complete system, an image's files, rather than a repository."""
    return all((directory / name).exists() for name in ("usr/bin", "etc", "bin/sh"))


def _change_owner(tree: Path) -> None:
    uid = ownership.owner_uid()
    if uid is not None:
        set_ids = _run("find", str(tree), "-type", "f", "-perm", "/6000", "-printf", "%m %p\\0")
        _run("chown", "-hR", f"{uid}:{uid}", str(tree))
        for line in set_ids.split("\0")[:-1]:  # which the change of owner took away
            mode, _, path = line.partition(" ")
            Path(path).chmod(int(mode, 8))


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, check=False)
    if done.returncode != 0:
        raise _make_error(f"{argv[0]} failed", done.stderr.decode(errors="replace"))
    return os.fsdecode(done.stdout)


def _make_error(problem: str, output: str) -> SandboxUnavailableError:
    kind = OutOfDiskError if "No space left" in output else SandboxUnavailableError
    return kind(f"{problem}: {output.strip()[-300:]}")


def _directory_name(digest: str) -> str:
    return hashlib.sha256(digest.encode()).hexdigest()[:24]
