"""Which files changed between two looks at a machine, read off the top layer of its files."""

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

from sandbox.descriptors import open_at, opened
from sandbox.layers import DEEPEST, LONGEST_PATH, Item, Lookup, Stack, is_opaque, is_whiteout
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
LARGEST_HASHED = 128 * 1024**2
"""Maximum size of a file, holes included, whose content is hashed; a larger one is known by its size and time."""
MOST_HASHED = 512 * 1024**2
"""Maximum bytes, holes included, that one report hashes."""
_MOST_FILES = 200_000
"""Maximum number of files that one report hashes."""
LONGEST_LOOK_S = 30.0
"""Maximum duration of a report. Only millions of files take that long."""
_RACY_NS = 20_000_000
_TOO_MANY = (
    "the sandbox has too many files: {:,} were listed in {:.0f} s; lower the limit on its disk (disk_mb), "
    "which bounds their number"
)
_BLOCK = 1024 * 1024
_EXCHANGED = (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR, errno.ENOTDIR)
"""What the kernel says of a file that something else has taken the place of."""
_NO_DIRECTORY = (*_EXCHANGED, errno.ENOENT, errno.EXDEV, errno.EACCES)
"""The same of a directory, or that its mode closes it."""


class State(NamedTuple):
    """What a file is at one moment: the SHA-256 of its content, and its permission bits.

    Without `is_hashed` the digest is that of the size and the time of the last change, as for a very large file.
    """

    sha256: str
    mode: int
    is_hashed: bool = True


class _Seen(NamedTuple):
    signature: tuple[int, ...]
    state: State


class Mount(NamedTuple):
    """Where a part of a machine's tree of files is seen inside."""

    part: str
    inside: str


class _Budget:
    """How much one report may still hash. Counted in bytes and files, not in seconds: equal runs get equal reports."""

    def __init__(self) -> None:
        self._bytes, self._files = MOST_HASHED, _MOST_FILES
        self._linked: dict[tuple[int, ...], str] = {}

    def sha256(self, descriptor: int, info: os.stat_result) -> str | None:
        """The digest of an open file's content; None if it is too much to read. Names of one file count once."""
        inode = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size)
        if info.st_nlink > 1 and inode in self._linked:
            return self._linked[inode]
        if info.st_size > min(LARGEST_HASHED, self._bytes) or not self._files:
            return None
        self._bytes -= info.st_size
        self._files -= 1
        digest, left = hashlib.sha256(), info.st_size
        while left > 0 and (data := os.read(descriptor, min(left, _BLOCK))):
            digest.update(data)
            left -= len(data)  # a file that grows meanwhile is hashed up to the size that it had
        if info.st_nlink > 1:
            self._linked[inode] = digest.hexdigest()
        return digest.hexdigest()


class _Clock:
    """Ends a report that takes too long."""

    def __init__(self) -> None:
        self._end = time.monotonic() + LONGEST_LOOK_S
        self._files = 0

    def count_file(self) -> None:
        """Raises SandboxUnavailable after LONGEST_LOOK_S."""
        if time.monotonic() > self._end:
            raise SandboxUnavailable(_TOO_MANY.format(self._files, LONGEST_LOOK_S))
        self._files += 1


class LayerReport:
    """The difference since the last look, in time proportional to the size of the top layer.

    A file's content is read again when its size, times, inode or mode say that it may have changed. No program inside
    the sandbox is asked. The top layer may be in use meanwhile: it is read through descriptors only.
    """

    def __init__(self, stack: Stack, mounts: tuple[Mount, ...], workspace: str) -> None:
        self._mounts = mounts
        self._workspace = workspace
        self._owed: dict[str, State | None] = {}
        self._lower: dict[tuple[Path, str], State] = {}
        self._later: list[Stack] = []
        self._stand_on(stack)
        self.changes()

    def rest_on(self, stack: Stack) -> None:
        """Go on with other layers that hold the same files, as after a freeze.

        The layers so far must not change any more: what is new in them is looked up when it is asked for.
        """
        self._later.append(stack)

    def changes(self) -> tuple[FileChange, ...]:
        """Changed files since the last call. Raises SandboxUnavailable when the files are gone or are far too many."""
        self._begin()
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
        self._lookup = Lookup(self._below)  # frees the memory
        inside = [(name, before, after) for path, before, after in found if (name := self._inside(path))]
        return report(inside, self._workspace)

    def sha256(self, path: str) -> str | None:
        whole = posixpath.normpath(posixpath.join(self._workspace, path))
        for part, inside in self._mounts:
            if whole.startswith(inside.rstrip("/") + "/"):
                self._begin()
                state = self._state(posixpath.join(part, whole[len(inside.rstrip("/")) + 1 :]))
                return state.sha256 if state else None
        return None

    def _begin(self) -> None:
        self._budget, self._clock = _Budget(), _Clock()

    def _stand_on(self, stack: Stack) -> None:
        self._top, self._below = stack.layers[0], Stack(*stack.layers[1:], opaque=stack.opaque)
        self._lookup = Lookup(self._below)
        self._now: dict[str, _Seen] = {}
        self._covers: frozenset[str] = frozenset()

    def _differences(self) -> Iterator[tuple[str, State | None, State | None]]:
        """Every path that may differ from the last look, before and after; then this look is the last."""
        before_now, before_covers = self._now, self._covers
        try:
            now, covers = self._look()
        except FileNotFoundError as error:
            raise SandboxUnavailable("the sandbox's files are gone") from error
        except OSError as error:
            raise SandboxUnavailable(f"the sandbox's files cannot be read: {error.strerror}") from error
        suspects = {path for path, seen in now.items() if before_now.get(path) != seen}
        suspects |= before_now.keys() - now.keys()
        for path in (covers ^ before_covers) | {p for p in suspects if (p in now) != (p in before_now)}:
            suspects.update(self._files_below(path))
        before = {path: self._state(path) for path in sorted(suspects)}
        self._now, self._covers = now, covers
        for path in before:
            after = self._state(path)
            if before[path] != after:
                yield path, before[path], after

    def _look(self) -> tuple[dict[str, _Seen], frozenset[str]]:
        """What the top layer has, and what it says is gone or hides what lies below."""
        now: dict[str, _Seen] = {}
        covers: set[str] = set()

        def look(directory: int, prefix: str) -> None:
            if prefix and is_opaque(directory, self._below.opaque):
                covers.add(prefix[:-1])
            below, files = [], {}
            with os.scandir(directory) as entries:
                for entry in entries:
                    self._clock.count_file()
                    with contextlib.suppress(FileNotFoundError):
                        info = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(info.st_mode):
                            below.append(entry.name)
                        elif is_whiteout(info):
                            covers.add(prefix + entry.name)
                        elif _is_file(info):
                            files[entry.name] = info
            for name in sorted(files):  # as the budget is spent in this order
                self._clock.count_file()
                with contextlib.suppress(FileNotFoundError):
                    now[prefix + name] = self._seen(prefix + name, directory, files[name])
            if prefix.count("/") > DEEPEST:
                return
            for name in sorted(below):
                if name == UNTOLD or len(os.fsencode(prefix + name)) > LONGEST_PATH:
                    continue
                try:
                    descriptor = open_at(directory, name, os.O_RDONLY | os.O_DIRECTORY)
                except OSError as error:
                    if error.errno not in _NO_DIRECTORY:
                        raise
                    continue
                try:
                    look(descriptor, f"{prefix}{name}/")
                finally:
                    os.close(descriptor)

        with opened(self._top, "") as top:
            look(top, "")
        return now, frozenset(covers)

    def _seen(self, path: str, directory: int, info: os.stat_result) -> _Seen:
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
        mode = stat.S_IMODE(info.st_mode)
        by_size = _by_size(info)
        if known is not None and not known.state.is_hashed and known.state.sha256 == by_size:
            return _Seen(signature, State(by_size, mode, is_hashed=False))
        try:
            content = self._content(posixpath.basename(path), directory, info)
        except PermissionError:
            # Nobody can have read it either: it keeps the digest it had.
            state = self._state(path)
            content = state.sha256 if state else hashlib.sha256(b"").hexdigest()
        return _Seen(signature, State(content or by_size, mode, is_hashed=content is not None))

    def _content(self, name: str, directory: int, info: os.stat_result) -> str | None:
        """The digest of a link's target or a file's content; None if that is too large.

        Raises FileNotFoundError if the path no longer holds a link or a regular file.
        """
        try:
            if stat.S_ISLNK(info.st_mode):
                return _link_sha256(os.readlink(os.fsencode(name), dir_fd=directory))
            descriptor = open_at(directory, name)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise FileNotFoundError(errno.ENOENT, "not a file any more", name)
                return self._budget.sha256(descriptor, found)
            finally:
                os.close(descriptor)
        except PermissionError:
            raise
        except OSError as error:
            if error.errno in _EXCHANGED:
                raise FileNotFoundError(errno.ENOENT, "not a file any more", name) from error
            raise

    def _state(self, path: str) -> State | None:
        """What the file was at the last look."""
        self._clock.count_file()
        seen = self._now.get(path)
        if seen is not None:
            return seen.state
        if path in self._covers or any(p in self._covers or p in self._now for p in _parents(path)):
            return None
        found = self._lookup.find(path)
        if found is None or not _is_file(found.info):
            return None
        key = (found.layer, found.path)
        if key not in self._lower:
            self._lower[key] = self._lower_state(found)
        return self._lower[key]

    def _lower_state(self, found: Item) -> State:
        mode = stat.S_IMODE(found.info.st_mode)
        if stat.S_ISLNK(found.info.st_mode):
            return State(_link_sha256(found.link_target()), mode)
        with found.opened() as descriptor:
            content = self._budget.sha256(descriptor, found.info)
        return State(content or _by_size(found.info), mode, is_hashed=content is not None)

    def _files_below(self, path: str) -> Iterator[str]:
        item = self._lookup.find(path)
        if item is not None and _is_file(item.info):
            yield path
        elif item is not None and posixpath.basename(path) != UNTOLD:
            for each in self._lookup.below(path, pruned=UNTOLD):
                self._clock.count_file()
                if _is_file(each.info):
                    yield each.path

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
                too_large=any(state is not None and not state.is_hashed for state in (before, after)),
                generated=not GENERATED.isdisjoint(path.split("/")),
            )
        )
    return tuple(changes)


def _link_sha256(target: bytes) -> str:
    return hashlib.sha256(b"symlink:" + target).hexdigest()


def _by_size(info: os.stat_result) -> str:
    """What stands for the content of a file that is too large to hash."""
    return hashlib.sha256(b"large:%d:%d" % (info.st_size, info.st_mtime_ns)).hexdigest()


def _is_file(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
