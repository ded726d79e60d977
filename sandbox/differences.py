"""The difference of some layers from a base, name by name; it does not depend on the order of the changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple

from sandbox.layers import Item, Stack, require_shallow, root

Kind = Literal["file", "link", "directory", "opaque", "fifo", "gone"]
"""`opaque` is a directory that hides what the base has in it; `gone` a name that only the base has."""


class Difference(NamedTuple):
    """One name that differs, or a directory on the way to one."""

    path: str
    kind: Kind
    item: Item


def differences(layers: tuple[Path, ...], base: Stack) -> Iterator[Difference]:
    """The difference of layers at rest, the top one first; sorted, a directory before what it holds.

    The layers mark directories as `base` does.

    Equal trees give equal differences: a name that was made and removed again is left out, and a directory is opaque
    only where the base has something to hide.
    """
    return _merged("", tuple(root(layer, base.opaque) for layer in layers), base, hidden=False)


def _merged(path: str, parts: tuple[Item, ...], base: Stack, *, hidden: bool) -> Iterator[Difference]:
    require_shallow(path)
    named: dict[str, list[Item]] = {}
    for part in parts:
        for item in part.children():
            named.setdefault(item.path, []).append(item)
    for below in sorted(named, key=os.fsencode):
        first = named[below][0]
        if first.is_directory:
            with ExitStack() as stack:
                for item in takewhile(lambda each: each.is_directory, named[below]):
                    stack.enter_context(item.made_readable())
                found, cut = _directories(named[below])
                covers = cut and not hidden and _is_directory(base, below)
                yield Difference(below, "opaque" if covers else "directory", first)
                yield from _merged(below, found, base, hidden=hidden or cut)
        elif first.is_whiteout:
            if not hidden and base.find(below) is not None:
                yield Difference(below, "gone", first)
        elif (kind := _kind(first.info)) is not None:
            yield Difference(below, kind, first)


def _directories(found: list[Item]) -> tuple[tuple[Item, ...], bool]:
    """The layers' parts of one directory, down to where one hides the rest; and whether one does."""
    parts: list[Item] = []
    for item in found:
        if not item.is_directory:
            return tuple(parts), True
        parts.append(item)
        if item.is_opaque():
            return tuple(parts), True
    return tuple(parts), False


def _is_directory(base: Stack, path: str) -> bool:
    found = base.find(path)
    return found is not None and found.is_directory


def _kind(info: os.stat_result) -> Kind | None:
    """None for sockets and devices, which no archive can keep."""
    if stat.S_ISREG(info.st_mode):
        return "file"
    if stat.S_ISLNK(info.st_mode):
        return "link"
    return "fifo" if stat.S_ISFIFO(info.st_mode) else None
