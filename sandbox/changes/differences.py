"""The difference between layers and their base, name by name, independent of the order of changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple

from langgraph_takeover.sandbox.changes.layers import LayerEntry, LayerStack, require_shallow, root_entry

DifferenceKind = Literal["file", "link", "directory", "opaque", "fifo", "gone"]
"""`opaque` marks a directory that hides the base's content; `gone` marks a name that only the base has."""


class Difference(NamedTuple):
    """One differing name, or a directory on the path to one."""

    path: str
    kind: DifferenceKind
    item: LayerEntry


def list_differences(layers: tuple[Path, ...], base: LayerStack) -> Iterator[Difference]:
    """Yield the difference of unchanging layers, the top one first; sorted, a directory before its content.

    The layers mark directories like `base`.

    Equal trees give equal differences: a name that was created and removed is left out, and a directory is opaque only
    if the base has something to hide.
    """
    return _merge_layers(
        "", tuple(root_entry(layer, base.opaque_attribute) for layer in layers), base, hidden=False
    )


def _merge_layers(
    path: str, parts: tuple[LayerEntry, ...], base: LayerStack, *, hidden: bool
) -> Iterator[Difference]:
    require_shallow(path)
    named: dict[str, list[LayerEntry]] = {}
    for part in parts:
        for item in part.children():
            named.setdefault(item.path, []).append(item)
    for below in sorted(named, key=os.fsencode):
        first = named[below][0]
        if first.is_directory:
            with ExitStack() as stack:
                for item in takewhile(lambda each: each.is_directory, named[below]):
                    stack.enter_context(item.make_readable())
                found, cut = _list_directory_parts(named[below])
                covers = cut and not hidden and _is_directory(base, below)
                yield Difference(below, "opaque" if covers else "directory", first)
                yield from _merge_layers(below, found, base, hidden=hidden or cut)
        elif first.is_whiteout:
            if not hidden and base.find(below) is not None:
                yield Difference(below, "gone", first)
        elif (kind := _difference_kind(first.info)) is not None:
            yield Difference(below, kind, first)


def _list_directory_parts(items: list[LayerEntry]) -> tuple[tuple[LayerEntry, ...], bool]:
    """Return the layers' parts of one directory, down to one that hides the rest, and whether one does."""
    parts: list[LayerEntry] = []
    for item in items:
        if not item.is_directory:
            return tuple(parts), True
        parts.append(item)
        if item.is_opaque():
            return tuple(parts), True
    return tuple(parts), False


def _is_directory(base: LayerStack, path: str) -> bool:
    found = base.find(path)
    return found is not None and found.is_directory


def _difference_kind(info: os.stat_result) -> DifferenceKind | None:
    """Return the kind; None for sockets and devices, which no archive can store."""
    if stat.S_ISREG(info.st_mode):
        return "file"
    if stat.S_ISLNK(info.st_mode):
        return "link"
    return "fifo" if stat.S_ISFIFO(info.st_mode) else None
