"""Conversion of values for databases and providers."""

from __future__ import annotations

import re
from typing import Any

_MAX_DEPTH = 64
_INTEGER_LIMIT = 2**63
"""The first integer that is too large for a checkpoint."""


def replace_surrogates(value: Any) -> Any:
    """Return a JSON-like value with lone surrogates replaced: UTF-8 cannot encode them."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return value


def make_storable(value: Any, depth: int = 0) -> Any:
    """Return a value of a client library that a checkpoint can store: no lone surrogates, large integers as text.

    Raises ValueError if it is nested too deep.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH}")
    if isinstance(value, list | tuple):
        return [make_storable(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {make_storable(key, depth + 1): make_storable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        return str(value)
    return replace_surrogates(value)
