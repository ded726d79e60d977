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

from langgraph_takeover.sandbox import untrusted_trees
from langgraph_takeover.sandbox.interface import SandboxUnavailableError

MAX_DEPTH = 200
"""Maximum nesting of directories. Reports leave out what lies deeper, and a snapshot refuses it."""
MAX_PATH_BYTES = 3800
"""Maximum bytes of a directory's path, for the same reasons: the kernel takes 4,096 at once."""
USER_OPAQUE = "user.overlay.opaque"
"""The attribute of a directory that hides the layers below, where a user namespace mounts the overlay."""
TRUSTED_OPAQUE = "trusted.overlay.opaque"
"""The same attribute if the host's root mounts it; there, a sandbox can set the user's attribute itself."""


class LayerEntry(NamedTuple):
    """One name in one layer: the layer, the path from its root, and the result of `lstat`."""

    path: str
    layer: Path
    info: os.stat_result
    opaque_attribute: str = USER_OPAQUE

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.info.st_mode)

    @property
    def mode(self) -> int:
        """The permissions that a snapshot gives it."""
        return stat.S_IMODE(self.info.st_mode)

    @property
    def is_whiteout(self) -> bool:
        """Whether the name hides what the layers below have there."""
        return is_whiteout(self.info)

    @contextlib.contextmanager
    def open_descriptor(self) -> Iterator[int]:
        """A descriptor to read from, even if the mode forbids its owner to read."""
        flags = os.O_RDONLY | (os.O_DIRECTORY if self.is_directory else 0)
        with self.make_readable(), untrusted_trees.open_safely(self.layer, self.path, flags) as descriptor:
            found = os.fstat(descriptor)
            if stat.S_IFMT(found.st_mode) != stat.S_IFMT(self.info.st_mode):
                raise FileNotFoundError(errno.ENOENT, "changed while it was read", self.path)
            yield descriptor

    def make_readable(self) -> contextlib.AbstractContextManager[None]:
        """Let the owner read, while the mode forbids it."""
        return untrusted_trees.make_readable(self.layer, self.path, self.info)

    def link_target(self) -> bytes:
        """The target of a symbolic link."""
        return untrusted_trees.read_link_target(self.layer, self.path)

    def is_opaque(self) -> bool:
        """Whether the directory hides what the layers below have in it."""
        with (
            contextlib.suppress(PermissionError),
            _ignore_missing(),
            untrusted_trees.open_safely(self.layer, self.path, os.O_RDONLY | os.O_DIRECTORY) as descriptor,
        ):
            return is_opaque(descriptor, self.opaque_attribute)
        return False

    def children(self) -> Iterator[LayerEntry]:
        """List the names that this layer has in the directory, including whiteouts.

        Raises OSError if the directory is gone, SandboxUnavailableError if directories are nested too deeply.
        """
        require_shallow(self.path)
        for name, info in untrusted_trees.list_entries(self.layer, self.path):
            yield self._replace(path=f"{self.path}/{name}" if self.path else name, info=info)


class LayerStack:
    """Layers, the top one first, read as the kernel would merge them.

    No symbolic link is followed: a path through one is not found. All layers except the top one must not change; names
    that disappear from the top one meanwhile are skipped.
    """

    def __init__(self, *layers: Path, opaque_attribute: str = USER_OPAQUE) -> None:
        """`opaque_attribute` is the extended attribute by which the layers' overlay marks a directory that hides those below."""
        self.layers = layers
        self.opaque_attribute = opaque_attribute

    def find(self, path: str) -> LayerEntry | None:
        """Return the entry at `path`; None if not found."""
        return LayerLookup(self).find(path)

    def listing(self, path: str) -> dict[str, LayerEntry]:
        """List the names in a directory; empty if it does not exist. The root's path is empty."""
        return {name: items[0] for name, items in _merge_parts(LayerLookup(self).parts(path)).items()}

    def walk(self, path: str = "") -> Iterator[LayerEntry]:
        """Yield everything below a directory, directories before their content, sorted by name."""
        yield from LayerLookup(self).walk(path)


class LayerLookup:
    """Finds paths in unchanging layers. Remembers directories: finding all files of one costs little more than one."""

    def __init__(self, stack: LayerStack) -> None:
        self._stack = stack
        self._known: dict[str, tuple[LayerEntry, ...]] = {}

    def find(self, path: str) -> LayerEntry | None:
        """Return the entry at `path`; None if not found."""
        parent = path.rpartition("/")[0]
        found = next(_find_entries(self.parts(parent), path), None)
        return None if found is None or found.is_whiteout else found

    def parts(self, path: str) -> tuple[LayerEntry, ...]:
        """Return the layers' parts of a directory, the top one first; empty if it does not exist."""
        if not self._known:
            self._known[""] = _take_visible_parts(_list_roots(self._stack))
        names = path.split("/")
        missing = []
        while path not in self._known:
            missing.append(path)
            names.pop()
            path = "/".join(names)
        for each in reversed(missing):
            parts = itertools.takewhile(
                lambda item: item.is_directory, _find_entries(self._known[path], each)
            )
            self._known[each] = _take_visible_parts(parts)
            path = each
        return self._known[path]

    def walk(self, path: str = "", *, pruned_name: str | None = None) -> Iterator[LayerEntry]:
        """Like `LayerStack.below`, without directories of the name `pruned_name`."""
        yield from _walk(self.parts(path), pruned_name)


def _list_roots(stack: LayerStack) -> Iterator[LayerEntry]:
    for layer in stack.layers:
        with _ignore_missing():
            yield root_entry(layer, stack.opaque_attribute)


def _find_entries(parts: tuple[LayerEntry, ...], path: str) -> Iterator[LayerEntry]:
    """Find the entry at `path` in parts of its directory."""
    for part in parts:
        with _ignore_missing():
            yield part._replace(path=path, info=untrusted_trees.read_status(part.layer, path))


def _take_visible_parts(parts: Iterable[LayerEntry]) -> tuple[LayerEntry, ...]:
    """Return the parts of one directory, down to one that hides the rest."""
    found: list[LayerEntry] = []
    for part in parts:
        found.append(part)
        if part.is_opaque():
            break
    return tuple(found)


def _merge_parts(parts: tuple[LayerEntry, ...]) -> dict[str, list[LayerEntry]]:
    """List the names in a directory with their entries; for a directory, every layer's part."""
    found: dict[str, list[LayerEntry]] = {}
    gone: set[str] = set()
    for part in parts:
        for child in _list_children(part):
            if child.path in gone:
                continue
            if child.is_directory or not (child.is_whiteout or child.path in found):
                found.setdefault(child.path, []).append(child)
            if not child.is_directory:
                gone.add(child.path)
    return found


def _walk(parts: tuple[LayerEntry, ...], pruned_name: str | None) -> Iterator[LayerEntry]:
    for path, items in sorted(_merge_parts(parts).items()):
        if not items[0].is_directory:
            yield items[0]
        elif path.rpartition("/")[2] != pruned_name:
            yield items[0]
            yield from _walk(_take_visible_parts(items), pruned_name)


def root_entry(layer: Path, opaque_attribute: str = USER_OPAQUE) -> LayerEntry:
    """The top directory of a layer."""
    return LayerEntry("", layer, layer.lstat(), opaque_attribute)


def walk_layer(layer: Path) -> Iterator[LayerEntry]:
    """Yield everything that one layer has, including whiteouts, sorted by name."""
    yield from _walk_layer(root_entry(layer))


def _walk_layer(directory: LayerEntry) -> Iterator[LayerEntry]:
    for item in sorted(_list_children(directory)):
        yield item
        if item.is_directory:
            yield from _walk_layer(item)


def _list_children(directory: LayerEntry) -> list[LayerEntry]:
    """List the names in a directory; empty if it has disappeared meanwhile."""
    with _ignore_missing():
        return list(directory.children())
    return []


def require_shallow(path: str) -> None:
    """Raise SandboxUnavailableError if directories are nested too deeply for a snapshot."""
    if is_too_deep(path):
        raise SandboxUnavailableError(
            f"{path[:40]}…: nested too deeply for a snapshot (maximum {MAX_DEPTH} directories)"
        )


def is_too_deep(path: str) -> bool:
    """Whether a directory is nested too deeply for a snapshot."""
    return path.count("/") >= MAX_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES


@contextlib.contextmanager
def _ignore_missing() -> Iterator[None]:
    """Ignore what does not exist, or what a symbolic link or a long name makes unreachable."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise


def is_whiteout(info: os.stat_result) -> bool:
    """Whether the name hides what the layers below have there."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(directory: int, attribute: str) -> bool:
    """Whether an open directory hides what the layers below have in it."""
    with contextlib.suppress(OSError):
        return os.getxattr(directory, attribute) == b"y"
    return False
