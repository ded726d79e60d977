"""What some layers come to over a base, name by name, whatever the order of deeds that led there."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple

from sandbox.layers import Stack, is_opaque, is_whiteout, opened_up, require_shallow

Kind = Literal["file", "link", "directory", "opaque", "fifo", "gone"]
"""`opaque` is a directory that hides what the base has in it; `gone` a name that only the base has."""


class Difference(NamedTuple):
    """One name that differs, or a directory on the way to one."""

    path: str
    kind: Kind
    place: Path
    info: os.stat_result


def differences(layers: tuple[Path, ...], base: Stack) -> Iterator[Difference]:
    """What layers at rest, the top one first, come to; sorted, a directory before what it holds.

    Equal trees give equal differences: a name that was made and removed again is not told, and a
    directory is opaque only where the base has something to hide.
    """
    return _merged("", layers, base, hidden=False)


def _merged(path: str, places: tuple[Path, ...], base: Stack, *, hidden: bool) -> Iterator[Difference]:
    named: dict[str, list[tuple[Path, os.stat_result]]] = {}
    for place in places:
        require_shallow(path, place)
        with os.scandir(place) as entries:
            for entry in entries:
                found = (Path(entry.path), entry.stat(follow_symlinks=False))
                named.setdefault(entry.name, []).append(found)
    for name in sorted(named, key=os.fsencode):
        below = f"{path}/{name}" if path else name
        place, info = named[name][0]
        if stat.S_ISDIR(info.st_mode):
            with opened_up(*_directories_first(named[name])):
                parts, cut = _directories(named[name])
                covers = cut and not hidden and _is_directory(base, below)
                yield Difference(below, "opaque" if covers else "directory", place, info)
                yield from _merged(below, parts, base, hidden=hidden or cut)
        elif is_whiteout(info):
            if not hidden and base.find(below) is not None:
                yield Difference(below, "gone", place, info)
        elif (kind := _kind(info)) is not None:
            yield Difference(below, kind, place, info)


def _directories_first(found: list[tuple[Path, os.stat_result]]) -> Iterator[Path]:
    yield from (place for place, info in takewhile(lambda one: stat.S_ISDIR(one[1].st_mode), found))


def _directories(found: list[tuple[Path, os.stat_result]]) -> tuple[tuple[Path, ...], bool]:
    """The layers' parts of one directory, down to where one hides the rest; and whether one does."""
    parts: list[Path] = []
    for place, info in found:
        if not stat.S_ISDIR(info.st_mode):
            return tuple(parts), True
        parts.append(place)
        if is_opaque(place):
            return tuple(parts), True
    return tuple(parts), False


def _is_directory(base: Stack, path: str) -> bool:
    found = base.find(path)
    return found is not None and stat.S_ISDIR(found.info.st_mode)


def _kind(info: os.stat_result) -> Kind | None:
    """None for sockets and devices, which no archive can keep."""
    if stat.S_ISREG(info.st_mode):
        return "file"
    if stat.S_ISLNK(info.st_mode):
        return "link"
    return "fifo" if stat.S_ISFIFO(info.st_mode) else None
