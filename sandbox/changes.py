"""Which files changed between two looks at a machine, read off the top layer of its files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sandbox.layers import DEEPEST, Item, Stack, is_opaque, is_whiteout
from sandbox.machine import FileChange, SandboxUnavailable
from sandbox.shell import shown

GENERATED = frozenset(
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
"""Directories of caches, which tools make by themselves."""
UNTOLD = ".git"
"""What git keeps is no file of the work; a change of it is seen in the files that it brings."""
LARGEST_HASHED = 1024**3
_RACY_NS = 20_000_000


class State(NamedTuple):
    """What a file is at one moment: the SHA-256 of its content, and its permission bits."""

    sha256: str
    mode: int


class _Seen(NamedTuple):
    signature: tuple[int, ...]
    state: State


class Mount(NamedTuple):
    """Where a part of a machine's tree of files is seen inside."""

    part: str
    inside: str


class LayerReport:
    """The difference since the last look, in the time that the top layer's own size takes.

    A file's content is read again when its size, times, inode or mode say that it may have changed.
    Whatever the agent did, and with whatever tool, its own programs are not asked.
    """

    def __init__(self, stack: Stack, mounts: tuple[Mount, ...], workspace: str) -> None:
        self._mounts = mounts
        self._workspace = workspace
        self._owed: dict[str, State | None] = {}
        self._sums: dict[Path, str] = {}
        self._later: list[Stack] = []
        self._stand_on(stack)
        self.changes()

    def rest_on(self, stack: Stack) -> None:
        """Go on with other layers that hold the same files, as after a freeze.

        The layers so far must not change any more: what is new in them is looked up when it is asked for.
        """
        self._later.append(stack)

    def changes(self) -> tuple[FileChange, ...]:
        for stack in self._later:
            for path, before, _ in self._differences():
                self._owed.setdefault(path, before)
            self._stand_on(stack)
        self._later = []
        found = [(path, self._owed.get(path, before), after) for path, before, after in self._differences()]
        told = {path for path, _, _ in found}
        found += [
            (path, before, self._state(path)) for path, before in self._owed.items() if path not in told
        ]
        self._owed = {}
        inside = [(name, before, after) for path, before, after in found if (name := self._inside(path))]
        return report(inside, self._workspace)

    def sha256(self, path: str) -> str | None:
        whole = posixpath.normpath(posixpath.join(self._workspace, path))
        for part, inside in self._mounts:
            if whole.startswith(inside.rstrip("/") + "/"):
                state = self._state(posixpath.join(part, whole[len(inside.rstrip("/")) + 1 :]))
                return state.sha256 if state else None
        return None

    def _stand_on(self, stack: Stack) -> None:
        self._top, self._below = stack.layers[0], Stack(*stack.layers[1:])
        self._now: dict[str, _Seen] = {}
        self._covers: frozenset[str] = frozenset()

    def _differences(self) -> Iterator[tuple[str, State | None, State | None]]:
        """Every path that may differ from the last look, before and after; then this look is the last."""
        before_now, before_covers = self._now, self._covers
        try:
            now, covers = self._look()
        except FileNotFoundError as error:
            raise SandboxUnavailable("the sandbox's files are gone") from error
        suspects = {path for path, seen in now.items() if before_now.get(path) != seen}
        suspects |= before_now.keys() - now.keys()
        for path in (covers ^ before_covers) | {p for p in suspects if (p in now) != (p in before_now)}:
            suspects.update(self._files_below(path))
        before = {path: self._state(path) for path in suspects}
        self._now, self._covers = now, covers
        for path in suspects:
            after = self._state(path)
            if before[path] != after:
                yield path, before[path], after

    def _look(self) -> tuple[dict[str, _Seen], frozenset[str]]:
        """What the top layer has, and what it says is gone or hides what lies below."""
        now: dict[str, _Seen] = {}
        covers: set[str] = set()
        start = len(os.fspath(self._top)) + 1
        for directory, names, files, descriptor in os.fwalk(self._top):
            prefix = f"{directory[start:]}/" if len(directory) > start else ""
            if prefix and is_opaque(Path(directory)):
                covers.add(prefix[:-1])
            # os.fwalk counts a link to a directory among the directories, but does not follow it.
            for name in [*files, *names]:
                with contextlib.suppress(FileNotFoundError):
                    info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if is_whiteout(info):
                        covers.add(prefix + name)
                    elif stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                        now[prefix + name] = self._seen(prefix + name, name, descriptor, info)
            if UNTOLD in names:
                names.remove(UNTOLD)
            if prefix.count("/") > DEEPEST:
                names.clear()
        return now, frozenset(covers)

    def _seen(self, path: str, name: str, descriptor: int, info: os.stat_result) -> _Seen:
        signature: tuple[int, ...] = (
            info.st_size,
            info.st_mtime_ns,
            info.st_ctime_ns,
            info.st_ino,
            info.st_mode,
        )
        known = self._now.get(path)
        if known is not None and known.signature == signature:
            return known
        if time.time_ns() - info.st_ctime_ns < _RACY_NS:
            signature = ()  # it may change once more within the same tick of the clock
        try:
            content = _sha256(name, info, descriptor)
        except PermissionError:
            # Nobody can have read it either: it keeps the digest it had.
            state = self._state(path)
            content = state.sha256 if state else hashlib.sha256(b"").hexdigest()
        return _Seen(signature, State(content, stat.S_IMODE(info.st_mode)))

    def _state(self, path: str) -> State | None:
        """What the file was at the last look."""
        seen = self._now.get(path)
        if seen is not None:
            return seen.state
        if path in self._covers or any(p in self._covers or p in self._now for p in _parents(path)):
            return None
        found = self._below.find(path)
        if found is None or not _is_file(found):
            return None
        if found.place not in self._sums:
            self._sums[found.place] = _sha256(os.fspath(found.place), found.info, None)
        return State(self._sums[found.place], stat.S_IMODE(found.info.st_mode))

    def _files_below(self, path: str) -> Iterator[str]:
        item = self._below.find(path)
        if item is not None and _is_file(item):
            yield path
        elif item is not None and posixpath.basename(path) != UNTOLD:
            for name in self._below.listing(path):
                yield from self._files_below(name)

    def _inside(self, path: str) -> str | None:
        for part, inside in self._mounts:
            if not part or path.startswith(part + "/"):
                return posixpath.join(inside, path[len(part) :].lstrip("/"))
        return None


def report(found: Iterable[tuple[str, State | None, State | None]], workspace: str) -> tuple[FileChange, ...]:
    """What differs, sorted; paths are absolute as seen inside, and told relative to the workspace."""
    prefix = workspace.rstrip("/") + "/"
    different = sorted((path, before, after) for path, before, after in found if before != after)
    different = [line for line in different if UNTOLD not in line[0].split("/")]
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
                path=shown(path.removeprefix(prefix)),
                before=before.sha256 if before else None,
                after=after.sha256 if after else None,
                before_mode=before.mode if before and rechmod else None,
                after_mode=after.mode if after and rechmod else None,
                renamed_from=shown(origins[0].removeprefix(prefix)) if len(origins) == 1 else None,
                generated=not GENERATED.isdisjoint(path.split("/")),
            )
        )
    return tuple(changes)


def _sha256(name: str, info: os.stat_result, descriptor: int | None) -> str:
    if stat.S_ISLNK(info.st_mode):
        target = os.readlink(os.fsencode(name), dir_fd=descriptor)
        return hashlib.sha256(b"symlink:" + target).hexdigest()
    if info.st_size > LARGEST_HASHED:
        return hashlib.sha256(b"large:%d:%d" % (info.st_size, info.st_mtime_ns)).hexdigest()
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=descriptor), "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _is_file(item: Item) -> bool:
    return stat.S_ISREG(item.info.st_mode) or stat.S_ISLNK(item.info.st_mode)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
