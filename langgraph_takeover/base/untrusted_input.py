"""Files and JSON of foreign origin, read with their cost bounded."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_DEPTH = 100
"""Of lists and objects in each other: what reads them by recursion stays far from Python's limit."""
MAX_VALUES = 2_000_000
MAX_KEYS = 1_000
"""In one object."""
MAX_FILE_VALUES = 20_000_000
"""Recorded runs have 32 bytes or more for each value, so that a file of 640 MB meets it."""
_IGNORED_BYTES = bytes(sorted(set(range(256)) - set(b'",[{')))
_STRING = re.compile(rb'"[^"]*"')
_TOO_DEEP = f"it is nested too deeply (more than {MAX_DEPTH} lists and objects in each other)"
_CONTAINERS = frozenset((list, dict))
_LENIENT_DECODER = json.JSONDecoder(strict=False)


def parse_document(text: bytes) -> Any:
    """Parse a JSON text in UTF-8. Raises ValueError, also if it nests too deeply or has too many values.

    A value of two bytes takes 70 bytes in memory, and a thousand when it fails validation.
    """
    return parse_json(text.decode(), max_values=MAX_VALUES, max_keys=MAX_KEYS)


def parse_json(
    text: bytes | str,
    *,
    max_values: int = MAX_FILE_VALUES,
    max_keys: int | None = None,
    nan_as_none: bool = False,
    unique_keys: bool = False,
    strict: bool = True,
) -> Any:
    """Parse a JSON text that may contain NaN and infinities. Raises ValueError like `parse_document`.

    `unique_keys` refuses an object with the same key twice, of which another parser could read the other value; it needs
    `max_keys`. Without `strict`, strings may contain control characters.
    """
    raw = b""
    if isinstance(text, bytes):
        encoding = json.detect_encoding(text)
        raw, text = text if encoding == "utf-8" else b"", text.decode(encoding, "surrogatepass")
    check_values(raw or text.encode("utf-8", "surrogatepass"), max_values)

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if max_keys is not None and len(pairs) > max_keys:
            raise ValueError(f"it has an object of more than {max_keys:,} keys")
        found = dict(pairs)
        if unique_keys and len(found) < len(pairs):
            raise ValueError("it has an object with the same key twice")
        return found

    replace: Callable[[str], Any] | None = (lambda name: None) if nan_as_none else None
    try:
        value = json.loads(
            text,
            parse_constant=replace,
            object_pairs_hook=None if max_keys is None else build_object,
            strict=strict,
        )
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    _check_depth(value)
    return value


def parse_prefix(text: str, start: int = 0) -> tuple[Any, int]:
    """Parse the JSON value at a position of a text, and return it with its end. Raises ValueError like `parse_document`."""
    try:
        value, end = _LENIENT_DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    _check_depth(value)
    return value, end


def _check_depth(value: Any) -> None:
    level = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_DEPTH + 1):
        level = [
            part
            for whole in level
            for part in (whole if type(whole) is list else whole.values())
            if type(part) in _CONTAINERS
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def check_values(text: bytes, max_values: int = MAX_FILE_VALUES) -> None:
    """Raise ValueError if JSON texts have more values than that."""
    if sum(map(text.count, (b",", b"[", b"{"))) < max_values:
        return  # at most one more value than these characters
    # Outside of strings, each value but the first follows one of these characters, or is an object's.
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _IGNORED_BYTES)
    if len(_STRING.sub(b"", bare)) > max_values:
        raise ValueError(f"it has more than {max_values:,} values")


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
