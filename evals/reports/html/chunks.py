"""Compressed chunks of the page, loaded one at a time; long texts are truncated until all chunks fit."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

TEXT_LIMITS = (16_000, 8_000, 4_000, 2_000, 1_400, 1_000, 700, 500, 350, 250, 175, 120, 60, 0)
"""Maximum characters per text: the first limit with which all chunks fit applies."""
_SAMPLE_STRIDE = 10
# JSON escapes of characters that move the cursor, reorder or end a line, are invisible, or are half a character.
_INVISIBLE = re.compile(
    r"\\(?:(?P<color>u001b\[[0-9;:]*m)|(?P<allowed>\\|ud(?!b40)[89ab]..\\ud[c-f]..)|udb40\\ud[c-f].."
    r"|u(?:00[0189].|007f|061c|200[b-f]|202[89a-e]|206.|feff|fff[9ab]|d[89a-f]..)|[bf]|r(?!\\n))"
)
_SHORT_ESCAPES = {"\\b": 0x08, "\\f": 0x0C, "\\r": 0x0D}


class Chunk(NamedTuple):
    """Content of a chunk. The body refers to texts by their index in `strings`."""

    strings: tuple[str, ...]
    lengths: tuple[int, ...]
    """Lengths of the full texts; `strings` are already cut to the largest limit."""
    extended: frozenset[int]
    """Indices of strings with a fourfold limit."""
    body: Any


class TextPool:
    """The texts of a chunk, without duplicates."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._extended: set[int] = set()

    def __call__(self, text: str, *, is_extended: bool = False) -> int:
        """Add a text and return its index."""
        number = self._numbers.setdefault(text, len(self._numbers))
        if is_extended:
            self._extended.add(number)
        return number

    def build_chunk(self, body: Any) -> Chunk:
        texts = tuple(self._numbers)
        limits = [_effective_limit(TEXT_LIMITS[0], number in self._extended) for number in range(len(texts))]
        strings = tuple("".join(_split_ends(text, limit)) for text, limit in zip(texts, limits, strict=True))
        return Chunk(strings, tuple(map(len, texts)), frozenset(self._extended), body)


class PackedChunks(NamedTuple):
    """Chunks as text, and the limit of their strings; None if nothing was cut."""

    chunks: tuple[str, ...]
    limit: int | None


def pack_chunks(chunks: Sequence[Chunk], max_chars: int) -> PackedChunks:
    """Pack chunks into at most `max_chars` characters, as far as truncated strings allow."""
    bodies = [json.dumps(chunk.body, separators=(",", ":")) for chunk in chunks]
    items = list(zip(chunks, bodies, strict=True))
    packed: list[str] = []
    limit = TEXT_LIMITS[0]
    for limit in TEXT_LIMITS:
        sample = items[::_SAMPLE_STRIDE] if len(items) > 2 * _SAMPLE_STRIDE and limit else []
        if sum(len(_pack_chunk(*item, limit)) for item in sample) * len(items) > max_chars * len(sample):
            continue
        packed, size = [], 0
        for item in items:
            packed.append(_pack_chunk(*item, limit))
            size += len(packed[-1])
            if size > max_chars and limit:
                break
        else:
            break
    is_cut = any(
        length > _effective_limit(limit, number in chunk.extended)
        for chunk in chunks
        for number, length in enumerate(chunk.lengths)
    )
    return PackedChunks(tuple(packed), limit if is_cut else None)


def escape_for_page(text: str) -> str:
    """Escape invisible and cursor-moving characters, and remove colors."""
    return str(json.loads(_INVISIBLE.sub(_escape_match, json.dumps(text))))


def _pack_chunk(chunk: Chunk, body: str, limit: int) -> str:
    strings = [
        _cut_text(text, length, _effective_limit(limit, number in chunk.extended))
        for number, (text, length) in enumerate(zip(chunk.strings, chunk.lengths, strict=True))
    ]
    raw = f'{{"strings":{json.dumps(strings, separators=(",", ":"))},"body":{body}}}'
    return base64.b64encode(zlib.compress(_INVISIBLE.sub(_escape_match, raw).encode("ascii"))).decode("ascii")


def _effective_limit(limit: int, is_extended: bool) -> int:
    return 4 * limit if is_extended else limit


def _cut_text(text: str, length: int, limit: int) -> str | tuple[str, int, str]:
    """The text, or its two ends with the number of omitted characters between them."""
    if length <= limit:
        return text
    head, tail = _split_ends(text, limit)
    return head, length - len(head) - len(tail), tail


def _split_ends(text: str, limit: int) -> tuple[str, str]:
    """Split `limit` characters between the two ends, two thirds at the beginning."""
    if len(text) <= limit:
        return text, ""
    tail = limit // 3
    return text[: limit - tail], text[len(text) - tail :]


def _escape_match(match: re.Match[str]) -> str:
    if match["color"]:
        return ""
    escape = match[0]
    if match["allowed"]:
        return escape
    code = _SHORT_ESCAPES[escape] if escape in _SHORT_ESCAPES else int(escape[2:6], 16)
    return f"\\u24{code:02x}" if code < 0x20 else escape.replace("\\", "\\\\")
