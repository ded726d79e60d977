"""JSON of foreign origin, parsed with its cost bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    check_values(text.encode("utf-8", "surrogatepass"), max_values)

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
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            part
            for whole in level
            if isinstance(whole, list | dict)
            for part in (whole if isinstance(whole, list) else whole.values())
            if isinstance(part, list | dict)
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def check_values(text: bytes, max_values: int = MAX_FILE_VALUES) -> None:
    """Raise ValueError if JSON texts have more values than that."""
    # Outside of strings, each value but the first follows one of these characters, or is an object's.
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _IGNORED_BYTES)
    if len(bare) - sum(found.end() - found.start() for found in _STRING.finditer(bare)) > max_values:
        raise ValueError(f"it has more than {max_values:,} values")
