"""The directories in which this host keeps bases, the layers of each run, and locks."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
ROOT_VARIABLE = "TAKEOVER_HOME"
"""The environment variable that names another directory; overlayfs must be able to write to its disk."""
ROOT_UID = 0x4000_0000
"""The unprivileged user of this host that is root in sandboxes started by root, and has no other use."""


_MIN_FREE_BYTES, _MIN_FREE_FILES = 1024**2, 64
"""Free disk space that a sandbox needs to start, and to continue after a command."""


def root() -> Path:
    """The directory above all others; it may not exist yet."""
    named = os.environ.get(ROOT_VARIABLE)
    if named:
        found = Path(named)
    elif os.geteuid() == 0:
        found = Path("/var/cache/takeover")
    else:
        found = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "takeover")
    return found.absolute()


def ensure_root() -> Path:
    """The same, made on first use. Raises SandboxUnavailableError."""
    return ensure_directory(root())


def runs_directory() -> Path:
    """The directory with one directory for each run that has sandboxes on this host, named by its owner."""
    return ensure_directory(ensure_root() / "runs")


def owner_uid() -> int | None:
    """The user on this host that owns the files of sandboxes; None for the user who starts them."""
    return ROOT_UID if os.geteuid() == 0 else None


def require_disk_space(directory: Path) -> None:
    """Raise OutOfDiskError if the disk of a directory has no space for what a sandbox writes next."""
    try:
        found = os.statvfs(directory)
    except FileNotFoundError:
        return  # with the sandbox itself, which then says so
    size, files = found.f_bavail * found.f_frsize, found.f_favail
    if size < _MIN_FREE_BYTES or (found.f_files and files < _MIN_FREE_FILES):
        raise _make_disk_full_error(directory, f"{size >> 10:,} KB and room for {files:,} files left")


@contextlib.contextmanager
def translate_disk_errors() -> Iterator[None]:
    """Raise OutOfDiskError for whatever fails because the disk with the sandboxes' files is full."""
    try:
        yield
    except SandboxUnavailableError:
        raise  # one of them is an OSError
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise _make_disk_full_error(Path(error.filename or root())) from error


def _make_disk_full_error(path: Path, left: str = "") -> OutOfDiskError:
    cure = f", or set {ROOT_VARIABLE} to a directory on another disk" if path.is_relative_to(root()) else ""
    return OutOfDiskError(f"{path}: the disk is full{f' ({left})' if left else ''}; make room{cure}")


def find_closed_parent(path: Path) -> Path | None:
    """Return a directory on the way to `path` that the user of the sandboxes cannot enter; None if all can be entered."""
    if owner_uid() is None:
        return None
    closed = (
        parent for parent in (*reversed(path.parents), path) if not parent.stat().st_mode & stat.S_IXOTH
    )
    return next(closed, None)


def give_to_owner(path: Path) -> None:
    """Give one path to the owner of sandbox files."""
    uid = owner_uid()
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


def ensure_directory(path: Path) -> Path:
    """The directory at `path`, made if it does not exist. Raises SandboxUnavailableError."""
    try:
        _make(path)
        if not path.is_dir():
            path.mkdir(mode=0o711, exist_ok=True)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise _make_disk_full_error(path) from error
        raise SandboxUnavailableError(
            f"{path}: {error.strerror}; set {ROOT_VARIABLE} to a directory that can be written to"
        ) from error
    return path


@functools.lru_cache(maxsize=64)
def _make(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    # The user that sandboxes run as passes through, and lists nothing on the way.
    path.chmod(0o711)
