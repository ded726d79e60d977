"""The files of a sandbox as overlayfs keeps them: layers of differences over a base, read by descriptors."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from sandbox import descriptors
from sandbox.machine import SandboxUnavailable

DEEPEST = 200
"""Maximum nesting of directories. Reports leave out what lies deeper, and a snapshot refuses it."""
LONGEST_PATH = 3800
"""Maximum bytes of a directory's path, for the same reasons: the kernel takes 4,096 at once."""
USER_OPAQUE = "user.overlay.opaque"
"""The attribute of a directory that hides the layers below, where a user namespace mounts the overlay."""
TRUSTED_OPAQUE = "trusted.overlay.opaque"
"""The same where the host's root mounts it; there, a sandbox can set the user's attribute itself."""


class Item(NamedTuple):
    """One name in one layer: the layer, the path from its root, and the result of `lstat`."""

    path: str
    layer: Path
    info: os.stat_result
    opaque: str = USER_OPAQUE

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.info.st_mode)

    @property
    def is_whiteout(self) -> bool:
        """Whether the name hides what the layers below have under it."""
        return is_whiteout(self.info)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor to read from, even if the mode forbids its owner to read."""
        flags = os.O_RDONLY | (os.O_DIRECTORY if self.is_directory else 0)
        with self.made_readable(), descriptors.opened(self.layer, self.path, flags) as descriptor:
            found = os.fstat(descriptor)
            if stat.S_IFMT(found.st_mode) != stat.S_IFMT(self.info.st_mode):
                raise FileNotFoundError(errno.ENOENT, "changed while it was read", self.path)
            yield descriptor

    def made_readable(self) -> contextlib.AbstractContextManager[None]:
        """Let the owner read while its mode forbids that."""
        return descriptors.made_readable(self.layer, self.path, self.info)

    def link_target(self) -> bytes:
        """The target of a symbolic link."""
        return descriptors.link_target(self.layer, self.path)

    def is_opaque(self) -> bool:
        """Whether the directory hides what the layers below have in it."""
        with (
            contextlib.suppress(PermissionError),
            _absent(),
            descriptors.opened(self.layer, self.path, os.O_RDONLY | os.O_DIRECTORY) as descriptor,
        ):
            return is_opaque(descriptor, self.opaque)
        return False

    def children(self) -> Iterator[Item]:
        """The names that this layer has in the directory, whiteouts among them.

        Raises OSError when the directory is gone, SandboxUnavailable where directories are nested too deeply.
        """
        require_shallow(self.path)
        for name, info in descriptors.entries(self.layer, self.path):
            yield self._replace(path=f"{self.path}/{name}" if self.path else name, info=info)


class Stack:
    """Layers, the top one first, read as the kernel would merge them.

    No symbolic link is followed: a path that leads over one is not found. All layers but the top one must be at rest;
    what vanishes from the top one while it is read is passed over.
    """

    def __init__(self, *layers: Path, opaque: str = USER_OPAQUE) -> None:
        """`opaque` is the attribute by which the layers' overlay marks a directory that hides those below."""
        self.layers = layers
        self.opaque = opaque

    def find(self, path: str) -> Item | None:
        """What lies at `path`; None if nothing."""
        return Lookup(self).find(path)

    def listing(self, path: str) -> dict[str, Item]:
        """The names in a directory; empty where there is none. The root's path is empty."""
        return {name: items[0] for name, items in _merged(Lookup(self).parts(path)).items()}

    def below(self, path: str = "") -> Iterator[Item]:
        """Everything below a directory, directories before what they hold, sorted by name."""
        yield from Lookup(self).below(path)


class Lookup:
    """Finds paths in layers at rest. Remembers directories: looking for all files of one costs little more than one."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._known: dict[str, tuple[Item, ...]] = {}

    def find(self, path: str) -> Item | None:
        """What lies at `path`; None if nothing."""
        parent = path.rpartition("/")[0]
        found = next(_at(self.parts(parent), path), None)
        return None if found is None or found.is_whiteout else found

    def parts(self, path: str) -> tuple[Item, ...]:
        """The layers' parts of a directory, the top one first; none where there is no directory."""
        if not self._known:
            self._known[""] = _uncovered(_roots(self._stack))
        names = path.split("/")
        missing = []
        while path not in self._known:
            missing.append(path)
            names.pop()
            path = "/".join(names)
        for each in reversed(missing):
            parts = itertools.takewhile(lambda item: item.is_directory, _at(self._known[path], each))
            self._known[each] = _uncovered(parts)
            path = each
        return self._known[path]

    def below(self, path: str = "", *, pruned: str | None = None) -> Iterator[Item]:
        """As `Stack.below`, without directories that are named `pruned`."""
        yield from _below(self.parts(path), pruned)


def _roots(stack: Stack) -> Iterator[Item]:
    for layer in stack.layers:
        with _absent():
            yield root(layer, stack.opaque)


def _at(parts: tuple[Item, ...], path: str) -> Iterator[Item]:
    """What parts of its directory have at `path`."""
    for part in parts:
        with _absent():
            yield part._replace(path=path, info=descriptors.status(part.layer, path))


def _uncovered(parts: Iterable[Item]) -> tuple[Item, ...]:
    """Parts of one directory, down to where one hides the rest."""
    found: list[Item] = []
    for part in parts:
        found.append(part)
        if part.is_opaque():
            break
    return tuple(found)


def _merged(parts: tuple[Item, ...]) -> dict[str, list[Item]]:
    """The names in a directory with what they are; of a directory, every layer's part."""
    found: dict[str, list[Item]] = {}
    gone: set[str] = set()
    for part in parts:
        for child in _present(part):
            if child.path in gone:
                continue
            if child.is_directory or not (child.is_whiteout or child.path in found):
                found.setdefault(child.path, []).append(child)
            if not child.is_directory:
                gone.add(child.path)
    return found


def _below(parts: tuple[Item, ...], pruned: str | None) -> Iterator[Item]:
    for path, items in sorted(_merged(parts).items()):
        if not items[0].is_directory:
            yield items[0]
        elif path.rpartition("/")[2] != pruned:
            yield items[0]
            yield from _below(_uncovered(items), pruned)


def root(layer: Path, opaque: str = USER_OPAQUE) -> Item:
    """The top directory of a layer."""
    return Item("", layer, layer.lstat(), opaque)


def own(layer: Path) -> Iterator[Item]:
    """Everything that one layer has, whiteouts among it, sorted by name."""
    yield from _own(root(layer))


def _own(directory: Item) -> Iterator[Item]:
    for item in sorted(_present(directory)):
        yield item
        if item.is_directory:
            yield from _own(item)


def _present(directory: Item) -> list[Item]:
    """The names in a directory; none when it has vanished meanwhile."""
    with _absent():
        return list(directory.children())
    return []


def require_shallow(path: str) -> None:
    """Raises SandboxUnavailable where directories are nested too deeply to be kept."""
    if path.count("/") >= DEEPEST or len(os.fsencode(path)) > LONGEST_PATH:
        raise SandboxUnavailable(
            f"{path[:40]}…: nested too deeply for a snapshot (maximum {DEEPEST} directories)"
        )


@contextlib.contextmanager
def _absent() -> Iterator[None]:
    """Pass over what does not exist, or what a symbolic link or a long name makes unreachable."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise


def is_whiteout(info: os.stat_result) -> bool:
    """Whether the name hides what the layers below have under it."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(directory: int, attribute: str) -> bool:
    """Whether an open directory hides what the layers below have in it."""
    with contextlib.suppress(OSError):
        return os.getxattr(directory, attribute) == b"y"
    return False
