"""Where this host keeps what embedded machines stand on, and whose it is: bases, and each run's layers."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sandbox.machine import SandboxUnavailable

PLACE_VARIABLE = "TAKEOVER_HOME"
"""The environment variable that names another directory; it must lie on a disk that overlayfs can write to."""
ROOT_UID = 0x4000_0000
"""What a machine's root is on this host when root starts it: an unprivileged user that nobody else is."""
_held: dict[Path, int] = {}


def place() -> Path:
    """The directory of all that, made on first use."""
    named = os.environ.get(PLACE_VARIABLE)
    if named:
        root = Path(named)
    elif os.geteuid() == 0:
        root = Path("/var/cache/takeover")
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "takeover")
    return _open_directory(root.absolute())


def bases() -> Path:
    """One directory for each base, named by its digest; they outlast the runs."""
    return _open_directory(place() / "bases")


def runs() -> Path:
    """One directory for each run that has or had machines on this host, named by its owner."""
    return _open_directory(place() / "runs")


def owner_uid() -> int | None:
    """Whom a machine's files belong to on this host; None where that is the user who starts it."""
    return ROOT_UID if os.geteuid() == 0 else None


def new_room(owner: str) -> Path:
    """An empty directory for one more layer of a run, which is held as long as this process lives."""
    run = runs() / owner
    while True:
        _open_directory(run)
        hold(owner)
        room = run / secrets.token_hex(4)
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            room.mkdir(mode=0o711)
            own(room)
            return room


def own(path: Path) -> None:
    """Give one name to whom machines belong."""
    uid = owner_uid()
    if uid is not None:
        os.chown(path, uid, uid, follow_symlinks=False)


def hold(owner: str) -> None:
    """Mark a run as alive until this process ends or removes it."""
    lock = _lock_of(owner)
    known = _held.get(lock)
    if known is not None and _is_at(known, lock):
        return
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_at(descriptor, lock):
            break
        os.close(descriptor)  # it was removed between the two calls
    _held[lock] = descriptor


def is_held(owner: str) -> bool:
    """Whether a living process, this one included, has machines of this run on this host."""
    with _alone(owner) as alone:
        return not alone


def owners() -> list[str]:
    """The runs that have something here."""
    return sorted({entry.name for directory in (runs(), _locks()) for entry in directory.iterdir()})


def remove_run(owner: str) -> None:
    """Remove everything that this host keeps of a run."""
    remove_tree(runs() / owner)
    lock = _lock_of(owner)
    if (descriptor := _held.pop(lock, None)) is not None:
        os.close(descriptor)
    with _alone(owner) as alone:
        if alone:
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(owner: str) -> Iterator[bool]:
    """Hold a run's lock against everybody, if nobody holds it."""
    try:
        descriptor = os.open(_lock_of(owner), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def size(path: Path) -> int:
    """Bytes that the files below take up."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(directory, name).lstat().st_blocks * 512
    return total


def remove_tree(root: Path) -> None:
    """Remove a directory that an agent could write to."""
    # By programs that no depth stops. It may have taken away its own right to look into a directory.
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "u+rwX", root], capture_output=True)
    subprocess.run(["rm", "-rf", "--", root], capture_output=True)


@contextlib.contextmanager
def removed(room: Path) -> Iterator[None]:
    try:
        yield
    finally:
        remove_tree(room)


@contextlib.contextmanager
def removed_on_failure(room: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remove_tree(room)
        raise


def _locks() -> Path:
    # Beside the runs' directories and not in them: removing a run must not take a lock from under a process.
    return _open_directory(place() / "locks")


def _lock_of(owner: str) -> Path:
    return _locks() / owner


def _is_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


@functools.lru_cache(maxsize=64)
def _made(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    # The user that machines run as passes through, and sees nothing on the way.
    path.chmod(0o711)


def _open_directory(path: Path) -> Path:
    try:
        _made(path)
        if not path.is_dir():
            path.mkdir(mode=0o711, exist_ok=True)
    except OSError as error:
        raise SandboxUnavailable(
            f"{path}: {error.strerror}; set {PLACE_VARIABLE} to a directory that can be written to"
        ) from error
    return path
