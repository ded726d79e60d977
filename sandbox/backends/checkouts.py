"""Directories of this host: repositories as snapshots, and working trees as a person has them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox import ownership, untrusted_trees
from langgraph_takeover.sandbox.backends import overlay
from langgraph_takeover.sandbox.backends.base import make_restore_spec
from langgraph_takeover.sandbox.changes.layers import LayerEntry, LayerStack, is_too_deep
from langgraph_takeover.sandbox.interface import (
    BackendName,
    SandboxUnavailableError,
    Snapshot,
    SnapshotCorruptError,
)
from langgraph_takeover.sandbox.shell_state import ShellState
from langgraph_takeover.sandbox.snapshots import archive_reader, archive_writer, transfer
from langgraph_takeover.sandbox.snapshots.archive_format import archive_name, copy_content
from langgraph_takeover.sandbox.snapshots.archive_members import DigestsByPath
from langgraph_takeover.sandbox.snapshots.archive_reader import ArchiveContents
from langgraph_takeover.sandbox.snapshots.bases import (
    COPY_PREFIX,
    WRITABLE_DIRECTORIES,
    prepare_empty_base,
    prepare_snapshot_base,
)
from langgraph_takeover.sandbox.snapshots.differences import Difference, DifferenceKind
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

_VIRTUAL = {"proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf",
            "mqueue", "configfs", "pstore", "fusectl", "binfmt_misc", "autofs"}  # fmt: skip
"""File systems whose files the kernel invents."""
_MOUNTS_FILE = Path("/proc/self/mountinfo")
_KINDS: dict[int, DifferenceKind] = {
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFDIR: "directory",
}
_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_MAX_NAMED = 5
_STATE = ("st_mode", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


class Part(NamedTuple):
    """A directory that gives names to a directory of the tree; several are merged, the first one wins."""

    directory: Path
    path: str = ""
    hidden: frozenset[str] = frozenset()
    """Paths of the directory that do not belong to the tree."""
    only: frozenset[str] | None = None
    """Names at the top that are part of the tree; None for all."""

    def open(self) -> SourceEntry:
        """Return the directory itself, or the file that stands in its place."""
        info = self.directory.stat()
        if stat.S_ISDIR(info.st_mode):
            return SourceEntry(self.path, self.directory, info)
        return SourceEntry(self.directory.name, self.directory.parent, info)


Mounts = Mapping[str, tuple[Part, ...]]
"""Other parts for directories of the tree, by path; empty for excluded files."""
OpenGitDirectory = Callable[[str, Path], Mounts]
"""Returns what stands for a `.git` of the tree, from its path there and its place on this host."""


class SourceEntry(LayerEntry):
    """One name of a directory that is only read: no mode is changed to read it."""

    @property
    def place(self) -> Path:
        """The path on this host."""
        return self.layer / self.path

    @property
    def mode(self) -> int:
        """The permissions in the snapshot, in which an owner without special rights can read everything."""
        return super().mode | (stat.S_IRWXU if self.is_directory else stat.S_IRUSR)

    @contextlib.contextmanager
    def open_descriptor(self) -> Iterator[int]:
        flags = os.O_RDONLY | (os.O_DIRECTORY if self.is_directory else 0)
        with untrusted_trees.open_safely(self.layer, self.path, flags) as descriptor:
            yield descriptor


class TreeEntry(NamedTuple):
    """One path of the tree, with its entry."""

    path: str
    item: SourceEntry

    @property
    def kind(self) -> DifferenceKind:
        return _KINDS[stat.S_IFMT(self.item.info.st_mode)]


class Listing(NamedTuple):
    """The entries of a tree that a snapshot can hold, sorted, and those that it cannot."""

    entries: list[TreeEntry]
    omitted: dict[str, str]
    """Reasons by path; a directory's path ends with a slash."""

    def keep(self, is_kept: Callable[[TreeEntry], bool]) -> Listing:
        """Return the listing with some of its entries."""
        return self._replace(entries=[each for each in self.entries if is_kept(each)])

    def count_bytes(self) -> int:
        """Return how many bytes the files take on disk, and so how many are read."""
        return sum(measure(each) for each in self.entries if each.kind == "file")


def measure(entry: TreeEntry) -> int:
    """Return the size of a file in bytes, without its holes."""
    return min(entry.item.info.st_size, entry.item.info.st_blocks * 512)


def list_tree(roots: tuple[Part, ...], open_git_directory: OpenGitDirectory | None = None) -> Listing:
    """List a tree. Nothing is opened but directories, and files whose mode or owner may forbid to read them."""
    virtual = _list_virtual_mounts()
    found = Listing([], {})
    mounts: dict[str, tuple[Part, ...]] = {}
    opened = [_list_directory("", roots, found.omitted)]
    while opened:
        if not opened[-1]:
            opened.pop()
            continue
        path, item, parts = opened[-1].pop()
        if path.rpartition("/")[2] == ".git" and open_git_directory is not None:
            mounts |= open_git_directory(path, item.place)
        if path in mounts:
            parts = mounts[path]
            if not parts:
                found.omitted[path] = "names a git directory elsewhere, which does not name it"
                continue
            item = parts[0].open()
        kind = stat.S_IFMT(item.info.st_mode)
        if kind in _SPECIAL:
            if "/.git/" not in f"/{path}":
                found.omitted[path] = _SPECIAL[kind]
        elif kind == stat.S_IFDIR and is_too_deep(f"/{path}"):
            found.omitted[f"{path}/"] = "nested too deeply"
        elif kind == stat.S_IFDIR and str(item.place) in virtual:
            found.omitted[f"{path}/"] = f"a file system of the kernel ({virtual[str(item.place)]})"
        elif kind == stat.S_IFDIR:
            children = _list_directory(path, parts, found.omitted)
            if children or f"{path}/" not in found.omitted:
                found.entries.append(TreeEntry(path, item))
                opened.append(children)
        elif kind == stat.S_IFREG and (reason := _find_obstacle(item)):
            found.omitted[path] = reason
        else:
            found.entries.append(TreeEntry(path, item))
    return found


def _list_directory(
    path: str, parts: Iterable[Part], omitted: dict[str, str]
) -> list[tuple[str, SourceEntry, tuple[Part, ...]]]:
    """List the paths in a directory of the tree, the last one first, each with its own parts."""
    named: dict[str, SourceEntry] = {}
    inner: dict[str, tuple[Part, ...]] = {}
    for part in parts:
        try:
            entries = untrusted_trees.list_entries(part.directory, part.path)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.EIO):
                raise
            with contextlib.suppress(OSError):
                omitted[f"{path}/"] = _describe_obstacle(error, (part.directory / part.path).lstat())
            continue
        for name, info in entries:
            below = f"{part.path}/{name}" if part.path else name
            if below in part.hidden or (part.only is not None and not part.path and name not in part.only):
                continue
            if name not in named:
                named[name] = SourceEntry(below, part.directory, info)
            if stat.S_ISDIR(info.st_mode) and named[name].is_directory:
                inner[name] = (*inner.get(name, ()), part._replace(path=below))
    names = sorted(named, key=os.fsencode, reverse=True)
    return [(f"{path}/{name}" if path else name, named[name], inner.get(name, ())) for name in names]


def _find_obstacle(item: SourceEntry) -> str:
    """Return why a file cannot be read; empty if it can be."""
    if item.info.st_uid == os.geteuid() and item.info.st_mode & stat.S_IRUSR:
        return ""
    try:
        with item.open_descriptor():
            return ""
    except FileNotFoundError:
        return ""  # a change, which is found later
    except OSError as error:
        return _describe_obstacle(error, item.info)


def _describe_obstacle(error: OSError, info: os.stat_result) -> str:
    mode = stat.S_IMODE(info.st_mode)
    return f"{os.strerror(error.errno or 0).lower()}: mode {mode:03o}, owner {info.st_uid}"


def _list_virtual_mounts() -> dict[str, str]:
    found = {}
    with contextlib.suppress(OSError):
        for line in _MOUNTS_FILE.read_text(errors="surrogateescape").splitlines():
            before, _, after = line.partition(" - ")
            if (kind := after.partition(" ")[0]) in _VIRTUAL:
                found[before.split(" ")[4].encode().decode("unicode_escape")] = kind
    return found


class TreeReader:
    """Yields a listing as differences from nothing, and finds out what changed meanwhile."""

    def __init__(self, listing: Listing, prefix: str) -> None:
        self._listing = listing
        self._prefix = prefix
        self._gone: set[str] = set()

    def __iter__(self) -> Iterator[Difference]:
        """Yield each entry. Entries that have disappeared are skipped."""
        for path, item in self._listing.entries:
            try:
                now = untrusted_trees.read_status(item.layer, item.path)
            except OSError:
                self._gone.add(path)
                continue
            if stat.S_IFMT(now.st_mode) == stat.S_IFMT(item.info.st_mode):
                yield Difference(f"{self._prefix}{path}", TreeEntry(path, item).kind, item)
            else:
                self._gone.add(path)

    def list_changed(self, current: Listing) -> list[str]:
        """List the paths that are not as they were listed before they were read."""
        before = {each.path: each.item.info for each in self._listing.entries}
        after = {each.path: each.item.info for each in current.entries}
        changed = {path for path in before.keys() & after.keys() if _differs(before[path], after[path])}
        added = {path for path in after.keys() - before.keys() if path not in self._listing.omitted}
        lost = before.keys() - after.keys()
        return sorted(self._gone | changed | added | lost)


def _differs(before: os.stat_result, after: os.stat_result) -> bool:
    names = _STATE[:2] if stat.S_ISDIR(before.st_mode) else _STATE
    return any(getattr(before, name) != getattr(after, name) for name in names)


def require_unchanged(directory: Path, changed: Iterable[str]) -> None:
    """Raise SandboxUnavailableError if anything changed."""
    if named := list(changed):
        more = f" and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        raise SandboxUnavailableError(
            f"{directory}: changed while it was read: {', '.join(map(repr, named[:_MAX_NAMED]))}{more} (let the agent finish "
            "its turn and stop what writes there; or --exclude it, or --allow-changing)"
        )


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
    with ownership.translate_disk_errors():
        base = prepare_empty_base()
        base_digest = base.digest if is_layered else f"{COPY_PREFIX}{base.digest}"
        with create_scratch_directory(owner) as scratch:
            reader = TreeReader(listing, f"{WRITABLE_DIRECTORIES[0]}/")
            differences = itertools.chain(_list_writable_directories(scratch, directory), reader)
            try:
                digest = archive_writer.write_differences_to_store(
                    differences, store, base_digest=base_digest, files=digests, on_bytes=on_bytes
                ).digest
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
    with ownership.translate_disk_errors(), create_scratch_directory("checkout") as scratch:
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
    from langgraph_takeover.sandbox.docker_client import require_image
    from langgraph_takeover.sandbox.snapshots import images

    found = require_image(image).attrs
    top = CHECKOUT_WORKSPACE.strip("/")
    with (
        ownership.translate_disk_errors(),
        create_scratch_directory("rebase") as scratch,
        images.open_image(found, found) as below,
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
