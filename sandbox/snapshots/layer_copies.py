"""Layers made of layers: a copy of what has changed in one, and several merged into one."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.changes.layers import USER_OPAQUE, LayerEntry, root_entry
from langgraph_takeover.sandbox.changes.saved_files import (
    WHITEOUT,
    FileSignature,
    LayerSignatures,
    sign_entry,
)
from langgraph_takeover.sandbox.snapshots.archive_format import copy_content
from langgraph_takeover.sandbox.snapshots.differences import list_directory_parts
from langgraph_takeover.sandbox.untrusted_trees import (
    make_readable,
    open_safely,
    read_link_target,
    read_status,
)

_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_")
_OVERLAY_ATTRIBUTES = "user.overlay."
_PARTIAL_MODE = 0o700


class LayerChanges(NamedTuple):
    """What a layer has that differs from its earlier signatures, as names of a layer above the earlier ones."""

    entries: LayerSignatures
    """The changed names, and the directories on the way to them; sorted, a directory before its content."""
    whole: frozenset[str]
    """The directories among them that hide what the layers below have in them."""

    @property
    def size(self) -> int:
        """The bytes of the changed files, holes included."""
        return sum(each.size for each in self.entries.values() if stat.S_ISREG(each.mode))


def find_changes(before: LayerSignatures, now: LayerSignatures) -> LayerChanges:
    """Find what must be copied so that the earlier copies and this one together have the same files as the layer.

    `before` has the signatures at the time of the last copy, or is empty for a copy of everything.
    """
    whole = {
        path
        for path, each in now.items()
        if each.is_opaque and not (path in before and before[path].is_opaque)
    }
    changed = {
        path: each
        for path, each in now.items()
        if before.get(path) != each or (whole and not whole.isdisjoint(_list_parents(path)))
    }
    for path in before.keys() - now.keys():
        parent = path.rpartition("/")[0]
        if not parent or (parent in now and now[parent].is_directory):
            changed[path] = WHITEOUT
    for parent in {parent for path in changed for parent in _list_parents(path)}:
        changed[parent] = now[parent]
    return LayerChanges(dict(sorted(changed.items())), frozenset(whole))


def _list_parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def copy_changes(layer: Path, changes: LayerChanges, target: Path) -> None:
    """Copy changes of a layer to `target`, an empty directory that nobody else uses.

    Nothing may write to the layer meanwhile. Raises OSError: FileNotFoundError if something did.
    """
    links: dict[int, Path] = {}
    for path, each in changes.entries.items():
        copy = target / path
        if each == WHITEOUT:
            os.mknod(copy, stat.S_IFCHR, 0)
        elif each.is_directory:
            copy.mkdir(_PARTIAL_MODE)
        elif each.links > 1 and each.inode in links:
            os.link(links[each.inode], copy, follow_symlinks=False)
        else:
            links[each.inode] = copy
            _copy_entry(layer, path, each, copy)
    # The content of a directory changes its times.
    for path, each in reversed(changes.entries.items()):
        if each.is_directory:
            _copy_directory_attributes(layer, path, each, target / path, is_whole=path in changes.whole)


def _copy_entry(layer: Path, path: str, signature: FileSignature, copy: Path) -> None:
    if stat.S_ISREG(signature.mode):
        with (
            make_readable(layer, path, read_status(layer, path)),
            open_safely(layer, path) as source,
            copy.open("xb") as out,
        ):
            copy_content(source, out)
            out.flush()
            _copy_attributes(source, out.fileno())
    elif stat.S_ISLNK(signature.mode):
        copy.symlink_to(os.fsdecode(read_link_target(layer, path)))
    else:
        os.mknod(copy, stat.S_IFMT(signature.mode) | 0o600)
    _set_owner_and_times(copy, signature)


def _copy_directory_attributes(
    layer: Path, path: str, signature: FileSignature, copy: Path, *, is_whole: bool
) -> None:
    with (
        make_readable(layer, path, read_status(layer, path)),
        open_safely(layer, path, os.O_RDONLY | os.O_DIRECTORY) as source,
        open_safely(copy, "") as out,
    ):
        _copy_attributes(source, out)
        if is_whole:
            os.setxattr(out, USER_OPAQUE, b"y")
    _set_owner_and_times(copy, signature)


def merge_layers(layers: tuple[Path, ...], target: Path) -> None:
    """Make `target`, an empty directory, a layer that hides and shows the same as these, the top one first.

    It shares the files of these layers, which must never change again.
    """
    _merge_parts(tuple(map(root_entry, layers)), target)


def _merge_parts(parts: tuple[LayerEntry, ...], target: Path) -> None:
    named: dict[str, list[LayerEntry]] = {}
    for part in parts:
        for each in part.children():
            named.setdefault(each.path, []).append(each)
    for path, entries in named.items():
        first, copy = entries[0], target / path.rpartition("/")[2]
        if first.is_directory:
            _merge_directory(entries, copy)
        elif first.is_whiteout:
            os.mknod(copy, stat.S_IFCHR, 0)
        else:
            os.link(first.layer / path, copy, follow_symlinks=False)


def _merge_directory(entries: list[LayerEntry], target: Path) -> None:
    with contextlib.ExitStack() as stack:
        for each in takewhile(lambda each: each.is_directory, entries):
            stack.enter_context(each.make_readable())
        parts, is_whole = list_directory_parts(entries)
        target.mkdir(_PARTIAL_MODE)
        _merge_parts(parts, target)
    signature = sign_entry(entries[0].info)
    _copy_directory_attributes(entries[0].layer, entries[0].path, signature, target, is_whole=is_whole)


def _copy_attributes(source: int, copy: int) -> None:
    for name in os.listxattr(source):
        if name.startswith(_KEPT_ATTRIBUTES) and not name.startswith(_OVERLAY_ATTRIBUTES):
            with contextlib.suppress(OSError):  # what the file system does not keep, no layer has
                os.setxattr(copy, name, os.getxattr(source, name))


def _set_owner_and_times(copy: Path, signature: FileSignature) -> None:
    if os.geteuid() == 0:
        os.chown(copy, signature.uid, signature.gid, follow_symlinks=False)
    if not stat.S_ISLNK(signature.mode):
        copy.chmod(stat.S_IMODE(signature.mode))  # after the owner, whose change removes bits
    os.utime(copy, ns=(signature.mtime_ns, signature.mtime_ns), follow_symlinks=False)
