"""Mounted control group hierarchies: the position of a process, and the directories in which it can create groups."""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.sandbox.storage import ownership

CONTROLLERS = ("freezer", "memory", "pids")
GROUP_NAME = re.compile(r"takeover-(\d+-\d+-\d+)-[0-9a-f]+")
"""Of a group: PID namespace, id and start of the process that made it, and a token."""
_UNIFIED = frozenset[str]()
"""Version 2 names no controllers in /proc/PID/cgroup."""


class Position(NamedTuple):
    """The group of a process in one mounted hierarchy."""

    controllers: frozenset[str]
    """Empty for version 2."""
    directory: Path
    top: Path
    """The uppermost group that this mount shows."""


def list_positions(pid: int | None = None) -> list[Position]:
    """The groups of a process, this one by default, in every hierarchy that is mounted here and shows it."""
    text = Path(f"/proc/{pid or 'self'}/cgroup").read_text()
    paths = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        paths[frozenset(names.split(",")) - {""}] = path
    found: dict[frozenset[str], Position] = {}
    for root, point, options in _list_mounts():
        for controllers, path in paths.items():
            if controllers in found or (options is None) != (controllers == _UNIFIED):
                continue
            below = posixpath.relpath(path, root)
            # What lies above the root of a control group namespace has no path that could be compared.
            if not controllers <= (options or _UNIFIED) or ".." in f"{root}/{path}/{below}".split("/"):
                continue
            directory = Path(point) / below
            if directory.is_dir():
                found[controllers] = Position(controllers, directory, Path(point))
    return list(found.values())


@functools.lru_cache(maxsize=1)
def find_parent_groups(pid: int) -> dict[str, Path]:
    """The groups below which this process can make groups, by what these can do."""
    found: dict[str, Path] = {}
    mine = list_positions()
    for controller in CONTROLLERS:
        for position in mine:
            if controller in position.controllers and controller in _probe_controllers(position.directory):
                found[controller] = position.directory
    missing = [controller for controller in CONTROLLERS if controller not in found]
    unified = [position for position in mine if position.controllers == _UNIFIED]
    if missing and unified:
        for controller, directory in _find_unified_parents(unified[0]).items():
            found.setdefault(controller, directory)
    return found


def _find_unified_parents(own_position: Position) -> dict[str, Path]:
    """The same for version 2, in which a group that holds processes cannot have child groups with limits."""
    fallback: dict[str, Path] = {}
    for directory in _list_parent_candidates(own_position):
        # What other processes get does not change: their groups keep no limit unless somebody sets one.
        try_write_control_file(directory / "cgroup.subtree_control", "+memory +pids")
        able = _probe_controllers(directory)
        if {"memory", "pids"} <= able:
            return dict.fromkeys(able, directory)
        fallback = fallback or dict.fromkeys(able, directory)
    return fallback


def _list_parent_candidates(own_position: Position) -> list[Path]:
    """Beside this process's own group, at the top, or below the own one; a memory limit is not left behind."""
    found, left = [], own_position.directory
    while left != own_position.top and not _has_memory_limit(left):
        left = left.parent
        if left in (own_position.directory.parent, own_position.top):
            found.append(left)
    return [*found, own_position.directory]


def _has_memory_limit(directory: Path) -> bool:
    with contextlib.suppress(OSError):
        return (directory / "memory.max").read_text().strip() != "max"
    return False


def _probe_controllers(parent: Path) -> set[str]:
    """Which controllers a group below `parent` has; none if it cannot be made."""
    directory = parent / make_group_name()
    try:
        directory.mkdir()
    except OSError:
        return set()
    try:
        files = {
            "freezer": ("freezer.state", "cgroup.freeze"),
            "memory": ("memory.limit_in_bytes", "memory.max"),
            "pids": ("pids.max",),
        }
        return {name for name, listed in files.items() if any((directory / file).exists() for file in listed)}
    finally:
        directory.rmdir()


def describe_obstacle() -> str:
    """Why no group can be made, of the hierarchy that comes closest."""
    mine = list_positions()
    wanted = [one for one in mine if one.controllers == _UNIFIED or one.controllers.intersection(CONTROLLERS)]
    for position in wanted:
        directory = position.directory / make_group_name()
        try:
            directory.mkdir()
        except OSError as error:
            return f"{position.directory}: {error.strerror}"
        directory.rmdir()
    return "no control group file system is mounted that shows this process"


def make_group_name() -> str:
    return f"{group_name_prefix()}-{secrets.token_hex(4)}"


def group_name_prefix() -> str:
    """Names this process among all of this boot: its namespace, id and start."""
    return "takeover-" + ownership.current_process_identity().partition("/")[2].replace("/", "-")


def _list_mounts() -> Iterator[tuple[str, str, frozenset[str] | None]]:
    """Root, mount point and, for version 1, options of each hierarchy that is mounted here."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = (_unescape(field) for field in fields.split(" ")[3:5])
            yield root, point, frozenset(options.split(",")) if kind == "cgroup" else None


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def write_control_file(file: Path, value: object) -> None:
    """Write to a file of the kernel's, which must exist."""
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, str(value).encode())
    except OSError as error:
        error.filename = str(file)
        raise
    finally:
        os.close(descriptor)


def try_write_control_file(file: Path, value: object) -> bool:
    try:
        write_control_file(file, value)
    except OSError:
        return False
    return True
