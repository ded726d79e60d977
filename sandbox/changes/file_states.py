"""Files at one moment: hashed within limits, and compared with an earlier moment."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import NamedTuple

from langgraph_takeover.sandbox.interface import FileChange
from langgraph_takeover.sandbox.shell.session import escape_non_utf8

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
