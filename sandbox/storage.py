"""The directories in which this host keeps bases, the layers of each run, and locks."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sandbox.machine import OutOfDisk, SandboxUnavailable

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
PLACE_VARIABLE = "TAKEOVER_HOME"
"""The environment variable that names another directory; overlayfs must be able to write to its disk."""
ROOT_UID = 0x4000_0000
"""The user on this host that is root in a sandbox which root starts: unprivileged, and nobody else."""


_LEAST_BYTES, _LEAST_FILES = 1024**2, 64
"""What a disk must have left for a sandbox to start, and to go on after a command."""


def root() -> Path:
    """The directory above all others; it may not exist yet."""
    named = os.environ.get(PLACE_VARIABLE)
    if named:
        found = Path(named)
    elif os.geteuid() == 0:
        found = Path("/var/cache/takeover")
    else:
        found = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "takeover")
    return found.absolute()


def place() -> Path:
    """The same, made on first use. Raises SandboxUnavailable."""
    return open_directory(root())


def runs() -> Path:
    """The directory with one directory for each run that has sandboxes on this host, named by its owner."""
    return open_directory(place() / "runs")


def owner_uid() -> int | None:
    """The user on this host that owns the files of sandboxes; None for the user who starts them."""
    return ROOT_UID if os.geteuid() == 0 else None


def require_room(directory: Path) -> None:
    """Raises OutOfDisk where the disk of a directory has no room for what a sandbox writes next."""
    try:
        found = os.statvfs(directory)
    except FileNotFoundError:
        return  # with the sandbox itself, which then says so
    size, files = found.f_bavail * found.f_frsize, found.f_favail
    if size < _LEAST_BYTES or (found.f_files and files < _LEAST_FILES):
        raise _out_of_disk(directory, f"{size >> 10:,} KB and room for {files:,} files left")


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Raise OutOfDisk for whatever fails because the disk with the sandboxes' files is full."""
    try:
        yield
    except SandboxUnavailable:
        raise  # one of them is an OSError
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise _out_of_disk(Path(error.filename or root())) from error


def _out_of_disk(place: Path, left: str = "") -> OutOfDisk:
    cure = f", or set {PLACE_VARIABLE} to a directory on another disk" if place.is_relative_to(root()) else ""
    return OutOfDisk(f"{place}: the disk is full{f' ({left})' if left else ''}; make room{cure}")


def closed_parent(place: Path) -> Path | None:
    """A directory on the way to `place` that the user that sandboxes run as cannot enter; None without one."""
    if owner_uid() is None:
        return None
    closed = (
        parent for parent in (*reversed(place.parents), place) if not parent.stat().st_mode & stat.S_IXOTH
    )
    return next(closed, None)


def own(path: Path) -> None:
    """Give one path to the owner of sandbox files."""
    uid = owner_uid()
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


def open_directory(path: Path) -> Path:
    """The directory at `path`, made if it does not exist. Raises SandboxUnavailable."""
    try:
        _make(path)
        if not path.is_dir():
            path.mkdir(mode=0o711, exist_ok=True)
    except OSError as error:
        if error.errno in FULL_DISK:
            raise _out_of_disk(path) from error
        raise SandboxUnavailable(
            f"{path}: {error.strerror}; set {PLACE_VARIABLE} to a directory that can be written to"
        ) from error
    return path


@functools.lru_cache(maxsize=64)
def _make(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    # The user that sandboxes run as passes through, and lists nothing on the way.
    path.chmod(0o711)
