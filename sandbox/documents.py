"""JSON of foreign origin, parsed with its cost bounded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

MOST_VALUES = 2_000_000
MOST_KEYS = 1_000
"""In one object."""
MOST_VALUES_OF_A_FILE = 20_000_000
"""Recorded runs have 32 bytes or more for each value, so that a file of 640 MB meets it."""
_OTHERS = bytes(sorted(set(range(256)) - set(b'",[{')))
_STRING = re.compile(rb'"[^"]*"')


def parse_document(text: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError, also where it nests too deeply or has too many values.

    A value of two bytes takes 70 in memory, and a thousand where it is validated and refused.
    """
    return parse_json(text.decode(), most_values=MOST_VALUES, most_keys=MOST_KEYS)


def parse_json(
    text: bytes | str,
    *,
    most_values: int = MOST_VALUES_OF_A_FILE,
    most_keys: int | None = None,
    nan_as_none: bool = False,
) -> Any:
    """The value of a JSON text, which may hold NaN and infinities. Raises ValueError as `parse_document` does."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    check_values(text.encode("utf-8", "surrogatepass"), most_values)

    def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if most_keys is not None and len(pairs) > most_keys:
            raise ValueError(f"it has an object of more than {most_keys:,} keys")
        return dict(pairs)

    replace: Callable[[str], Any] | None = (lambda name: None) if nan_as_none else None
    try:
        return json.loads(
            text, parse_constant=replace, object_pairs_hook=None if most_keys is None else build_object
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_values(text: bytes, most_values: int = MOST_VALUES_OF_A_FILE) -> None:
    """Raise ValueError where a JSON text, or several, have more values than that."""
    # Outside of strings, each value but the first follows one of these characters, or is an object's.
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    if len(bare) - sum(found.end() - found.start() for found in _STRING.finditer(bare)) > most_values:
        raise ValueError(f"it has more than {most_values:,} values")
