"""Values that a database and a provider can take."""

from __future__ import annotations

import re
from typing import Any


def encodable(value: Any) -> Any:
    """A JSON-like value without the halves of surrogate pairs, which no UTF-8 can hold."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [encodable(item) for item in value]
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    return value


_DEEPEST = 64
_LARGEST = 2**63
"""The first integer that is too large for a checkpoint."""


def storable(value: Any, depth: int = 0) -> Any:
    """`encodable`, for whatever a client library made of an endpoint's answer: large integers become text, too.

    Raises ValueError for a value that is nested too deep.
    """
    if depth > _DEEPEST:
        raise ValueError(f"it is nested deeper than {_DEEPEST}")
    if isinstance(value, list | tuple):
        return [storable(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {storable(key, depth + 1): storable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        return str(value)
    return encodable(value)
