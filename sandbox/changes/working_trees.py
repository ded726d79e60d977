"""A directory of this host as a person works in it: listed for a snapshot, without a copy and without a change to it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.changes.differences import Difference, DifferenceKind
from langgraph_takeover.sandbox.changes.layers import LayerEntry, is_too_deep
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.storage import safe_open

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
        with safe_open.open_safely(self.layer, self.path, flags) as descriptor:
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
            entries = safe_open.list_entries(part.directory, part.path)
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
                now = safe_open.read_status(item.layer, item.path)
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
