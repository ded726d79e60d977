"""The directories in which this host keeps bases, the layers of each run, and locks."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from sandbox.machine import SandboxUnavailable

PLACE_VARIABLE = "TAKEOVER_HOME"
"""The environment variable that names another directory; overlayfs must be able to write to its disk."""
ROOT_UID = 0x4000_0000
"""The user on this host that is root in a sandbox which root starts: unprivileged, and nobody else."""


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
        raise SandboxUnavailable(
            f"{path}: {error.strerror}; set {PLACE_VARIABLE} to a directory that can be written to"
        ) from error
    return path


@functools.lru_cache(maxsize=64)
def _make(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    # The user that sandboxes run as passes through, and lists nothing on the way.
    path.chmod(0o711)
