"""Where this host keeps what embedded machines stand on, and whose it is: bases, and each run's layers."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from sandbox.machine import SandboxUnavailable
from sandbox.removal import below, remove_tree

PLACE_VARIABLE = "TAKEOVER_HOME"
"""The environment variable that names another directory; it must lie on a disk that overlayfs can write to."""
ROOT_UID = 0x4000_0000
"""What a machine's root is on this host when root starts it: an unprivileged user that nobody else is."""
BASES = ".bases"
"""Held, like a run, by every process that may stand on a base; no run has such a name."""
REMOVED = ".removed-"
"""What a directory is called that nobody has any more, while it is being removed."""
PARTIAL = ".partial"
"""How a base's name ends until it is whole."""
_TRIES, _PAUSE_S = 4, 0.02
_held: dict[Path, int] = {}


def root() -> Path:
    """Where all that lies, or will."""
    named = os.environ.get(PLACE_VARIABLE)
    if named:
        found = Path(named)
    elif os.geteuid() == 0:
        found = Path("/var/cache/takeover")
    else:
        found = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "takeover")
    return found.absolute()


def place() -> Path:
    """The directory of all that, made on first use."""
    return _open_directory(root())


def bases() -> Path:
    """One directory for each base, named by its digest; they outlast the runs, and this process's use of them."""
    found = _open_directory(place() / "bases")
    hold(BASES)
    return found


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


def is_marked(owner: str) -> bool:
    """Whether this host has ever seen a process have this run, and has not forgotten it."""
    return os.path.lexists(_lock_of(owner))


def holders(owner: str) -> list[int]:
    """The processes that have a run, as far as the kernel shows them."""
    found = set()
    with contextlib.suppress(OSError):
        wanted = _lock_of(owner).stat()
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.replace("-> ", "").split()
            major, minor, inode = fields[5].split(":")
            device = os.makedev(int(major, 16), int(minor, 16))
            if (device, int(inode)) == (wanted.st_dev, wanted.st_ino) and int(fields[4]) > 0:
                found.add(int(fields[4]))
    return sorted(found)


def remove_run(owner: str) -> None:
    """Remove everything that this host keeps of a run."""
    remove_tree(runs() / owner)
    release(owner)


def release(owner: str) -> None:
    """Take this process's mark off a run, and the mark altogether if it was the last."""
    lock = _lock_of(owner)
    if (descriptor := _held.pop(lock, None)) is not None:
        os.close(descriptor)
    with _alone(owner) as alone:
        if alone:
            lock.unlink(missing_ok=True)


@contextlib.contextmanager
def condemned(owner: str) -> Iterator[bool]:
    """Keep everybody from a run, if no living process has it; whoever wants it waits, and begins afresh.

    The mark of a run that has nothing else here goes in the end.
    """
    # Without one a newcomer could not be made to wait.
    os.close(os.open(_lock_of(owner), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)  # it may only have been looked at
        with _alone(owner) as alone:
            if alone and _lock_of(owner).exists():
                yield True
                if owner != BASES and not os.path.lexists(runs() / owner):
                    _lock_of(owner).unlink(missing_ok=True)
                return
    yield False


def set_aside(path: Path) -> Path:
    """Take a directory out of its place at once, so that nobody waits for its removal; its new name."""
    aside = path.with_name(f"{REMOVED}{secrets.token_hex(4)}")
    path.rename(aside)
    return aside


@contextlib.contextmanager
def _alone(owner: str) -> Iterator[bool]:
    """Hold a run's lock against everybody, if nobody holds it."""
    lock = _lock_of(owner)
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
            # One that was removed meanwhile says nothing of the one that may be there now.
            yield _is_at(descriptor, lock)
    finally:
        os.close(descriptor)


def size(path: Path) -> int:
    """Bytes that the files below take up."""
    total = 0
    for entry in below(path):
        with contextlib.suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


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
