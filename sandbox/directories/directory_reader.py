"""Reads a live directory into a store: only what changed, through descriptors, and never a mixture of two states."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.changes.layers import is_too_deep
from langgraph_takeover.sandbox.directories.directory_store import (
    BLOCK_BYTES,
    DirectoryStore,
    EntryKind,
    SavedEntry,
    SeenDirectory,
    Tree,
)
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.untrusted_trees import open_at

GIT_DIRECTORY = ".git"
MAX_FILES = 500_000
"""Maximum number of files of a directory."""
_FILE_TYPE = 0o170000
_EXCLUDED = (0, 0, 0, 0, 0)
"""The state of a name that is excluded, whatever is there."""
_UNREAD = (0, 0, 0, 0, 1)
"""The state of a name that must be read again next time."""
_UNSIGNED = 2**64 - 1
_MAX_READS = 6
_MAX_WAIT_NS = 2_100_000_000
_COARSE_GRAIN_NS = 2_000_000_000
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, from which the kernel takes the times of files
_TICK_S = 0.005
_OCTAL = re.compile(rb"\\([0-7]{3})")
_MOUNTS_FILE = Path("/proc/self/mountinfo")
_REPLACED_ERRNOS = (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ENXIO)
"""Errors of the kernel if something else took the name meanwhile."""
_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_GIT_COMMAND = (
    "git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*",
    "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory",
)  # fmt: skip
_GIT_TIMEOUT_S = 120

State = tuple[int, int, int, int, int]
"""Mode, inode, size, time of the last modification and of the last change of one name; all zeros for none."""


class NameStates(NamedTuple):
    """The names in a directory, in any order, with their states. It must be fast: it is made anew for each snapshot."""

    names: list[str]
    numbers: list[int]
    """The numbers of all states, one state after the other."""

    def pack(self) -> tuple[bytes, bytes]:
        """Return names and numbers as bytes."""
        return os.fsencode("\0".join(self.names)), array("Q", self.numbers).tobytes()

    @classmethod
    def unpack(cls, names: bytes, numbers: bytes) -> NameStates:
        return cls(os.fsdecode(names).split("\0"), array("Q", numbers).tolist())

    def states(self) -> Iterator[tuple[str, State]]:
        return zip(self.names, zip(*[iter(self.numbers)] * 5, strict=True), strict=False)


class Exclusions(NamedTuple):
    """What of a directory is neither saved nor changed by a restore."""

    names: frozenset[str]
    """Names of directories; `parent/name` excludes it below one parent only."""
    max_file_bytes: int
    paths: frozenset[str] = frozenset()
    """What git ignores; directories end with a slash."""
    mounts: frozenset[str] = frozenset()
    store: tuple[int, int] = (0, 0)
    """Device and inode of the store, which may lie in the directory."""

    def has_directory(self, path: str, info: os.stat_result) -> bool:
        """Whether a directory is excluded without a word."""
        *_, parent, name = f"/{path}".rsplit("/", 2)
        return (
            name in self.names
            or f"{parent}/{name}" in self.names
            or f"{path}/" in self.paths
            or (info.st_ino == self.store[1] and info.st_dev == self.store[0])
        )


class DirectoryReader:
    """Saves the state of one directory in an open store. Use it once, inside a transaction."""

    def __init__(self, store: DirectoryStore, exclusions: Exclusions) -> None:
        self._store = store
        self._exclusions = exclusions
        settings = json.dumps([sorted(exclusions.names), exclusions.max_file_bytes, os.geteuid()])
        self._seen = store.read_seen(settings)
        self._changed: dict[bytes, SeenDirectory] = {}
        self._device = 0
        self.files = 0
        self.left_out: dict[str, str] = {}
        """Why paths were not saved."""

    def read(self, root: int) -> SavedEntry:
        """Save an open directory with everything in it; return its entry. Raises SandboxUnavailableError for too many files."""
        info = os.fstat(root)
        self._device = info.st_dev
        entry = _make_entry("directory", info, self._read_tree(root, ""))
        self._store.update_seen(self._changed, self._seen)
        return entry

    def _read_tree(self, directory: int, path: str) -> str:
        """Save an open directory; return the digest of its tree."""
        key = os.fsencode(path)
        seen = self._seen.pop(key, None)
        listing, directories = self._list_names(directory, path)
        children = {
            name: self._read_child(directory, path, name) for name in sorted(directories - {"objects"})
        }
        if path.rpartition("/")[2] == GIT_DIRECTORY:
            # `git pack-refs` writes `packed-refs` before it deletes single ones, so it is read after them.
            listing, _ = self._list_names(directory, path)
        entries: Tree | None = None
        if seen is None or listing.pack() != (seen.names, seen.states):
            entries = self._read_names(directory, path, listing, seen)
        if "objects" in directories:
            # Git writes objects before the names that lead to them, so they are read after the names.
            children["objects"] = self._read_child(directory, path, "objects")
        saved = json.dumps(
            [[name, entry and (entry.kind, entry.content)] for name, entry in children.items()]
        )
        if seen is None or entries is not None or seen.children != saved:
            if entries is None and seen is not None:
                entries = self._store.read_tree(seen.tree)
            seen = self._see(listing, saved, {**(entries or {}), **children})
            self._changed[key] = seen
        self.files += seen.files
        if self.files > MAX_FILES:
            raise SandboxUnavailableError(
                f"{path or '.'}: more than {MAX_FILES:,} files up to here (pass the directory of one project, or exclude "
                "names with ignored_names)"
            )
        self.left_out |= {_join(path, name): reason for name, reason in json.loads(seen.left_out).items()}
        return seen.tree

    def _see(
        self, listing: NameStates, children: str, entries: dict[str, SavedEntry | None]
    ) -> SeenDirectory:
        """Save the tree of a directory; return what the next snapshot needs to know of it."""
        found = {name: entry for name, entry in entries.items() if entry is not None}
        unsaved = {name: each.content for name, each in found.items() if each.kind == "unsaved"}
        left_out = {name: reason for name, reason in unsaved.items() if reason}
        files = sum(each.kind in ("file", "link") for each in found.values())
        return SeenDirectory(
            *listing.pack(), children, self._store.add_tree(found), files, json.dumps(left_out)
        )

    def _list_names(self, directory: int, path: str) -> tuple[NameStates, set[str]]:
        """List the names in an open directory, and the directories that are not excluded."""
        listing = NameStates([], [])
        names, numbers = listing
        directories = set()
        exclusions = self._exclusions
        with os.scandir(directory) as listed:
            for each in listed:
                name = each.name
                try:
                    info = each.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                names.append(name)
                if info.st_mode & _FILE_TYPE == stat.S_IFDIR:
                    if exclusions.has_directory(_join(path, name), info):
                        numbers += _EXCLUDED
                        continue
                    directories.add(name)
                elif exclusions.paths and _join(path, name) in exclusions.paths:
                    numbers += _EXCLUDED
                    continue
                numbers += _get_state(info)
        return listing, directories

    def _read_child(self, parent: int, path: str, name: str) -> SavedEntry | None:
        """Save a directory in an open directory; None if it is gone."""
        below = _join(path, name)
        if below in self._exclusions.mounts:
            return _leave_out("another file system is mounted here")
        if is_too_deep(f"/{below}"):
            return _leave_out("nested too deeply")
        try:
            directory = open_at(parent, name, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return None
        except OSError as error:
            return _leave_out(_describe(error))
        try:
            info = os.fstat(directory)
            if info.st_dev != self._device:
                return _leave_out("another file system")
            return _make_entry("directory", info, self._read_tree(directory, below))
        except PermissionError as error:
            return _leave_out(_describe(error))
        finally:
            os.close(directory)

    def _read_names(self, directory: int, path: str, listing: NameStates, seen: SeenDirectory | None) -> Tree:
        """Save what is no directory and has another state than before; replace the state by that of the saved content."""
        known = dict(NameStates.unpack(seen.names, seen.states).states()) if seen else {}
        before = self._store.read_tree(seen.tree) if seen else {}
        entries: Tree = {}
        for number, (name, state) in enumerate([*listing.states()]):
            entry: SavedEntry | None = None
            if state == _EXCLUDED:
                entry = SavedEntry("unsaved")
            elif state[0] & _FILE_TYPE == stat.S_IFDIR:
                continue
            elif name in before and known.get(name) == state:
                entry = before[name]
            else:
                entry, listing.numbers[number * 5 : number * 5 + 5] = self._read_name(directory, path, name)
            if entry is not None:
                entries[name] = entry
        return entries

    def _read_name(self, directory: int, path: str, name: str) -> tuple[SavedEntry | None, State]:
        """Save a file or a link, again if it changes meanwhile; return its entry, None if it is gone, and its state."""
        for _ in range(_MAX_READS):
            clock = time.clock_gettime_ns(_COARSE_CLOCK)
            try:
                info = os.stat(name, dir_fd=directory, follow_symlinks=False)
                # A later change must get a later time: that is certain once the clock of the file's times has advanced.
                ahead = (
                    info.st_ctime_ns - clock + (0 if info.st_ctime_ns % 1_000_000_000 else _COARSE_GRAIN_NS)
                )
                if 0 <= ahead <= _MAX_WAIT_NS:
                    time.sleep(ahead / 1e9 + _TICK_S)
                    continue
                entry = self._save(directory, _join(path, name), info)
                state = _get_state(info)
                if state == _get_state(os.stat(name, dir_fd=directory, follow_symlinks=False)):
                    return entry, state if ahead < 0 else _UNREAD
            except SandboxUnavailableError:
                raise  # one of them is an OSError
            except FileNotFoundError:
                return None, _UNREAD
            except OSError as error:
                if error.errno not in _REPLACED_ERRNOS:
                    return _leave_out(_describe(error)), _UNREAD
        return _leave_out("changed each time it was read"), _UNREAD

    def _save(self, directory: int, path: str, info: os.stat_result) -> SavedEntry:
        name, kind = path.rpartition("/")[2], stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFLNK:
            return _make_entry("link", info, os.readlink(name, dir_fd=directory))
        if kind != stat.S_IFREG:
            return _leave_out(_SPECIAL.get(kind, "a directory since it was listed"))
        if path in self._exclusions.mounts:
            return _leave_out("another file system is mounted here")
        if info.st_size > self._exclusions.max_file_bytes:
            return _leave_out(f"larger than {self._exclusions.max_file_bytes:,} bytes")
        digests, left = [], info.st_size
        with os.fdopen(open_at(directory, name), "rb") as file:
            while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
                digests.append(self._store.add(block))
                left -= len(block)
        return _make_entry("file", info, "".join(digests))


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _get_state(info: os.stat_result) -> State:
    # A time before 1970 is negative.
    return (
        info.st_mode,
        info.st_ino,
        info.st_size,
        info.st_mtime_ns & _UNSIGNED,
        info.st_ctime_ns & _UNSIGNED,
    )


def _make_entry(kind: EntryKind, info: os.stat_result, content: str) -> SavedEntry:
    size = 0 if kind == "directory" else info.st_size
    return SavedEntry(
        kind, stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, info.st_mtime_ns, size, content
    )


def _leave_out(reason: str) -> SavedEntry:
    return SavedEntry("unsaved", content=reason)


def _describe(error: OSError) -> str:
    return f"cannot be read: {os.strerror(error.errno or 0).lower()}"


def list_mounts(root: int) -> frozenset[str]:
    """List the paths in an open directory at which something is mounted."""
    top = str(Path(f"/proc/self/fd/{root}").readlink())
    found = (line.split(b" ")[4] for line in _MOUNTS_FILE.read_bytes().splitlines())
    # The kernel writes a space as \040.
    paths = (os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), path)) for path in found)
    prefix = f"{top.rstrip('/')}/"
    return frozenset(path.removeprefix(prefix) for path in paths if path.startswith(prefix))


def list_git_ignored(directory: Path) -> frozenset[str]:
    """List what git ignores in a directory; directories end with a slash.

    Nothing of the repository runs. Raises SandboxUnavailableError if git cannot say it.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            _GIT_COMMAND,
            cwd=directory,
            env=environment,
            capture_output=True,
            check=False,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailableError(
            f"{directory}: git ls-files: {error} (pass ignore_with_git=False)"
        ) from error
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise SandboxUnavailableError(
            f"{directory}: git ls-files: {reason:.300} (pass ignore_with_git=False)"
        )
    return frozenset(os.fsdecode(done.stdout).split("\0")[:-1])
