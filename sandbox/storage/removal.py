"""Directory trees that others change meanwhile: listed, measured and removed, however deep or locked they are."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from langgraph_takeover.sandbox.storage import safe_open

REMOVED_PREFIX = ".removed-"
"""Prefix of a directory that is being removed."""


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The relative path of everything below a directory that can be read; symbolic links are not followed."""
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        with contextlib.suppress(OSError):
            for name, info in safe_open.list_entries(root, directory):
                path = f"{directory}/{name}" if directory else name
                yield path, info
                if stat.S_ISDIR(info.st_mode):
                    waiting.append(path)


def list_matches(directory: Path, pattern: str) -> list[Path]:
    """The sorted paths below a directory that match; as `Path.glob`, which fails when a directory vanishes meanwhile."""
    found = glob.glob(pattern, root_dir=directory, include_hidden=True)  # noqa: PTH207
    return sorted(directory / path for path in found)


def list_directory(directory: Path) -> list[Path]:
    """The sorted entries of a directory; empty if it does not exist."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def is_directory(path: Path) -> bool:
    """Whether the path is a directory and not a symbolic link to one."""
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def disk_usage(root: Path) -> int:
    """Bytes on disk of the files below a directory."""
    return sum(info.st_blocks * 512 for _, info in walk(root) if not stat.S_ISDIR(info.st_mode))


def set_aside(path: Path) -> Path:
    """Rename a directory in one step, so that no process sees a part of it or waits for its removal; return its new path."""
    aside = path.with_name(f"{REMOVED_PREFIX}{secrets.token_hex(8)}")
    path.rename(aside)
    return aside


def remove_tree(root: Path) -> OSError | None:
    """Remove a file, a link or a directory tree; the error if something of it remains."""
    if not is_directory(root):
        try:
            root.unlink(missing_ok=True)  # a link itself, never its target
        except OSError as error:
            return error
        return None
    if os.geteuid() != 0:
        # An agent may have taken away its own right to look into a directory.
        subprocess.run(["chmod", "-R", "u+rwX", "--", root], capture_output=True)
    done = subprocess.run(["rm", "-rf", "--one-file-system", "--", root], capture_output=True, text=True)
    return OSError(done.stderr.strip().partition("\n")[0]) if done.returncode else None


@contextlib.contextmanager
def remove_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remove_tree(path)
        raise
