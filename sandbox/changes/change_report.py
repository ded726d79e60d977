"""The files that changed between two looks at a sandbox."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import posixpath
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.changes.layers import (
    MAX_DEPTH,
    MAX_PATH_BYTES,
    LayerEntry,
    LayerLookup,
    LayerStack,
    is_opaque,
    is_whiteout,
)
from langgraph_takeover.sandbox.interface import FileChange, SandboxUnavailableError
from langgraph_takeover.sandbox.shell import escape_non_utf8
from langgraph_takeover.sandbox.untrusted_trees import open_at, open_safely

GENERATED_DIRECTORIES = frozenset(
    (
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        ".tox",
        "node_modules",
        ".eggs",
    )
)
"""Cache directories, which tools create by themselves."""
EXCLUDED_DIRECTORY = ".git"
"""Git's own directory is not part of the work; its changes show in the files that it checks out."""
MAX_HASHED_FILE_BYTES = 128 * 1024**2
"""Maximum size of a file, holes included, whose content is hashed; a larger one is known by its size and time."""
MAX_HASHED_BYTES = 512 * 1024**2
"""Maximum bytes, holes included, that one report hashes."""
_MAX_HASHED_FILES = 200_000
"""Maximum number of files that one report hashes."""
_BLOCK = 1024 * 1024


class FileState(NamedTuple):
    """A file at one moment: the SHA-256 of its content, and its permission bits.

    Without `is_hashed` the digest covers the size and the time of the last change, as for a very large file.
    """

    sha256: str
    mode: int
    is_hashed: bool = True


class HashBudget:
    """Remaining hash budget of one report. Counted in bytes and files, not in seconds: equal runs get equal reports."""

    def __init__(self) -> None:
        self._bytes, self._files = MAX_HASHED_BYTES, _MAX_HASHED_FILES
        self._hard_link_digests: dict[tuple[int, ...], str] = {}

    def compute_sha256(self, descriptor: int, info: os.stat_result) -> str | None:
        """The digest of an open file's content; None if it is too much to read. Names of one file count once."""
        inode = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size)
        if info.st_nlink > 1 and inode in self._hard_link_digests:
            return self._hard_link_digests[inode]
        if info.st_size > min(MAX_HASHED_FILE_BYTES, self._bytes) or not self._files:
            return None
        self._bytes -= info.st_size
        self._files -= 1
        digest, left = hashlib.sha256(), info.st_size
        while left > 0 and (data := os.read(descriptor, min(left, _BLOCK))):
            digest.update(data)
            left -= len(data)  # a file that grows meanwhile is hashed up to the size that it had
        if info.st_nlink > 1:
            self._hard_link_digests[inode] = digest.hexdigest()
        return digest.hexdigest()


def compare_states(
    states: Iterable[tuple[str, FileState | None, FileState | None]], workspace: str
) -> tuple[FileChange, ...]:
    """Return the differences, sorted; paths inside the workspace are relative to it, others absolute."""
    prefix = workspace.rstrip("/") + "/"
    different = sorted((path, before, after) for path, before, after in states if before != after)
    different = [line for line in different if EXCLUDED_DIRECTORY not in line[0].split("/")]
    gone: dict[str, list[str]] = {}
    for path, before, after in different:
        if before is not None and after is None:
            gone.setdefault(before.sha256, []).append(path)
    changes = []
    for path, before, after in different:
        origins = gone.get(after.sha256, []) if after is not None and before is None else []
        rechmod = before is not None and after is not None and before.mode != after.mode
        changes.append(
            FileChange(
                path=escape_non_utf8(path.removeprefix(prefix)),
                before=before.sha256 if before else None,
                after=after.sha256 if after else None,
                before_mode=before.mode if before and rechmod else None,
                after_mode=after.mode if after and rechmod else None,
                renamed_from=escape_non_utf8(origins[0].removeprefix(prefix)) if len(origins) == 1 else None,
                too_large=any(state is not None and not state.is_hashed for state in (before, after)),
                generated=not GENERATED_DIRECTORIES.isdisjoint(path.split("/")),
            )
        )
    return tuple(changes)


def hash_link_target(target: bytes) -> str:
    return hashlib.sha256(b"symlink:" + target).hexdigest()


def size_digest(info: os.stat_result) -> str:
    """Return a digest for the content of a file that is too large to hash."""
    return hashlib.sha256(b"large:%d:%d" % (info.st_size, info.st_mtime_ns)).hexdigest()


class FileVersion(NamedTuple):
    """A file as it is now, or as it was."""

    size: int
    content: bytes | None
    """None if it is larger than the limit of the reader."""


def read_layer_files(
    stack: LayerStack, mounts: Iterable[Mount], workspace: str, paths: Iterable[str], max_bytes: int
) -> dict[str, FileVersion]:
    """Return the regular files among these paths, which are relative to the workspace or absolute.

    A program inside can change a file meanwhile: verify contents by their digests.
    """
    lookup, found = LayerLookup(stack), {}
    for path in paths:
        whole = posixpath.normpath(posixpath.join(workspace, path))
        for part, inside in mounts:
            start = f"{inside.rstrip('/')}/"
            if whole.startswith(start):
                entry = lookup.find(posixpath.join(part, whole.removeprefix(start)))
                if entry is not None and (version := _read_entry(entry, max_bytes)) is not None:
                    found[path] = version
                break
    return found


def find_file_digest(lookup: LayerLookup, path: str) -> str | None:
    """Return the SHA-256 of a file or a link's target, as a report of changes has it; None if there is neither."""
    entry = lookup.find(path)
    if entry is None:
        return None
    if stat.S_ISLNK(entry.info.st_mode):
        return hash_link_target(entry.link_target())
    if not stat.S_ISREG(entry.info.st_mode):
        return None
    with entry.open_descriptor() as descriptor:
        return HashBudget().compute_sha256(descriptor, entry.info) or size_digest(entry.info)


def _read_entry(entry: LayerEntry, max_bytes: int) -> FileVersion | None:
    if not stat.S_ISREG(entry.info.st_mode):
        return None
    if entry.info.st_size > max_bytes:
        return FileVersion(entry.info.st_size, None)
    try:
        with entry.open_descriptor() as descriptor, open(descriptor, "rb", closefd=False) as file:
            content = file.read(max_bytes + 1)
    except OSError:
        return None
    return FileVersion(len(content), content) if len(content) <= max_bytes else None


MAX_SCAN_S = 30.0
"""Maximum duration of a report. Only millions of files take that long."""
_RACY_NS = 20_000_000
_TOO_MANY_FILES = (
    "the sandbox has too many files: {:,} were listed in {:.0f} s (lower the limit on its disk, disk_mb, "
    "which bounds their number)"
)
_REPLACED_FILE_ERRNOS = (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR, errno.ENOTDIR)
"""Errors of the kernel if something has replaced a file."""
_NOT_DIRECTORY_ERRNOS = (*_REPLACED_FILE_ERRNOS, errno.ENOENT, errno.EXDEV, errno.EACCES)
"""The same for a directory, or a mode that closes it."""


class _ObservedFile(NamedTuple):
    signature: tuple[int, ...]
    state: FileState


class Mount(NamedTuple):
    """Where a part of a sandbox's file tree is visible inside."""

    part: str
    mount_point: str


class _ScanDeadline:
    """Ends a report that takes too long."""

    def __init__(self) -> None:
        self._end = time.monotonic() + MAX_SCAN_S
        self._files = 0

    def count_file(self) -> None:
        """Raises SandboxUnavailableError after MAX_SCAN_S."""
        if time.monotonic() > self._end:
            raise SandboxUnavailableError(_TOO_MANY_FILES.format(self._files, MAX_SCAN_S))
        self._files += 1


class LayerChangeTracker:
    """The changes since the last look, in time proportional to the size of the top layer.

    A file is read again when its size, times, inode or mode say that it may have changed. No program inside the sandbox
    is used. The top layer may be in use meanwhile: it is read through descriptors only.
    """

    def __init__(self, stack: LayerStack, mounts: tuple[Mount, ...], workspace: str) -> None:
        self._mounts = mounts
        self._workspace = workspace
        self._unreported: dict[str, FileState | None] = {}
        self._lower_states: dict[tuple[Path, str], FileState] = {}
        self._pending_stacks: list[LayerStack] = []
        self._use_stack(stack)
        self.changes()

    def switch_layers(self, stack: LayerStack) -> None:
        """Continue with other layers that hold the same files, as after a snapshot.

        The old layers must not change any more: their new files are looked up when needed.
        """
        self._pending_stacks.append(stack)

    def changes(self) -> tuple[FileChange, ...]:
        """List the changes since the last call. Raises SandboxUnavailableError if the files are gone or far too many."""
        self._begin_scan()
        for stack in self._pending_stacks:
            for path, before, _ in self._find_differences():
                self._unreported.setdefault(path, before)
            self._use_stack(stack)
        self._pending_stacks = []
        found = [
            (path, self._unreported.get(path, before), after)
            for path, before, after in self._find_differences()
        ]
        reported = {path for path, _, _ in found}
        found += [
            (path, before, self._file_state(path))
            for path, before in self._unreported.items()
            if path not in reported
        ]
        self._unreported = {}
        self._lookup = LayerLookup(self._lower_stack)  # frees the memory
        inside = [(name, before, after) for path, before, after in found if (name := self._path_inside(path))]
        return compare_states(inside, self._workspace)

    def sha256(self, path: str) -> str | None:
        whole = posixpath.normpath(posixpath.join(self._workspace, path))
        for part, inside in self._mounts:
            if whole.startswith(inside.rstrip("/") + "/"):
                self._begin_scan()
                state = self._file_state(posixpath.join(part, whole[len(inside.rstrip("/")) + 1 :]))
                return state.sha256 if state else None
        return None

    def _begin_scan(self) -> None:
        self._budget, self._deadline = HashBudget(), _ScanDeadline()

    def _use_stack(self, stack: LayerStack) -> None:
        self._top, self._lower_stack = (
            stack.layers[0],
            LayerStack(*stack.layers[1:], opaque_attribute=stack.opaque_attribute),
        )
        self._lookup = LayerLookup(self._lower_stack)
        self._observed: dict[str, _ObservedFile] = {}
        self._hidden_paths: frozenset[str] = frozenset()

    def _find_differences(self) -> Iterator[tuple[str, FileState | None, FileState | None]]:
        """Return every path that may differ from the last look, before and after; this look then becomes the last."""
        before_now, before_covers = self._observed, self._hidden_paths
        try:
            now, covers = self._scan_top_layer()
        except FileNotFoundError as error:
            raise SandboxUnavailableError("the sandbox's files are gone") from error
        except OSError as error:
            raise SandboxUnavailableError(f"the sandbox's files cannot be read: {error.strerror}") from error
        suspects = {path for path, seen in now.items() if before_now.get(path) != seen}
        suspects |= before_now.keys() - now.keys()
        for path in (covers ^ before_covers) | {p for p in suspects if (p in now) != (p in before_now)}:
            suspects.update(self._list_files_below(path))
        before = {path: self._file_state(path) for path in sorted(suspects)}
        self._observed, self._hidden_paths = now, covers
        for path in before:
            after = self._file_state(path)
            if before[path] != after:
                yield path, before[path], after

    def _scan_top_layer(self) -> tuple[dict[str, _ObservedFile], frozenset[str]]:
        """Return the files of the top layer, and the paths that it deletes or hides."""
        now: dict[str, _ObservedFile] = {}
        covers: set[str] = set()

        def scan(directory: int, prefix: str) -> None:
            if prefix and is_opaque(directory, self._lower_stack.opaque_attribute):
                covers.add(prefix[:-1])
            below, files = [], {}
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._deadline.count_file()
                    with contextlib.suppress(FileNotFoundError):
                        info = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(info.st_mode):
                            below.append(entry.name)
                        elif is_whiteout(info):
                            covers.add(prefix + entry.name)
                        elif _is_file(info):
                            files[entry.name] = info
            for name in sorted(files):  # as the budget is spent in this order
                self._deadline.count_file()
                with contextlib.suppress(FileNotFoundError):
                    now[prefix + name] = self._observe_file(prefix + name, directory, files[name])
            if prefix.count("/") > MAX_DEPTH:
                return
            for name in sorted(below):
                if name == EXCLUDED_DIRECTORY or len(os.fsencode(prefix + name)) > MAX_PATH_BYTES:
                    continue
                try:
                    descriptor = open_at(directory, name, os.O_RDONLY | os.O_DIRECTORY)
                except OSError as error:
                    if error.errno not in _NOT_DIRECTORY_ERRNOS:
                        raise
                    continue
                try:
                    scan(descriptor, f"{prefix}{name}/")
                finally:
                    os.close(descriptor)

        with open_safely(self._top, "") as top:
            scan(top, "")
        return now, frozenset(covers)

    def _observe_file(self, path: str, directory: int, info: os.stat_result) -> _ObservedFile:
        signature: tuple[int, ...] = (
            info.st_size,
            info.st_mtime_ns,
            info.st_ctime_ns,
            info.st_ino,
            info.st_mode,
        )
        known = self._observed.get(path)
        if known is not None and known.signature == signature:
            return known
        if time.time_ns() - info.st_ctime_ns < _RACY_NS:
            signature = ()  # it may change once more within the same clock tick
        mode = stat.S_IMODE(info.st_mode)
        by_size = size_digest(info)
        if known is not None and not known.state.is_hashed and known.state.sha256 == by_size:
            return _ObservedFile(signature, FileState(by_size, mode, is_hashed=False))
        try:
            content = self._hash_content(posixpath.basename(path), directory, info)
        except PermissionError:
            # No one can have read it either: it keeps its digest.
            state = self._file_state(path)
            content = state.sha256 if state else hashlib.sha256(b"").hexdigest()
        return _ObservedFile(signature, FileState(content or by_size, mode, is_hashed=content is not None))

    def _hash_content(self, name: str, directory: int, info: os.stat_result) -> str | None:
        """The digest of a link's target or a file's content; None if that is too large.

        Raises FileNotFoundError if the path no longer holds a link or a regular file.
        """
        try:
            if stat.S_ISLNK(info.st_mode):
                return hash_link_target(os.readlink(os.fsencode(name), dir_fd=directory))
            descriptor = open_at(directory, name)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise FileNotFoundError(errno.ENOENT, "not a file any more", name)
                return self._budget.compute_sha256(descriptor, found)
            finally:
                os.close(descriptor)
        except PermissionError:
            raise
        except OSError as error:
            if error.errno in _REPLACED_FILE_ERRNOS:
                raise FileNotFoundError(errno.ENOENT, "not a file any more", name) from error
            raise

    def _file_state(self, path: str) -> FileState | None:
        """Return the file's state at the last look."""
        self._deadline.count_file()
        seen = self._observed.get(path)
        if seen is not None:
            return seen.state
        if path in self._hidden_paths or any(
            p in self._hidden_paths or p in self._observed for p in _parents(path)
        ):
            return None
        found = self._lookup.find(path)
        if found is None or not _is_file(found.info):
            return None
        key = (found.layer, found.path)
        if key not in self._lower_states:
            self._lower_states[key] = self._read_lower_state(found)
        return self._lower_states[key]

    def _read_lower_state(self, item: LayerEntry) -> FileState:
        mode = stat.S_IMODE(item.info.st_mode)
        if stat.S_ISLNK(item.info.st_mode):
            return FileState(hash_link_target(item.link_target()), mode)
        with item.open_descriptor() as descriptor:
            content = self._budget.compute_sha256(descriptor, item.info)
        return FileState(content or size_digest(item.info), mode, is_hashed=content is not None)

    def _list_files_below(self, path: str) -> Iterator[str]:
        item = self._lookup.find(path)
        if item is not None and _is_file(item.info):
            yield path
        elif item is not None and posixpath.basename(path) != EXCLUDED_DIRECTORY:
            for each in self._lookup.walk(path, pruned_name=EXCLUDED_DIRECTORY):
                self._deadline.count_file()
                if _is_file(each.info):
                    yield each.path

    def _path_inside(self, path: str) -> str | None:
        for part, inside in self._mounts:
            if not part or path.startswith(part + "/"):
                return posixpath.join(inside, path[len(part) :].lstrip("/"))
        return None


def _is_file(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
