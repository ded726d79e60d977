"""This host: its directories and programs; and who owns what on it: runs, processes, Docker's resources."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from langgraph_takeover.sandbox.interface import OWNER_PATTERN, OutOfDiskError, SandboxUnavailableError

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
ROOT_VARIABLE = "TAKEOVER_HOME"
"""The environment variable that names another directory; overlayfs must be able to write to its disk."""
ROOT_UID = 0x4000_0000
"""The unprivileged user of this host that is root in sandboxes started by root, and has no other use."""


_MIN_FREE_BYTES, _MIN_FREE_FILES = 1024**2, 64
"""Free disk space that a sandbox needs to start, and to continue after a command."""


def root() -> Path:
    """The directory above all others; it may not exist yet."""
    named = os.environ.get(ROOT_VARIABLE)
    if named:
        found = Path(named)
    elif os.geteuid() == 0:
        found = Path("/var/cache/takeover")
    else:
        found = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "takeover")
    return found.absolute()


def ensure_root() -> Path:
    """The same, made on first use. Raises SandboxUnavailableError."""
    return ensure_directory(root())


def runs_directory() -> Path:
    """The directory with one directory for each run that has sandboxes on this host, named by its owner."""
    return ensure_directory(ensure_root() / "runs")


def owner_uid() -> int | None:
    """The user on this host that owns the files of sandboxes; None for the user who starts them."""
    return ROOT_UID if os.geteuid() == 0 else None


def require_disk_space(directory: Path) -> None:
    """Raise OutOfDiskError if the disk of a directory has no space for what a sandbox writes next."""
    try:
        found = os.statvfs(directory)
    except FileNotFoundError:
        return  # with the sandbox itself, which then says so
    size, files = found.f_bavail * found.f_frsize, found.f_favail
    if size < _MIN_FREE_BYTES or (found.f_files and files < _MIN_FREE_FILES):
        raise _make_disk_full_error(directory, f"{size >> 10:,} KB and room for {files:,} files left")


@contextlib.contextmanager
def translate_disk_errors() -> Iterator[None]:
    """Raise OutOfDiskError for whatever fails because the disk with the sandboxes' files is full."""
    try:
        yield
    except SandboxUnavailableError:
        raise  # one of them is an OSError
    except OSError as error:
        if error.errno not in DISK_FULL_ERRNOS:
            raise
        raise _make_disk_full_error(Path(error.filename or root())) from error


def _make_disk_full_error(path: Path, left: str = "") -> OutOfDiskError:
    cure = f", or set {ROOT_VARIABLE} to a directory on another disk" if path.is_relative_to(root()) else ""
    return OutOfDiskError(f"{path}: the disk is full{f' ({left})' if left else ''}; make room{cure}")


def find_closed_parent(path: Path) -> Path | None:
    """Return a directory on the way to `path` that the user of the sandboxes cannot enter; None if all can be entered."""
    if owner_uid() is None:
        return None
    closed = (
        parent for parent in (*reversed(path.parents), path) if not parent.stat().st_mode & stat.S_IXOTH
    )
    return next(closed, None)


def give_to_owner(path: Path) -> None:
    """Give one path to the owner of sandbox files."""
    uid = owner_uid()
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


def ensure_directory(path: Path) -> Path:
    """The directory at `path`, made if it does not exist. Raises SandboxUnavailableError."""
    try:
        _make(path)
        if not path.is_dir():  # it was removed since, perhaps with its parents
            _make.__wrapped__(path)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise _make_disk_full_error(path) from error
        raise SandboxUnavailableError(
            f"{path}: {error.strerror}; set {ROOT_VARIABLE} to a directory that can be written to"
        ) from error
    return path


@functools.lru_cache(maxsize=64)
def _make(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    # The user that sandboxes run as passes through, and lists nothing on the way.
    path.chmod(0o711)


_ADMINISTRATION_DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Searched last: the PATH of an ordinary user often lacks them."""
# In a user namespace their owner can have no number.
_SYSTEM_DIRECTORIES = ("/usr/local/bin", "/usr/bin", "/bin", *_ADMINISTRATION_DIRECTORIES)


def search_path() -> str:
    """Return the directories of PATH that are safe to run programs from, as a PATH.

    Left out are relative and empty entries, and directories that every user can write to, that belong to a user other
    than root and this one, or that the user of the sandboxes cannot enter.
    """
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(
        dict.fromkeys(each for each in (*entries, *_ADMINISTRATION_DIRECTORIES) if _is_trusted(each))
    )


def program_environment() -> dict[str, str]:
    """Return the environment of a program of this host that starts a sandbox."""
    return {"PATH": search_path()}


def find_program(name: str, package: str) -> str:
    """Return the absolute path of a program of this host; `package` is its package in Debian.

    Raises:
        SandboxUnavailableError: It is not installed.
    """
    found = shutil.which(name, path=search_path())
    if found is None:
        raise SandboxUnavailableError(
            f"{name} is not installed, or not in a directory of PATH that belongs to root or this user; "
            f"the back end host needs it (Debian: apt-get install {package})"
        )
    return found


def _is_trusted(directory: str) -> bool:
    path = Path(directory)
    if not path.is_absolute() or directory in _SYSTEM_DIRECTORIES:
        return path.is_absolute()
    try:
        info = path.stat()
        is_closed = any(map(find_closed_parent, (path, path.resolve())))
    except OSError:
        return False
    return info.st_uid in (0, os.geteuid()) and not info.st_mode & stat.S_IWOTH and not is_closed


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
    return os.path.lexists(root() / "locks" / owner)


def is_held(owner: str) -> bool | None:
    """Whether a living process, this one included, holds the run; None if its lock cannot be read."""
    try:
        with _try_exclusive_lock(root() / "locks" / owner) as is_alone:
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
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)  # another collector may just be looking at it
        # Without a file a newcomer could not be made to wait.
        with _try_exclusive_lock(_lock_path(owner), create=True) as is_alone:
            if is_alone:
                yield True
                if owner != BASES_LOCK and not os.path.lexists(runs_directory() / owner):
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
        found[ROOT_LABEL] = str(root())
    return found


def creator_state(labels: Mapping[str, str]) -> ProcessState:
    """The state of the process that made something with these labels; `unknown` whenever in doubt."""
    if OWNER_LABEL not in labels or labels.get(HOST_LABEL) != socket.gethostname():
        return "unknown"
    return process_state(labels.get(PROCESS_LABEL, ""))


def origin(labels: Mapping[str, str]) -> Origin:
    """Whether this host, with this root directory, created the resource with these labels."""
    here = {HOST_LABEL: socket.gethostname(), ROOT_LABEL: str(root())}
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
    return ensure_directory(ensure_root() / "locks") / owner


@contextlib.contextmanager
def _try_exclusive_lock(lock: Path, *, create: bool = False) -> Iterator[bool]:
    """Take an exclusive lock, if it is free. A missing file counts as free, and is not locked unless it is created."""
    created = os.O_CREAT if create else 0
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | created, 0o600)
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
