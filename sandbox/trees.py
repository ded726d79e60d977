"""The files of an embedded machine: layered over their base, or copied; frozen, kept and laid out again."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from sandbox import archive, bases, overlay, ownership, storage
from sandbox.bases import COPY, Base
from sandbox.layers import Stack
from sandbox.machine import BackendName, OutOfDisk, SandboxSpec, SandboxUnavailable, Snapshot, SnapshotCorrupt
from sandbox.removal import remove_on_failure, remove_tree

ARCHIVE = "snapshot.tar.zst"
_DIFF = "diff"

Stopped = Callable[[], contextlib.AbstractContextManager[None]]
Kept = tuple[str, str]
"""A base's digest and that of what was changed there."""


class Tree(Protocol):
    """One machine's files."""

    base: Base
    files: Path
    """The whole tree, as it is found after `entering`."""
    layered: bool
    """Whether a freeze of a machine at rest puts new layers in the place of the old ones."""

    def entering(self) -> list[str]:
        """The beginning of a command line that comes to see `files`."""

    def layers(self) -> Stack: ...

    def freeze(self, store: Path, *, at_rest: bool, stopped: Stopped) -> Callable[[], Kept]:
        """Freeze; what is returned keeps the result in `store`, while the machine goes on.

        It also ends what the namespaces before it still hold.

        `at_rest` says that nothing runs inside but shells that wait; `stopped` holds still what
        runs otherwise.
        """

    def close(self) -> None: ...


class OverlayTree:
    """Layers mounted over a base; frozen by making the top one the newest of the lower ones.

    That takes the same time however many files changed, and nothing is copied for a successor either.
    """

    layered = True

    def __init__(self, base: Base, owner: str, lowers: tuple[Path, ...] = ()) -> None:
        self.base = base
        self._owner = owner
        self.files = overlay.merged()
        self._left: list[overlay.Keeper] = []
        self._open(lowers)

    def entering(self) -> list[str]:
        return self._keeper.entering()

    def layers(self) -> Stack:
        return Stack(self._room / _DIFF, *self._lowers, self.base.tree)

    def freeze(self, store: Path, *, at_rest: bool, stopped: Stopped) -> Callable[[], Kept]:
        if not at_rest:
            # What goes on running keeps its files: the top layer stays where it is, and is copied.
            with stopped():
                frozen = (_copied(self._room / _DIFF, self._owner), *self._lowers)
            return lambda: self._keep(frozen, store)
        frozen, before = (self._room / _DIFF, *self._lowers), self._keeper
        if len(frozen) < overlay.MOST_LAYERS:
            self._open(frozen)
            self._left.append(before)
            return lambda: self._keep(frozen, store, before)
        # An archive holds what all its layers come to, and so is the one layer to go on with.
        kept = self._keep(frozen, store)
        self._open((_unpacked(store / ARCHIVE, *kept, self._owner),))
        self._left.append(before)
        return lambda: kept

    def close(self) -> None:
        for keeper in (*self._left, self._keeper):
            keeper.close()
        remove_tree(self._room)

    def _open(self, lowers: tuple[Path, ...]) -> None:
        """Mount an empty layer on these; when that fails, all is as before."""
        room = overlay.new_room(self._owner)
        with remove_on_failure(room):
            self._keeper = overlay.Keeper(room, (*lowers, self.base.tree))
        self._room, self._lowers = room, lowers

    def _keep(self, frozen: tuple[Path, ...], store: Path, before: overlay.Keeper | None = None) -> Kept:
        if before is not None:
            before.abandon()
            self._left.remove(before)
        digest = _written(frozen, Stack(self.base.tree), store, self.base.digest)
        _remember(self._owner, digest, store / ARCHIVE, frozen)
        return self.base.digest, digest


class CopiedTree:
    """A copy of the base, for where overlayfs is not to be had; frozen by copying it once more."""

    layered = False

    def __init__(self, base: Base, owner: str, origin: Path | None = None, *, enclosed: bool) -> None:
        self.base = base
        self._owner = owner
        self.files = origin or _copied(base.tree, owner, ours=not enclosed)
        self._keeper: overlay.Keeper | None = None
        with remove_on_failure(self.files.parent):
            if enclosed:
                self._keeper = overlay.Keeper(self.files.parent, ())

    def entering(self) -> list[str]:
        return self._keeper.entering() if self._keeper is not None else []

    def layers(self) -> Stack:
        return Stack(self.files)

    def freeze(self, store: Path, *, at_rest: bool, stopped: Stopped) -> Callable[[], Kept]:
        with stopped():
            frozen = _copied(self.files, self._owner)
        return lambda: self._keep(frozen, store)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        remove_tree(self.files.parent)

    def _keep(self, frozen: Path, store: Path) -> Kept:
        base = COPY + self.base.digest
        try:
            digest = _written((frozen,), Stack(), store, base)
        finally:
            remove_tree(frozen.parent)
        return base, digest


def started(spec: SandboxSpec, *, layered: bool, enclosed: bool) -> Tree:
    """The files of a new machine. Raises SandboxUnavailable, OutOfDisk."""
    base = bases.base_of(spec)
    return OverlayTree(base, spec.owner) if layered else CopiedTree(base, spec.owner, enclosed=enclosed)


def thawed(snapshot: Snapshot, store: Path, spec: SandboxSpec, *, enclosed: bool) -> Tree:
    """The files of a machine as they were when `snapshot` was taken.

    What lies layered on this host already is mounted; anything else is unpacked from the archive in
    `store`. Raises SnapshotCorrupt, SandboxUnavailable, OutOfDisk.
    """
    base = bases.base_named(snapshot.base.removeprefix(COPY), spec)
    kept = store / snapshot.location
    if snapshot.base.startswith(COPY):
        return CopiedTree(
            base,
            spec.owner,
            _unpacked(kept, snapshot.base, snapshot.digest, spec.owner, ours=not enclosed),
            enclosed=enclosed,
        )
    if not enclosed or overlay.unavailable() is not None:
        raise SandboxUnavailable(
            f"{kept}: holds layers, and {overlay.unavailable() or 'these need a host sandbox'}"
        )
    lowers = _remembered(spec.owner, snapshot.digest, kept)
    if lowers is None:
        lowers = (_unpacked(kept, snapshot.base, snapshot.digest, spec.owner),)
        _remember(spec.owner, snapshot.digest, kept, lowers)
    return OverlayTree(base, spec.owner, lowers)


def described(backend: BackendName, workspace: str, finish: Callable[[], Kept]) -> Callable[[str], Snapshot]:
    """From the state of the agent's shell to the snapshot, when the files are kept."""

    def snapshot(shell_state: str) -> Snapshot:
        base, digest = finish()
        return Snapshot(
            backend=backend,
            base=base,
            location=ARCHIVE,
            digest=digest,
            workspace=workspace,
            shell_state=shell_state,
        )

    return snapshot


def _written(layers: tuple[Path, ...], base: Stack, store: Path, base_digest: str) -> str:
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxUnavailable(f"{store}: {error.strerror}") from error
    return archive.write(
        layers, base, store / ARCHIVE, base_digest=base_digest, root_uid=storage.owner_uid() or 0
    )


def _unpacked(kept: Path, base: str, digest: str, owner: str, *, ours: bool = False) -> Path:
    room = overlay.new_room(owner)
    with remove_on_failure(room):
        archive.unpack(
            kept,
            room / _DIFF,
            digest=digest,
            base_digest=base,
            owner=None if ours else storage.owner_uid(),
        )
    return room / _DIFF


def _copied(tree: Path, owner: str, *, ours: bool = False) -> Path:
    """A copy of a tree in a room of its own, sharing the disk's blocks where the file system can.

    `ours` gives it to the user that runs this program.
    """
    keep = ["--no-preserve=ownership"] if ours else []
    room = overlay.new_room(owner)
    with remove_on_failure(room):
        done = subprocess.run(
            ["cp", "-a", *keep, "--reflink=auto", f"{tree}/.", str(room / _DIFF)],
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            told = done.stderr.decode(errors="replace").strip()[-300:]
            kind = OutOfDisk if "No space left" in told else SandboxUnavailable
            raise kind(f"the machine's files could not be copied: {told}")
    return room / _DIFF


class _Live(NamedTuple):
    """Layers of this host that hold what an archive does, as long as the archive is the same file."""

    layers: tuple[str, ...]
    archive: tuple[int, ...]


def _remember(owner: str, digest: str, kept: Path, layers: tuple[Path, ...]) -> None:
    live = _Live(tuple(map(str, layers)), _identity(kept))
    place = storage.runs() / owner / f"{digest}.json"
    partial = layers[0].parent / "live.json"
    partial.write_text(json.dumps(live._asdict()))
    partial.replace(place)


def _remembered(owner: str, digest: str, kept: Path) -> tuple[Path, ...] | None:
    ownership.hold(owner)
    try:
        told = json.loads((storage.runs() / owner / f"{digest}.json").read_text())
    except FileNotFoundError:
        return None
    layers = tuple(map(Path, told["layers"]))
    if tuple(told["archive"]) != _identity(kept) or not all(layer.is_dir() for layer in layers):
        return None
    return layers


def _identity(kept: Path) -> tuple[int, ...]:
    try:
        info = kept.stat()
    except OSError as error:
        raise SnapshotCorrupt(f"{kept}: the snapshot's archive is gone") from error
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
