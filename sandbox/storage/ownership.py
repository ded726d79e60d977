"""Who owns what, and whether the owner is alive: locks of runs, identities of processes, Docker labels."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from langgraph_takeover.sandbox.interface import OWNER_PATTERN, SandboxUnavailableError
from langgraph_takeover.sandbox.storage import host_directories

BASES_LOCK = ".bases"
"""The lock of every process that may use a base; no run has such a name."""
OWNER_LABEL = "takeover.owner"
HOST_LABEL = "takeover.host"
PROCESS_LABEL = "takeover.process"
ROOT_LABEL = "takeover.place"
"""The directory with the locks that say which runs are alive."""
CREATION_LABEL = "takeover.making"
"""New each time. A container that a person starts from a snapshot image inherits all labels, this one too."""

ProcessState = Literal["alive", "dead", "earlier", "unknown"]
"""`earlier`: of an earlier boot of this host, or of another host."""
Origin = Literal["here", "elsewhere", "unknown"]
"""`here`: made by this host with today's directory of locks, which therefore show whether the run is alive."""
_TRIES, _PAUSE_S = 4, 0.02
_lock_descriptors: dict[Path, int] = {}


def is_owner(name: str) -> bool:
    """Whether a run can have this name."""
    return re.fullmatch(OWNER_PATTERN, name) is not None


def hold(owner: str) -> None:
    """Mark a run as alive until this process ends or releases it."""
    lock = _lock_path(owner)
    known = _lock_descriptors.get(lock)
    if known is not None and _is_same_file(known, lock):
        return
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_same_file(descriptor, lock):
            break
        os.close(descriptor)  # it was removed between the two calls
    _lock_descriptors[lock] = descriptor


def release(owner: str) -> None:
    """Remove this process's lock on a run, and the file if no other process has a lock."""
    lock = _lock_path(owner)
    if (descriptor := _lock_descriptors.pop(lock, None)) is not None:
        os.close(descriptor)
    with _try_exclusive_lock(lock) as is_alone:
        if is_alone:
            lock.unlink(missing_ok=True)


def is_known(owner: str) -> bool:
    """Whether some process of this host has held the run since it was last removed."""
    return os.path.lexists(host_directories.root() / "locks" / owner)


def is_held(owner: str) -> bool | None:
    """Whether a living process, this one included, holds the run; None if its lock cannot be read."""
    try:
        with _try_exclusive_lock(host_directories.root() / "locks" / owner) as is_alone:
            return not is_alone
    except OSError:
        return None


def list_holders(owner: str) -> list[int]:
    """The processes that hold a run, as far as the kernel shows them."""
    found = set()
    with contextlib.suppress(OSError):
        wanted = _lock_path(owner).stat()
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.replace("-> ", "").split()
            major, minor, inode = fields[5].split(":")
            device = os.makedev(int(major, 16), int(minor, 16))
            if (device, int(inode)) == (wanted.st_dev, wanted.st_ino) and int(fields[4]) > 0:
                found.add(int(fields[4]))
    return sorted(found)


@contextlib.contextmanager
def claim(owner: str) -> Iterator[bool]:
    """Lock a run against every process, if no living process holds it. A process that needs it waits, and starts again."""
    # Without a file a newcomer could not be made to wait.
    os.close(os.open(_lock_path(owner), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)  # another collector may just be looking at it
        with _try_exclusive_lock(_lock_path(owner)) as is_alone:
            if is_alone and _lock_path(owner).exists():
                yield True
                if owner != BASES_LOCK and not os.path.lexists(host_directories.runs_directory() / owner):
                    _lock_path(owner).unlink(missing_ok=True)
                return
    yield False


def make_labels(owner: str) -> dict[str, str]:
    """Return labels for what this process makes on the Docker daemon for a run, which counts as alive from now on."""
    found = {
        OWNER_LABEL: owner,
        HOST_LABEL: socket.gethostname(),
        PROCESS_LABEL: current_process_identity(),
        CREATION_LABEL: secrets.token_hex(8),
    }
    # Containers work on hosts without a place for locks; there, nothing counts as stale.
    with contextlib.suppress(SandboxUnavailableError, OSError):
        hold(owner)
        found[ROOT_LABEL] = str(host_directories.root())
    return found


def creator_state(labels: Mapping[str, str]) -> ProcessState:
    """The state of the process that made something with these labels; `unknown` whenever in doubt."""
    if OWNER_LABEL not in labels or labels.get(HOST_LABEL) != socket.gethostname():
        return "unknown"
    return process_state(labels.get(PROCESS_LABEL, ""))


def origin(labels: Mapping[str, str]) -> Origin:
    """Whether this host, with this root directory, created the resource with these labels."""
    here = {HOST_LABEL: socket.gethostname(), ROOT_LABEL: str(host_directories.root())}
    known = {name: labels[name] for name in here if name in labels}
    if any(here[name] != value for name, value in known.items()):
        return "elsewhere"
    return "here" if known == here else "unknown"


def current_process_identity() -> str:
    """A name that no other process has, on any host: boot, process namespace, process id, start time."""
    return f"{_boot_id()}/{_pid_namespace_id()}/{os.getpid()}/{_start_time(os.getpid())}"


def process_state(process: str) -> ProcessState:
    """The state of the process that `current_process_identity` returned."""
    try:
        boot, namespace, pid, start = process.split("/")
        if boot != _boot_id():
            return "earlier"
        return _read_process_state(int(pid), start) if namespace == _pid_namespace_id() else "unknown"
    except (ValueError, OverflowError):
        return "unknown"


def _read_process_state(pid: int, start: str) -> ProcessState:
    if pid <= 0:
        return "unknown"
    if _start_time(pid):
        return "alive" if _start_time(pid) == start else "dead"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        return "unknown"  # /proc may hide processes of other users
    return "dead" if Path(f"/proc/{pid}").exists() else "unknown"  # a zombie


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace_id() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _start_time(pid: int) -> str:
    """When the process began, in clock ticks since boot: ids are reused, but not at the same time."""
    try:
        # The name, which is in brackets, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _lock_path(owner: str) -> Path:
    # Not in the run's directory: its removal must not take a lock from under a process.
    return host_directories.ensure_directory(host_directories.ensure_root() / "locks") / owner


@contextlib.contextmanager
def _try_exclusive_lock(lock: Path) -> Iterator[bool]:
    """Take an exclusive lock, if it is free."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            # A removed file says nothing of the one that may be there now.
            yield _is_same_file(descriptor, lock)
    finally:
        os.close(descriptor)


def _is_same_file(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
