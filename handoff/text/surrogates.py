"""Lone surrogates as escapes. They stand for bytes that are not UTF-8, and strict JSON parsers refuse them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_ESCAPED = "ud[89a-f][0-9a-f]{2}|u005c"
_PLAIN = re.compile(rf"[\ud800-\udfff]|\\(?={_ESCAPED})")
_ESCAPE = re.compile(rf"\\({_ESCAPED})")


def has_surrogates(value: Any) -> bool:
    """Whether a text in a JSON-like value has a lone surrogate."""
    if isinstance(value, str):
        return not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, Mapping):
        return any(has_surrogates(key) or has_surrogates(item) for key, item in value.items())
    return isinstance(value, list | tuple) and any(map(has_surrogates, value))


def escape_surrogates(value: Any) -> Any:
    r"""Write each lone surrogate of a JSON-like value as text, such as `\udce9`; `unescape_surrogates` is the inverse."""
    return _map_texts(value, lambda text: _PLAIN.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def unescape_surrogates(value: Any) -> Any:
    """Restore a value from `escape_surrogates`."""
    return _map_texts(value, lambda text: _ESCAPE.sub(lambda match: chr(int(match[1][1:], 16)), text))


def _map_texts(value: Any, transform: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return transform(value)
    if isinstance(value, Mapping):
        return {_map_texts(key, transform): _map_texts(item, transform) for key, item in value.items()}
    return [_map_texts(item, transform) for item in value] if isinstance(value, list | tuple) else value
