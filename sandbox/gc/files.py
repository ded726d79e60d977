"""Garbage collection on this host: runs and their processes, unpacked bases, temporary directories."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from langgraph_takeover.sandbox.backends import processes
from langgraph_takeover.sandbox.gc.resources import CollectionRequest, Resource, ResourceKind
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.storage import host_directories, ownership
from langgraph_takeover.sandbox.storage.ownership import BASES_LOCK
from langgraph_takeover.sandbox.storage.removal import (
    REMOVED_PREFIX,
    disk_usage,
    is_directory,
    list_directory,
    remove_tree,
    set_aside,
    walk,
)

_BASE_NAME = re.compile(r"[0-9a-f]{24}")
_TEMPORARY_NAME = re.compile(
    r"takeover-(?:squash|image|export|check)-[a-z0-9_]{8}|\.freezing-[a-z0-9_]{8}|\.importing-[0-9a-f]{16}"
)
_MARKER_LIBRARY = "zstandard"  # a library that creates temporary directories
_FIRST_NAMESPACE = 4026531836  # the process namespace that sees all others
_DAY_S = 24 * 3600.0


def list_stored_resources(request: CollectionRequest) -> Iterator[Resource]:
    """Runs, plain processes of dead runs, and bases. Raises SandboxUnavailableError."""
    yield from _list_runs(request.owner)
    if request.owner is None:
        is_used = ownership.is_held(BASES_LOCK) is not False
        for path in _list_directory(host_directories.root() / "bases"):
            with contextlib.suppress(FileNotFoundError):  # it is complete now, or another removes it
                yield _make_base_resource(path, is_used, request.include_bases)


def list_temporary_resources(request: CollectionRequest) -> Iterator[Resource]:
    """Temporary directories and files: in the system's place for them, and below `request.stores`."""
    if request.owner is not None:
        return
    paths = [*_list_directory(Path(tempfile.gettempdir()))]
    paths += [store / path for store in request.stores for path, _ in walk(store)]
    for path in sorted(path for path in paths if _TEMPORARY_NAME.fullmatch(path.name)):
        with contextlib.suppress(FileNotFoundError):  # its maker has removed it
            use = _describe_temporary_use(path)
            yield _make_resource(
                path, "temporary", use or "the process that made it is dead", is_stale=use is None
            )


def remove_stale(resource: Resource) -> str | None:
    """Remove one, unless a living process needs it now; return the reason if it remains."""
    path = Path(resource.location)
    if resource.kind == "temporary":
        with contextlib.suppress(FileNotFoundError):  # another collector has removed it
            if (use := _describe_temporary_use(path)) is not None:
                return use
    elif not path.name.startswith(REMOVED_PREFIX):
        with ownership.claim(resource.owner or BASES_LOCK) as is_alone:
            if not is_alone:
                return "a process holds it now"
            if resource.owner:
                path = host_directories.runs_directory() / resource.owner
                processes.kill_run_processes(path)
            if resource.kind == "process":
                return None
            try:
                path = set_aside(path)
            except FileNotFoundError:
                return None
    error = remove_tree(path)
    return None if error is None else f"{error.filename or path}: {error.strerror or error}"


def _list_runs(owner: str | None) -> Iterator[Resource]:
    directories, locks = (
        {path.name: path for path in _list_directory(host_directories.root() / part)}
        for part in ("runs", "locks")
    )
    alive: set[str] = set()
    for name, path in sorted((locks | directories).items()):
        if name == BASES_LOCK or owner not in (None, name):
            continue
        with contextlib.suppress(FileNotFoundError):  # the run has ended, or another collector removes it
            run = _make_run_resource(path, "files and lock" if name in directories else "lock")
            alive |= set() if run.is_stale else {name}
            yield run
    home = host_directories.root() / "runs"
    for process, tmp in processes.find_run_processes(home).items():
        name = "".join(tmp.relative_to(home).parts[:1])
        if name not in alive and owner in (None, name) and ownership.is_owner(name):
            yield _make_process_resource(process, name)


def _make_run_resource(path: Path, parts: str) -> Resource:
    name = path.name
    if name.startswith(REMOVED_PREFIX):
        return _make_resource(path, "run", "its removal was interrupted", is_stale=True)
    if not ownership.is_owner(name) or (path.parent.name == "runs" and not is_directory(path)):
        return _make_resource(path, "other", "not made by this program")
    is_held = ownership.is_held(name)
    if is_held is None:
        return _make_resource(path, "other", "its lock cannot be read", owner=name)
    reason = f"alive{_describe_holders(name)}" if is_held else "no living process has it"
    return _make_resource(path, "run", reason, is_stale=not is_held, owner=name, name=parts)


def _make_base_resource(path: Path, is_used: bool, is_requested: bool) -> Resource:
    if path.name.startswith(REMOVED_PREFIX):
        return _make_resource(path, "partial", "its removal was interrupted", is_stale=True)
    if path.name.endswith(".partial"):
        reason = "a living run may be making it" if is_used else "the process that started it is dead"
        return _make_resource(path, "partial", reason, is_stale=not is_used)
    if not _BASE_NAME.fullmatch(path.name) or not is_directory(path):
        return _make_resource(path, "other", "not made by this program")
    if is_used:
        reason = f"a living run may use it{_describe_holders(BASES_LOCK)}"
    else:
        reason = "no living run uses it" if is_requested else "the next run starts from it: --bases"
    return _make_resource(path, "base", reason, is_stale=is_requested and not is_used, name=_base_name(path))


def _base_name(path: Path) -> str:
    try:
        about = json.loads((path / "base.json").read_text())
        kind = "system" if about["whole"] else "repository"
        return f"{kind} {about['digest'].removeprefix('sha256:')[:12]}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return path.name


def _make_process_resource(process: psutil.Process, owner: str) -> Resource:
    command, since = "?", time.time()
    with contextlib.suppress(psutil.Error):
        command, since = " ".join(process.cmdline()) or process.name(), process.create_time()
    return Resource(
        kind="process",
        owner=owner,
        name=command[:80],
        location=str(process.pid),
        age_s=max(0.0, time.time() - since),
        reason="its run is dead",
        is_stale=True,
    )


def _make_resource(
    path: Path, kind: ResourceKind, reason: str, *, is_stale: bool = False, owner: str = "", name: str = ""
) -> Resource:
    info = path.lstat()
    return Resource(
        kind=kind,
        owner=owner,
        name=name or path.name,
        location=str(path),
        size_bytes=disk_usage(path) if is_directory(path) else info.st_blocks * 512,
        age_s=max(0.0, time.time() - info.st_mtime),
        reason=reason,
        is_stale=is_stale,
    )


def _describe_holders(owner: str) -> str:
    """Name the processes that hold a run, as far as visible, to end a reason with."""
    found = ownership.list_holders(owner)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f": process {', '.join(map(str, found[:3]))}{more}" if found else ""


def _list_directory(directory: Path) -> list[Path]:
    try:
        return list_directory(directory)
    except OSError as error:
        is_ours = directory.is_relative_to(host_directories.root())
        cure = (
            f" (run as its user, or set {host_directories.ROOT_VARIABLE} to the directory to inspect)"
            if is_ours
            else ""
        )
        raise SandboxUnavailableError(f"{directory}: {error.strerror}{cure}") from error


def _describe_temporary_use(path: Path) -> str | None:
    """Describe the process that may still use a temporary file or directory; None without one."""
    made = path.lstat().st_mtime  # at the latest
    if path.lstat().st_uid != os.geteuid():
        return "another user's"
    if Path("/proc/self/ns/pid").stat().st_ino != _FIRST_NAMESPACE and time.time() - made < _DAY_S:
        return "less than a day old, and its process may be invisible to this one"
    for process in psutil.process_iter():
        # A process that has ended, or belongs to another user, does not use it.
        with contextlib.suppress(OSError, psutil.Error):
            is_older = process.pid != os.getpid() and process.create_time() <= made + 1
            if is_older and _MARKER_LIBRARY in Path(f"/proc/{process.pid}/maps").read_text():
                return f"process {process.pid} may be using it"
    return None
