"""Text that a database and a provider can take."""

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
