"""Directories that an agent could write to: looked through and removed, however deep or locked they are."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def below(path: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a directory, however deep, that can be looked at."""
    waiting = [str(path)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def remove_tree(root: Path) -> OSError | None:
    """Remove a directory that an agent could write to; the first reason why something of it is still there.

    It may be deeper than any path is long, so what lies in a directory is first moved up.
    """
    errors: list[OSError] = []
    with _noted(errors):
        top = _entered(root)
        try:
            waiting = _without_files(top, errors)
            while waiting:
                with _noted(errors):
                    waiting += _flattened(waiting.pop(), top, errors)
        finally:
            os.close(top)
        root.rmdir()
    return next((error for error in errors if not isinstance(error, FileNotFoundError)), None)


def _flattened(name: str, top: int, errors: list[OSError]) -> list[str]:
    """Remove a directory of `top`; what its own directories, which may be anything, are called in `top` now."""
    moved = []
    inner = _entered(name, top)
    try:
        for child in _without_files(inner, errors):
            with _noted(errors):
                aside = f".{secrets.token_hex(8)}"
                os.chmod(child, 0o700, dir_fd=inner)
                os.rename(child, aside, src_dir_fd=inner, dst_dir_fd=top)
                moved.append(aside)
    finally:
        os.close(inner)
    with _noted(errors):
        os.rmdir(name, dir_fd=top)
    return moved


def _entered(name: str | Path, parent: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(PermissionError):
        return os.open(name, flags, dir_fd=parent)
    os.chmod(name, 0o700, dir_fd=parent)  # an agent took away its own right to look into it
    return os.open(name, flags, dir_fd=parent)


def _without_files(directory: int, errors: list[OSError]) -> list[str]:
    """Remove all that is no directory; the names of those that are."""
    with _noted(errors):
        os.fchmod(directory, 0o700)
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if not is_directory:
            with _noted(errors):
                os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in found if is_directory]


@contextlib.contextmanager
def _noted(errors: list[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        errors.append(error)
