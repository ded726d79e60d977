"""The files of a sandbox as overlayfs keeps them: layers of differences over a base, read by descriptors."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sandbox import descriptors
from sandbox.machine import SandboxUnavailable

DEEPEST = 200
"""Maximum nesting of directories. Reports leave out what lies deeper, and a snapshot refuses it."""
_LONGEST_PATH = 3800
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


class Item(NamedTuple):
    """One name in one layer: the layer, the path from its root, and the result of `lstat`."""

    path: str
    layer: Path
    info: os.stat_result

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
        try:
            with descriptors.opened(self.layer, self.path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
                return is_opaque(descriptor)
        except PermissionError:
            return False

    def children(self) -> Iterator[Item]:
        """The names that this layer has in the directory, whiteouts among them.

        Raises OSError when the directory is gone, SandboxUnavailable where directories are nested too deeply.
        """
        require_shallow(self.path)
        for name, info in descriptors.entries(self.layer, self.path):
            yield Item(f"{self.path}/{name}" if self.path else name, self.layer, info)


class Stack:
    """Layers, the top one first, read as the kernel would merge them.

    No symbolic link is followed: a path that leads over one is not found. All layers but the top one must be at rest;
    what vanishes from the top one while it is read is passed over.
    """

    def __init__(self, *layers: Path) -> None:
        self.layers = layers

    def find(self, path: str) -> Item | None:
        """What lies at `path`; None if nothing."""
        parts = path.split("/")
        for layer in self.layers:
            item, goes_on = _step_down(layer, parts)
            if item is not None or not goes_on:
                return item
        return None

    def listing(self, path: str) -> dict[str, Item]:
        """The names in a directory; empty where there is none. The root's path is empty."""
        found: dict[str, Item] = {}
        gone: set[str] = set()
        parts = path.split("/") if path else []
        for layer in self.layers:
            item, goes_on = _step_down(layer, parts)
            if item is not None and not item.is_directory:
                break
            if item is not None:
                for child in _present(item):
                    if child.is_whiteout:
                        gone.add(child.path)
                    elif child.path not in gone:
                        found.setdefault(child.path, child)
                        if not child.is_directory:
                            gone.add(child.path)
                goes_on = goes_on and not item.is_opaque()
            if not goes_on:
                break
        return found

    def below(self, path: str = "") -> Iterator[Item]:
        """Everything below a directory, directories before what they hold, sorted by name."""
        for _, item in sorted(self.listing(path).items()):
            yield item
            if item.is_directory:
                yield from self.below(item.path)


def root(layer: Path) -> Item:
    """The top directory of a layer."""
    return Item("", layer, layer.lstat())


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


def _step_down(layer: Path, parts: list[str]) -> tuple[Item | None, bool]:
    """What one layer says of a path, and whether the layers below have a say in it too."""
    below = True
    with _absent():
        for end in range(1, len(parts)):
            parent = Item("/".join(parts[:end]), layer, descriptors.status(layer, "/".join(parts[:end])))
            if not parent.is_directory:
                return None, False
            below = below and not parent.is_opaque()
        item = Item("/".join(parts), layer, descriptors.status(layer, "/".join(parts)))
        return (None, False) if item.is_whiteout else (item, below)
    return None, below


def require_shallow(path: str) -> None:
    """Raises SandboxUnavailable where directories are nested too deeply to be kept."""
    if path.count("/") >= DEEPEST or len(os.fsencode(path)) > _LONGEST_PATH:
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


def is_opaque(directory: int) -> bool:
    """Whether an open directory hides what the layers below have in it."""
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name) == b"y":
                return True
    return False
