"""The files of a machine as overlayfs keeps them: layers of differences, one on another, over a base."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sandbox.machine import SandboxUnavailable

DEEPEST = 200
"""Directories may be nested so deep; what lies deeper is told of nobody, and not kept."""
_LONGEST_PATH = 3800
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


class Item(NamedTuple):
    """One name of a tree: its path from the tree's root, where it lies, and what `lstat` says of it."""

    path: str
    place: Path
    info: os.stat_result


class Stack:
    """Layers, the top one first, read as the kernel would merge them.

    Nothing is followed: a path that leads over a symbolic link leads nowhere. All layers but the top
    one must be at rest; what vanishes from the top one while it is read is passed over.
    """

    def __init__(self, *layers: Path) -> None:
        self.layers = layers

    def find(self, path: str) -> Item | None:
        """What lies at `path`; None where there is nothing."""
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
            if item is not None and not stat.S_ISDIR(item.info.st_mode):
                break
            if item is not None:
                for child in children(item):
                    if is_whiteout(child.info):
                        gone.add(child.path)
                    elif child.path not in gone:
                        found.setdefault(child.path, child)
                        if not stat.S_ISDIR(child.info.st_mode):
                            gone.add(child.path)
                goes_on = goes_on and not is_opaque(item.place)
            if not goes_on:
                break
        return found

    def below(self, path: str = "") -> Iterator[Item]:
        """Everything below a directory, directories before what they hold, sorted by name."""
        for _, item in sorted(self.listing(path).items()):
            yield item
            if stat.S_ISDIR(item.info.st_mode):
                yield from self.below(item.path)


def _step_down(layer: Path, parts: list[str]) -> tuple[Item | None, bool]:
    """What one layer says of a path, and whether the layers below have a say in it too."""
    place, below = layer, True
    with _absent():
        for part in parts[:-1]:
            place = place / part
            if not stat.S_ISDIR(place.lstat().st_mode):
                return None, False
            below = below and not is_opaque(place)
        place = place / parts[-1] if parts else place
        info = place.lstat()
        if is_whiteout(info):
            return None, False
        return Item("/".join(parts), place, info), below
    return None, below


def children(directory: Item) -> Iterator[Item]:
    """The names that one layer has in a directory, whiteouts among them.

    Raises SandboxUnavailable where directories are nested so deep that no path can name what is in them.
    """
    if directory.path.count("/") >= DEEPEST or len(os.fsencode(directory.place)) > _LONGEST_PATH:
        raise SandboxUnavailable(
            f"{directory.path[:40]}…: nested too deeply for a machine's files to be kept"
        )
    with _absent(), os.scandir(directory.place) as entries:
        for entry in entries:
            path = f"{directory.path}/{entry.name}" if directory.path else entry.name
            with _absent():
                yield Item(path, Path(entry.path), entry.stat(follow_symlinks=False))


def own(layer: Path) -> Iterator[Item]:
    """Everything that one layer has, whiteouts among it, sorted by name."""
    yield from _own(Item("", layer, layer.lstat()))


def _own(directory: Item) -> Iterator[Item]:
    for item in sorted(children(directory)):
        yield item
        if stat.S_ISDIR(item.info.st_mode):
            yield from _own(item)


def require_shallow(path: str, place: Path) -> None:
    """Raises SandboxUnavailable where directories are nested deeper than what they hold can be looked at."""
    if path.count("/") >= DEEPEST or len(os.fsencode(place)) > _LONGEST_PATH:
        raise SandboxUnavailable(f"{path[:40]}…: nested too deeply for a machine's files to be kept")


@contextlib.contextmanager
def _absent() -> Iterator[None]:
    """Pass over what is not there, be it that no path can name it."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise


@contextlib.contextmanager
def opened_up(*places: Path, to_write: bool = False) -> Iterator[None]:
    """Let this user into files and directories of its own whose modes forbid that, for now."""
    closed: list[tuple[Path, int]] = []
    for place in places:
        mode = place.lstat().st_mode
        wanted = os.R_OK | (os.W_OK if to_write else 0) | (os.X_OK if stat.S_ISDIR(mode) else 0)
        if not os.access(place, wanted):
            closed.append((place, stat.S_IMODE(mode)))
    try:
        for place, mode in closed:
            place.chmod(mode | stat.S_IRWXU)
        yield
    finally:
        for place, mode in closed:
            place.chmod(mode)


def is_whiteout(info: os.stat_result) -> bool:
    """Whether the name says that what the layers below have under it is gone."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(directory: Path) -> bool:
    """Whether the directory hides what the layers below have in it."""
    for name in _OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name, follow_symlinks=False) == b"y":
                return True
    return False
