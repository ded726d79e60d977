"""Changes a live directory to a saved state: only what differs, through descriptors, and never through a link out of it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.directories.directory_reader import GIT_DIRECTORY
from langgraph_takeover.sandbox.directories.directory_store import DirectoryStore, SavedEntry, Tree
from langgraph_takeover.sandbox.interface import OutOfDiskError, SnapshotCorruptError
from langgraph_takeover.sandbox.ownership import DISK_FULL_ERRNOS
from langgraph_takeover.sandbox.untrusted_trees import open_at, open_beneath

_TEMPORARY_PREFIX = ".takeover-restore-"
_CHANGED = "changed during the restore"
_KINDS = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "directory"}


class PlannedChange(NamedTuple):
    """One step from one saved state to another: `found` becomes `wanted`; None means that nothing is there."""

    path: str
    found: SavedEntry | None
    wanted: SavedEntry | None

    @property
    def obstacle(self) -> str | None:
        """Why the path stays as it is: one of the states does not have its content. Empty if it is excluded."""
        reasons = [each.content for each in (self.wanted, self.found) if each and each.kind == "unsaved"]
        return max(reasons) if reasons else None


def plan_changes(
    store: DirectoryStore, found: SavedEntry | None, wanted: SavedEntry | None, path: str = ""
) -> Iterator[PlannedChange]:
    """Yield the steps from one saved state to another in an order that works.

    The last step of a directory that stays or is made, which sets its mode and times, follows those of its content.
    Lock files of git are not restored, because they belong to a process. Raises SnapshotCorruptError.
    """
    step = PlannedChange(path, found, wanted)
    if found == wanted:
        return
    if step.obstacle is not None:
        yield step
        return
    before = store.read_tree(found.content) if found is not None and found.kind == "directory" else None
    after = store.read_tree(wanted.content) if wanted is not None and wanted.kind == "directory" else None
    if GIT_DIRECTORY in path.split("/") and after:
        after = {name: each for name, each in after.items() if not name.endswith(".lock")}
    if before is None and after is None:
        yield step
        return
    if before is None:
        if found is not None:
            yield PlannedChange(path, found, None)
        yield PlannedChange(path, None, wanted)
    yield from _plan_content(store, before or {}, after or {}, path)
    if after is not None:
        yield PlannedChange(path, wanted if before is None else found, wanted)
        return
    yield PlannedChange(path, found, None)
    if wanted is not None:
        yield PlannedChange(path, None, wanted)


def _plan_content(store: DirectoryStore, before: Tree, after: Tree, path: str) -> Iterator[PlannedChange]:
    for name in sorted(before.keys() | after.keys()):
        yield from plan_changes(store, before.get(name), after.get(name), f"{path}/{name}" if path else name)


class DirectoryWriter:
    """Carries out planned changes in an open directory. Close it at the end."""

    def __init__(self, root: int, store: DirectoryStore) -> None:
        self._root = Path(f"/proc/self/fd/{root}")
        self._device = os.fstat(root).st_dev
        self._store = store
        self._opened: tuple[str, int] | None = None
        self.left_out: dict[str, str] = {}
        """Why paths are not as planned."""

    def close(self) -> None:
        if self._opened is not None:
            os.close(self._opened[1])
            self._opened = None

    def carry_out(self, change: PlannedChange) -> bool:
        """Make one change and return whether it was made. Raises OutOfDiskError."""
        path, found, wanted = change
        if (obstacle := change.obstacle) is not None:
            if obstacle:
                self.left_out[path] = obstacle
            return False
        parent, _, name = path.rpartition("/")
        try:
            if wanted is None:
                self._remove(self._open(parent), name, found)
            elif wanted.kind == "directory":
                self._write_directory(path, found, wanted)
            else:
                self._write(self._open(parent), name, found, wanted)
        except SnapshotCorruptError:
            self.left_out[path] = "damaged in the store"
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                raise OutOfDiskError(
                    f"{path}: the disk is full during the restore (make room; the next snapshot or restore completes it)"
                ) from error
            self.left_out[path] = _describe(error)
        else:
            return True
        return False

    def _open(self, path: str) -> int:
        """A descriptor of a directory, which can be written to until its own step sets its mode again."""
        if self._opened is None or self._opened[0] != path:
            self.close()
            descriptor = open_beneath(self._root, path, os.O_RDONLY | os.O_DIRECTORY)
            self._opened = (path, descriptor)
            info = os.fstat(descriptor)
            if info.st_dev != self._device:
                raise OSError(errno.EXDEV, _CHANGED)
            if os.geteuid() != 0 and info.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.fchmod(descriptor, stat.S_IMODE(info.st_mode) | stat.S_IRWXU)
        return self._opened[1]

    def _remove(self, directory: int, name: str, found: SavedEntry | None) -> None:
        if found is not None and found.kind == "directory":
            os.rmdir(name, dir_fd=directory)
        else:
            _require_as_saved(directory, name, found)
            os.unlink(name, dir_fd=directory)

    def _write_directory(self, path: str, found: SavedEntry | None, wanted: SavedEntry) -> None:
        """Make a directory, or set the mode and times of one whose content is as wanted."""
        parent, _, name = path.rpartition("/")
        if found is None:
            os.mkdir(name, stat.S_IRWXU, dir_fd=self._open(parent))
            return
        descriptor = open_beneath(self._root, path, os.O_PATH | os.O_DIRECTORY)
        try:
            _set_metadata(descriptor, wanted)
        finally:
            os.close(descriptor)

    def _write(self, directory: int, name: str, found: SavedEntry | None, wanted: SavedEntry) -> None:
        """Put a file or a link in the place of another one, or of none, in one step."""
        if found is not None and (found.kind, found.content) == ("file", wanted.content):
            _require_as_saved(directory, name, found)
            descriptor = open_at(directory, name, os.O_PATH)
            try:
                # Another name of the same file may lie outside.
                if os.fstat(descriptor).st_nlink == 1:
                    _set_metadata(descriptor, wanted)
                    return
            finally:
                os.close(descriptor)
        temporary = f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        try:
            if wanted.kind == "link":
                os.symlink(wanted.content, temporary, dir_fd=directory)
                if os.geteuid() == 0:
                    os.chown(temporary, wanted.uid, wanted.gid, dir_fd=directory, follow_symlinks=False)
                times = (wanted.mtime_ns, wanted.mtime_ns)
                os.utime(temporary, ns=times, dir_fd=directory, follow_symlinks=False)
            else:
                self._write_file(directory, temporary, wanted)
            _require_as_saved(directory, name, found)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise

    def _write_file(self, directory: int, name: str, wanted: SavedEntry) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "wb") as file:
            for digest in wanted.list_blocks():
                block = self._store.read(digest)
                if block.count(0) == len(block):
                    file.seek(len(block), os.SEEK_CUR)
                else:
                    file.write(block)
            file.truncate(wanted.size)
            _set_metadata(file.fileno(), wanted)


def _require_as_saved(directory: int, name: str, found: SavedEntry | None) -> None:
    """Raise OSError if a name no longer has the state that was saved, so that nothing is lost."""
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if found is None:
            return
        raise
    state = (_KINDS.get(stat.S_IFMT(info.st_mode)), info.st_size, info.st_mtime_ns)
    if found is None or state != (found.kind, found.size, found.mtime_ns):
        raise OSError(errno.EBUSY, _CHANGED)


def _set_metadata(descriptor: int, wanted: SavedEntry) -> None:
    """Set owner, mode and time of an open file or directory; only root can set the owner."""
    place, mode = f"/proc/self/fd/{descriptor}", wanted.mode  # a descriptor of O_PATH works by this name only
    if os.geteuid() == 0:
        os.chown(place, wanted.uid, wanted.gid)
    elif wanted.uid != os.geteuid():
        mode &= ~(stat.S_ISUID | stat.S_ISGID)  # they gave the rights of another user
    Path(place).chmod(mode)
    os.utime(place, ns=(wanted.mtime_ns, wanted.mtime_ns))


def _describe(error: OSError) -> str:
    if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        return "not empty: it has files that are not saved"
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT):
        return _CHANGED
    return (error.strerror or "failed").lower()
