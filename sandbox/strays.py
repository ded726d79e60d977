"""What runs left on this host's disk, and what of it no living process can have."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import psutil

from sandbox import depot, local
from sandbox.machine import SandboxUnavailable
from sandbox.removal import below, remove_tree

Kind = Literal["container", "image", "process", "run", "base", "partial", "room", "other"]

Remover = Callable[[], str | None]

_OWNER = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")  # as in `SandboxSpec`
_BASE = re.compile(r"[0-9a-f]{24}")
_ROOM = re.compile(
    r"takeover-(?:squash|image|export)-[a-z0-9_]{8}|\.freezing-[a-z0-9_]{8}|\.importing-[0-9a-f]{16}"
)
_MAPPED = "zstandard"  # a library that whoever makes such a room has in memory
_FIRST_SPACE = 4026531836  # the process namespace that sees all others
_DAY_S = 24 * 3600.0
_IN_USE = "a process has it by now"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was found, and what is to become of it."""

    kind: Kind
    owner: str = ""
    name: str
    """For people; `where` is its path or id."""
    where: str
    bytes: int = 0
    age_s: float = 0.0
    why: str
    """Why it goes, or why it stays."""
    remove: Remover | None = None
    """Removes it, and tells why it could not; None for what stays."""


def runs(owner: str | None = None) -> Iterator[Finding]:
    """Directories and marks of runs, and plain processes of dead ones. Raises SandboxUnavailable."""
    directories, marks = _listed("runs"), _listed("locks")
    alive: set[str] = set()
    for name in sorted({*directories, *marks}):
        if name == depot.BASES or (owner is not None and name != owner):
            continue
        try:
            found = _run(name, directories.get(name), marks.get(name))
        except FileNotFoundError:
            continue  # its run has ended, or another removes it
        if found.remove is None:
            alive.add(name)
        yield found
    home = depot.root() / "runs"
    for process, tmp in local.residents(home):
        name = tmp.relative_to(home).parts[0]
        if name not in alive and owner in (None, name) and is_owner(name):
            yield _process(process, name)


def bases(*, wanted: bool) -> Iterator[Finding]:
    """Unpacked bases, which go only if `wanted`, and those that were never finished."""
    listed = _listed("bases")
    used = bool(listed) and depot.is_held(depot.BASES)
    for path in listed.values():
        with contextlib.suppress(FileNotFoundError):  # it is whole now, or another removes it
            yield _base(path, used, wanted)


def rooms(stores: tuple[Path, ...] = ()) -> Iterator[Finding]:
    """Temporary directories and files of a dead process: in the place for such, and below `stores`."""
    places = [entry for entry in _scan(Path(tempfile.gettempdir())) if _ROOM.fullmatch(entry.name)]
    for store in stores:
        places += [Path(entry.path) for entry in below(store) if _ROOM.fullmatch(entry.name)]
    for path in sorted(places):
        try:
            reason = _may_be_wanted(path)
            if reason is None:
                yield _found(path, "room", "whoever made it is dead", partial(_room_removed, path))
            else:
                yield _found(path, "room", reason)
        except FileNotFoundError:
            continue  # whoever made it has removed it


def _base(path: Path, used: bool, wanted: bool) -> Finding:
    if path.name.startswith(depot.REMOVED):
        return _found(path, "partial", "its removal was cut short", partial(_cleared, path))
    if path.name.endswith(depot.PARTIAL):
        if used:
            return _found(path, "partial", "a living run may be making it")
        return _found(path, "partial", "whoever began it is dead", partial(_base_removed, path))
    if not _BASE.fullmatch(path.name) or not _is_directory(path):
        return _found(path, "other", "not made by this program")
    name = _base_name(path)
    if used:
        return _found(path, "base", f"a living run may stand on it{_processes(depot.BASES)}", name=name)
    if not wanted:
        return _found(path, "base", "the next run starts from it: --bases", name=name)
    return _found(path, "base", "no living run stands on it", partial(_base_removed, path), name=name)


def is_owner(name: str) -> bool:
    """Whether a run can have this name."""
    return _OWNER.fullmatch(name) is not None


def _run(name: str, directory: Path | None, mark: Path | None) -> Finding:
    path = directory or mark
    assert path is not None
    if name.startswith(depot.REMOVED):
        return _found(path, "run", "its removal was cut short", partial(_cleared, path))
    if not is_owner(name) or (directory is not None and not _is_directory(directory)):
        return _found(path, "other", "not made by this program")
    shown = "files and mark" if directory is not None else "mark"
    try:
        held = depot.is_held(name)
    except OSError as error:
        return _found(path, "other", f"its mark, {mark}: {error.strerror}", owner=name)
    if held:
        return _found(path, "run", f"alive{_processes(name)}", owner=name, name=shown)
    return _found(
        path, "run", "no living process has it", partial(_run_removed, name), owner=name, name=shown
    )


def _process(process: psutil.Process, owner: str) -> Finding:
    try:
        command, since = " ".join(process.cmdline()) or process.name(), process.create_time()
    except psutil.Error:
        command, since = "?", time.time()
    return Finding(
        kind="process",
        owner=owner,
        name=command[:80],
        where=str(process.pid),
        age_s=max(0.0, time.time() - since),
        why="its run is dead",
        remove=partial(_residents_ended, owner),
    )


def _residents_ended(owner: str) -> str | None:
    with depot.condemned(owner) as alone:
        if not alone:
            return _IN_USE
        local.end_residents(depot.runs() / owner)
    return None


def _run_removed(owner: str) -> str | None:
    run = depot.runs() / owner
    with depot.condemned(owner) as alone:
        if not alone:
            return _IN_USE
        local.end_residents(run)
        aside = depot.set_aside(run) if run.is_dir() else None
    return _cleared(aside) if aside is not None else None


def _base_removed(path: Path) -> str | None:
    with depot.condemned(depot.BASES) as alone:
        if not alone:
            return _IN_USE
        aside = depot.set_aside(path) if path.is_dir() else None
    return _cleared(aside) if aside is not None else None


def _room_removed(path: Path) -> str | None:
    return _may_be_wanted(path) or _cleared(path)


def _cleared(path: Path) -> str | None:
    if _is_directory(path):
        error = remove_tree(path)
        return None if error is None else f"{error.filename}: {error.strerror}"
    path.unlink(missing_ok=True)
    return None


def _listed(part: str) -> dict[str, Path]:
    return {entry.name: entry for entry in _scan(depot.root() / part)}


def _scan(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        within = directory.is_relative_to(depot.root())
        cure = f"; be its user, or set {depot.PLACE_VARIABLE} to the place to look at" if within else ""
        raise SandboxUnavailable(f"{directory}: {error.strerror}{cure}") from error


def _found(
    path: Path, kind: Kind, why: str, remove: Remover | None = None, *, owner: str = "", name: str = ""
) -> Finding:
    info = path.lstat()
    return Finding(
        kind=kind,
        owner=owner,
        name=name or path.name,
        where=str(path),
        bytes=depot.size(path) if _is_directory(path) else info.st_blocks * 512,
        age_s=max(0.0, time.time() - info.st_mtime),
        why=why,
        remove=remove,
    )


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _base_name(path: Path) -> str:
    try:
        about = json.loads((path / "base.json").read_text())
        return (
            f"{'system' if about['whole'] else 'repository'} {about['digest'].removeprefix('sha256:')[:12]}"
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return path.name


def _processes(owner: str) -> str:
    """Which processes have a run, as far as this one can see."""
    found = depot.holders(owner)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f": process {', '.join(map(str, found[:3]))}{more}" if found else ""


def _may_be_wanted(path: Path) -> str | None:
    """Who may still be at work in a room; None if nobody can be."""
    made = path.lstat().st_mtime  # at the latest
    if path.lstat().st_uid != os.geteuid():
        return "another user's"
    if Path("/proc/self/ns/pid").stat().st_ino != _FIRST_SPACE and time.time() - made < _DAY_S:
        return "not a day old, and its process may be where this one cannot see it"
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.create_time() > made + 1:
                continue
            if _MAPPED in Path(f"/proc/{process.pid}/maps").read_text():
                return f"process {process.pid} may be at work in it"
        except PermissionError:
            continue  # not one of ours, since the room is
        except (OSError, psutil.Error):
            continue  # it has ended
    return None
