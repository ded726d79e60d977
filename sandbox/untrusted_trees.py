"""Directory trees that an agent can change meanwhile: opened by descriptors, listed, measured and removed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import glob
import os
import secrets
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RESOLVE = _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
_OPEN_HOW = struct.Struct("=QQQ")
_REQUIRED_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_NONBLOCKING_FLAGS = os.O_NONBLOCK | os.O_NOCTTY
"""A fifo or a device that takes a file's place must not block the open. Not allowed beside O_PATH."""
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY


@contextlib.contextmanager
def open_safely(root: Path, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open `path` below `root` and return a descriptor; an empty path is the root itself.

    `root` is trusted; `path` is relative and has no `..`. Raises OSError: ELOOP or ENOTDIR if a part of `path` is a
    symbolic link.
    """
    descriptor = open_beneath(root, path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_beneath(root: Path, path: str, flags: int = os.O_RDONLY) -> int:
    """Like `open_safely`, but the caller closes the descriptor."""
    if not path:
        return os.open(root, flags | os.O_DIRECTORY | os.O_CLOEXEC)
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _open_at(top, path, _complete_flags(flags))
    finally:
        os.close(top)


def open_at(directory: int, name: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of one name in an open directory, for the caller to close."""
    return os.open(name, _complete_flags(flags), dir_fd=directory)


def read_status(root: Path, path: str) -> os.stat_result:
    """The result of `lstat` for a path below `root`. Raises OSError like `open_safely`."""
    descriptor = open_beneath(root, path, os.O_PATH)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def read_link_target(root: Path, path: str) -> bytes:
    """The target of a symbolic link."""
    with open_safely(root, path, os.O_PATH) as descriptor:
        return os.readlink(b"", dir_fd=descriptor)


def list_entries(root: Path, path: str) -> list[tuple[str, os.stat_result]]:
    """List the names in a directory, each with the result of `lstat`; names that disappear meanwhile are skipped."""
    found = []
    with open_safely(root, path, _DIRECTORY_FLAGS) as descriptor, os.scandir(descriptor) as listed:
        for entry in listed:
            with contextlib.suppress(FileNotFoundError):
                found.append((entry.name, entry.stat(follow_symlinks=False)))
    return found


@contextlib.contextmanager
def make_readable(root: Path, path: str, info: os.stat_result, *, to_write: bool = False) -> Iterator[None]:
    """Let this user read its own file or directory while its mode forbids that. Root needs no help."""
    wanted = stat.S_IRUSR | (stat.S_IWUSR if to_write else 0)
    if stat.S_ISDIR(info.st_mode):
        wanted |= stat.S_IXUSR
    if os.geteuid() == 0 or info.st_mode & wanted == wanted or stat.S_ISLNK(info.st_mode):
        yield
        return
    with open_safely(root, path, os.O_PATH) as descriptor:
        # As it is now: a caller further out may have opened it up already.
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        proc_path = Path(f"/proc/self/fd/{descriptor}")  # fchmod takes no descriptor of O_PATH
        proc_path.chmod(mode | wanted)
        try:
            yield
        finally:
            proc_path.chmod(mode)


def _complete_flags(flags: int) -> int:
    return flags | _REQUIRED_FLAGS | (0 if flags & os.O_PATH else _NONBLOCKING_FLAGS)


def _open_at(directory: int, path: str, flags: int) -> int:
    if _has_openat2():
        return _openat2(directory, path, flags)
    *parents, name = path.split("/")
    opened_here: list[int] = []
    try:
        for part in parents:
            directory = os.open(part, os.O_PATH | os.O_DIRECTORY | _REQUIRED_FLAGS, dir_fd=directory)
            opened_here.append(directory)
        return os.open(name, flags, dir_fd=directory)
    finally:
        for descriptor in opened_here:
            os.close(descriptor)


def _openat2(directory: int, path: str, flags: int) -> int:
    while True:
        how = _OPEN_HOW.pack(flags, 0, _RESOLVE)
        found = _libc().syscall(_OPENAT2, directory, os.fsencode(path), how, _OPEN_HOW.size)
        if found >= 0:
            return int(found)
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: something was renamed during the lookup
            raise OSError(number, os.strerror(number), path)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def _has_openat2() -> bool:
    """Whether the kernel has the call, and no filter of system calls refuses it."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(_openat2(root, ".", os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


REMOVED_PREFIX = ".removed-"
"""Prefix of a directory that is being removed."""


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The relative path of everything below a directory that can be read; symbolic links are not followed."""
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        with contextlib.suppress(OSError):
            for name, info in list_entries(root, directory):
                path = f"{directory}/{name}" if directory else name
                yield path, info
                if stat.S_ISDIR(info.st_mode):
                    waiting.append(path)


def list_matches(directory: Path, pattern: str) -> list[Path]:
    """The sorted paths below a directory that match; as `Path.glob`, which fails when a directory vanishes meanwhile."""
    found = glob.glob(pattern, root_dir=directory, include_hidden=True)  # noqa: PTH207
    return sorted(directory / path for path in found)


def list_directory(directory: Path) -> list[Path]:
    """The sorted entries of a directory; empty if it does not exist."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def is_directory(path: Path) -> bool:
    """Whether the path is a directory and not a symbolic link to one."""
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(path.lstat().st_mode)
    return False


def disk_usage(root: Path) -> int:
    """Bytes on disk of the files below a directory."""
    return sum(info.st_blocks * 512 for _, info in walk(root) if not stat.S_ISDIR(info.st_mode))


def set_aside(path: Path) -> Path:
    """Rename a directory in one step, so that no process sees a part of it or waits for its removal; return its new path."""
    aside = path.with_name(f"{REMOVED_PREFIX}{secrets.token_hex(8)}")
    path.rename(aside)
    return aside


def remove_tree(root: Path) -> OSError | None:
    """Remove a file, a link or a directory tree; the error if something of it remains."""
    if not is_directory(root):
        try:
            root.unlink(missing_ok=True)  # a link itself, never its target
        except OSError as error:
            return error
        return None
    if os.geteuid() != 0:
        # An agent may have taken away its own right to look into a directory.
        subprocess.run(["chmod", "-R", "u+rwX", "--", root], capture_output=True)
    done = subprocess.run(["rm", "-rf", "--one-file-system", "--", root], capture_output=True, text=True)
    return OSError(done.stderr.strip().partition("\n")[0]) if done.returncode else None


@contextlib.contextmanager
def remove_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        remove_tree(path)
        raise
