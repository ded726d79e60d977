"""Reading of untrusted files: bounded in size, and without blocking."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 1 << 30
_PIPES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Where a shell puts the other end of a pipe; any other pipe may have none."""


def describe_error(error: OSError) -> str:
    """Describe the error in lower case, without the file's name."""
    return (error.strerror or str(error)).lower()


def read_untrusted_file(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a file. Raises OSError, also for anything but a regular file, or one larger than the limit."""
    name = str(path)
    if "\0" in name:
        raise OSError(errno.EINVAL, "its name holds a NUL byte", name)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        size = _check_regular_file(descriptor, name)
    except OSError:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes (split it)", name)
    return content


def read_untrusted_head(path: Path, max_bytes: int) -> bytes:
    """Read the start of a regular file, which is no link. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.read(descriptor, max_bytes)
    finally:
        os.close(descriptor)


def _check_regular_file(descriptor: int, name: str) -> int:
    """Return the size of an open file. Raises OSError if it is neither a regular file nor a shell's pipe."""
    # Before os.fdopen, whose error for a directory names the descriptor and leaves it open.
    info = os.fstat(descriptor)
    if stat.S_ISFIFO(info.st_mode) and name.startswith(_PIPES):
        os.set_blocking(descriptor, True)
    elif stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    elif not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "neither a file nor a directory", name)
    return info.st_size
