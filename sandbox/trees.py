"""The files of an embedded machine: layered over their base, or copied; frozen, kept and laid out again."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from sandbox import archive, bases, overlay, ownership, storage, tarballs
from sandbox.bases import COPY, Base
from sandbox.layers import Stack
from sandbox.machine import BackendName, OutOfDisk, SandboxSpec, SandboxUnavailable, Snapshot, SnapshotCorrupt
from sandbox.removal import remove_on_failure, remove_tree
from sandbox.watch import bytes_used

ARCHIVE = "snapshot.tar.zst"
_DIFF = "diff"
_PACKED = "diff.tar"

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

    @property
    def keeper(self) -> overlay.Keeper | None:
        """The namespaces in which the files are seen; None for plain processes."""

    def entering(self) -> list[str]:
        """The beginning of a command line that comes to see `files`."""

    def layers(self) -> Stack: ...

    def own_layers(self) -> tuple[Path, ...]:
        """The directories that this sandbox has written since its start, the one in use first."""

    def freeze(self, store: Path, *, at_rest: bool, stopped: Stopped) -> Callable[[], Kept]:
        """Freeze the files; the returned function keeps the result in `store` while the sandbox goes on.

        It also ends the namespaces of the layers before. `at_rest` says that nothing runs inside but shells that wait;
        otherwise `stopped` holds everything still while the files are read.
        """

    def close(self) -> None: ...


class OverlayTree:
    """Layers mounted over a base; frozen by making the top one the newest of the lower ones.

    That takes the same time however many files changed, and nothing is copied for a successor either.
    """

    layered = True

    def __init__(self, base: Base, owner: str, lowers: tuple[Path, ...] = (), *, most_bytes: int) -> None:
        """`most_bytes`: own layers that take more disk are merged at the next freeze at rest."""
        self.base = base
        self._owner = owner
        self._most_bytes = most_bytes
        self.files = overlay.merged()
        self._left: list[overlay.Keeper] = []
        self._own: tuple[Path, ...] = ()
        self._open(lowers)

    def entering(self) -> list[str]:
        return self.keeper.entering()

    def layers(self) -> Stack:
        return Stack(self._room / _DIFF, *self._lowers, self.base.tree)

    def own_layers(self) -> tuple[Path, ...]:
        return (self._room / _DIFF, *self._own)

    def freeze(self, store: Path, *, at_rest: bool, stopped: Stopped) -> Callable[[], Kept]:
        keeper = self.keeper
        if not at_rest:
            # What goes on running keeps its files: the top layer stays where it is, and is copied.
            room, lowers = _packed(self._room / _DIFF, self._owner, keeper, stopped), self._lowers
            return lambda: self._keep((_unpacked_copy(room, keeper), *lowers), store)
        frozen = (self._room / _DIFF, *self._lowers)
        if len(frozen) < overlay.MOST_LAYERS and not self._takes_too_much():
            own = self.own_layers()
            self._open(frozen)
            self._own = own
            self._left.append(keeper)
            return lambda: self._keep(frozen, store, keeper)
        # An archive holds what all its layers come to, and so is the one layer to go on with.
        with stopped():  # what the shell's own traps start may still write
            kept = self._keep(frozen, store)
        merged = _unpacked(store / ARCHIVE, *kept, self._owner)
        self._open((merged,))
        self._own = (merged,)
        self._left.append(keeper)
        return lambda: kept

    def _takes_too_much(self) -> bool:
        """Whether layers that hide each other's files take more disk than the sandbox may use."""
        return len(self._own) > 1 and sum(map(bytes_used, self._own)) > self._most_bytes

    def close(self) -> None:
        for keeper in (*self._left, self.keeper):
            keeper.close()
        remove_tree(self._room)

    def _open(self, lowers: tuple[Path, ...]) -> None:
        """Mount an empty layer on these; when that fails, all is as before."""
        room = overlay.new_room(self._owner)
        with remove_on_failure(room):
            self.keeper = overlay.Keeper(room, (*lowers, self.base.tree))
        self._room, self._lowers = room, lowers

    def _keep(self, frozen: tuple[Path, ...], store: Path, before: overlay.Keeper | None = None) -> Kept:
        if before is not None:
            before.abandon()
            self._left.remove(before)
        digest = _written(
            frozen, Stack(self.base.tree), store, self.base.digest, root_uid=storage.owner_uid()
        )
        _remember(self._owner, digest, store / ARCHIVE, frozen)
        return self.base.digest, digest


class CopiedTree:
    """A copy of the base, for where overlayfs is not to be had; frozen by copying it once more."""

    layered = False

    def __init__(self, base: Base, owner: str, origin: Path | None = None, *, enclosed: bool) -> None:
        self.base = base
        self._owner = owner
        self.files = origin or _copied(base.tree, owner, ours=not enclosed)
        self.keeper: overlay.Keeper | None = None
        with remove_on_failure(self.files.parent):
            if enclosed:
                self.keeper = overlay.Keeper(self.files.parent, ())

    def entering(self) -> list[str]:
        return self.keeper.entering() if self.keeper is not None else []

    def layers(self) -> Stack:
        return Stack(self.files)

    def own_layers(self) -> tuple[Path, ...]:
        return (self.files,)

    def freeze(self, store: Path, *, at_rest: bool, stopped: Stopped) -> Callable[[], Kept]:
        room = _packed(self.files, self._owner, self.keeper, stopped)
        return lambda: self._keep(_unpacked_copy(room, self.keeper), store)

    def close(self) -> None:
        if self.keeper is not None:
            self.keeper.close()
        remove_tree(self.files.parent)

    def _keep(self, frozen: Path, store: Path) -> Kept:
        base = COPY + self.base.digest
        try:
            root_uid = storage.owner_uid() if self.keeper is not None else None
            digest = _written((frozen,), Stack(), store, base, root_uid=root_uid)
        finally:
            remove_tree(frozen.parent)
        return base, digest


def started(spec: SandboxSpec, *, layered: bool, enclosed: bool) -> Tree:
    """The files of a new machine. Raises SandboxUnavailable, OutOfDisk."""
    base = bases.base_of(spec)
    if layered:
        return OverlayTree(base, spec.owner, most_bytes=spec.disk_mb << 20)
    return CopiedTree(base, spec.owner, enclosed=enclosed)


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
        largest = spec.disk_mb << 20
        lowers = (_unpacked(kept, snapshot.base, snapshot.digest, spec.owner, largest=largest),)
        _remember(spec.owner, snapshot.digest, kept, lowers)
    return OverlayTree(base, spec.owner, lowers, most_bytes=spec.disk_mb << 20)


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


def _written(
    layers: tuple[Path, ...], base: Stack, store: Path, base_digest: str, *, root_uid: int | None
) -> str:
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SandboxUnavailable(f"{store}: {error.strerror}") from error
    return archive.write(layers, base, store / ARCHIVE, base_digest=base_digest, root_uid=root_uid or 0)


def _unpacked(
    kept: Path,
    base: str,
    digest: str,
    owner: str,
    *,
    ours: bool = False,
    largest: int = archive.LARGEST_LAYER,
) -> Path:
    room = overlay.new_room(owner)
    with remove_on_failure(room):
        archive.unpack(
            kept,
            room / _DIFF,
            digest=digest,
            base_digest=base,
            owner=None if ours else storage.owner_uid(),
            largest=largest,
        )
    return room / _DIFF


def _copied(tree: Path, owner: str, *, ours: bool = False) -> Path:
    """A copy of a base in a room of its own, sharing the disk's blocks where the file system can.

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


def _packed(live: Path, owner: str, keeper: overlay.Keeper | None, stopped: Stopped) -> Path:
    """A new room with a tar of a directory in use, read while everything that could write to it is stopped."""
    room = overlay.new_room(owner)
    with remove_on_failure(room), stopped():
        tarballs.pack(live, room / _PACKED, entering=keeper.entering() if keeper is not None else ())
    return room


def _unpacked_copy(room: Path, keeper: overlay.Keeper | None) -> Path:
    """The directory that `_packed` has kept in a room."""
    with remove_on_failure(room):
        tarballs.unpack(
            room / _PACKED, room / _DIFF, entering=keeper.entering() if keeper is not None else ()
        )
        (room / _PACKED).unlink()
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
