"""The programs of this host that start sandboxes: one search for checks and starts."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.storage import host_directories

_ADMINISTRATION_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Searched last: the PATH of an ordinary user often lacks them."""
# In a user namespace their owner can have no number.
_SYSTEM_DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/bin", *_ADMINISTRATION_DIRECTORIES)


def search_path() -> str:
    """Return the directories of PATH that are safe to run programs from, as a PATH.

    Left out are relative and empty entries, and directories that every user can write to, that belong to a user other
    than root and this one, or that the user of the sandboxes cannot enter.
    """
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(
        dict.fromkeys(each for each in (*entries, *_ADMINISTRATION_DIRECTORIES) if _is_trusted(each))
    )


def program_environment() -> dict[str, str]:
    """Return the environment of a program of this host that starts a sandbox."""
    return {"PATH": search_path()}


def find_program(name: str, package: str) -> str:
    """Return the absolute path of a program of this host; `package` is its package in Debian.

    Raises:
        SandboxUnavailableError: It is not installed.
    """
    found = shutil.which(name, path=search_path())
    if found is None:
        raise SandboxUnavailableError(
            f"{name} is not installed, or not in a directory of PATH that belongs to root or this user; "
            f"the back end host needs it (Debian: apt-get install {package})"
        )
    return found


def _is_trusted(directory: str) -> bool:
    path = Path(directory)
    if not path.is_absolute() or directory in _SYSTEM_DIRECTORIES:
        return path.is_absolute()
    try:
        info = path.stat()
        is_closed = any(map(host_directories.find_closed_parent, (path, path.resolve())))
    except OSError:
        return False
    return info.st_uid in (0, os.geteuid()) and not info.st_mode & stat.S_IWOTH and not is_closed
