"""JSON of foreign origin, parsed with its cost bounded."""

from __future__ import annotations

import json
from typing import Any

MOST_VALUES = 2_000_000
MOST_KEYS = 1_000
"""In one object."""
_OTHERS = bytes(sorted(set(range(256)) - set(b'",[{')))


def parse_document(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError, also where it nests too deeply or has too many values.

    A value of two bytes takes 70 in memory, and a thousand where it is validated and refused.
    """
    # Outside of strings, each value but the first follows one of these characters, or is an object's.
    bare = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    if sum(map(len, bare.split(b'"')[::2])) > MOST_VALUES:
        raise ValueError(f"has more than {MOST_VALUES:,} values")
    try:
        return json.loads(text.decode(), object_pairs_hook=_object)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_KEYS:
        raise ValueError(f"has an object of more than {MOST_KEYS:,} keys")
    return dict(pairs)
