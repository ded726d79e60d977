"""Parts of the page that are read one at a time: each is compressed, and its long texts are cut until all fit."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

TEXT_LIMITS = (16_000, 8_000, 4_000, 2_000, 1_400, 1_000, 700, 500, 350, 250, 175, 120, 60, 0)
"""Of one text's characters: the first with which everything fits is taken."""
_SAMPLE_STRIDE = 10
# In JSON's own escapes: what moves a cursor, reorders or ends a line, is never seen, or is half of a character.
_INVISIBLE = re.compile(
    r"\\(?:(?P<colour>u001b\[[0-9;:]*m)|(?P<kept>\\|ud(?!b40)[89ab]..\\ud[c-f]..)|udb40\\ud[c-f].."
    r"|u(?:00[0189].|007f|061c|200[b-f]|202[89a-e]|206.|feff|fff[9ab]|d[89a-f]..)|[bf]|r(?!\\n))"
)
_SHORT_ESCAPES = {"\\b": 0x08, "\\f": 0x0C, "\\r": 0x0D}


class Chunk(NamedTuple):
    """What one part holds: its body says by number where a text of `strings` belongs."""

    strings: tuple[str, ...]
    lengths: tuple[int, ...]
    """Of the whole texts: the strings are cut to what is shown at most already."""
    extended: frozenset[int]
    """Which of the strings are worth four times as much."""
    body: Any


class TextPool:
    """The texts of a chunk, each held once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._roomy: set[int] = set()

    def __call__(self, text: str, *, is_extended: bool = False) -> int:
        """The number that the text goes by."""
        number = self._numbers.setdefault(text, len(self._numbers))
        if is_extended:
            self._roomy.add(number)
        return number

    def build_chunk(self, body: Any) -> Chunk:
        texts = tuple(self._numbers)
        most = [_effective_limit(TEXT_LIMITS[0], number in self._roomy) for number in range(len(texts))]
        strings = tuple("".join(_split_ends(text, n)) for text, n in zip(texts, most, strict=True))
        return Chunk(strings, tuple(map(len, texts)), frozenset(self._roomy), body)


class PackedChunks(NamedTuple):
    """Chunks as text, and the limit that their strings were cut to; None where none was."""

    chunks: tuple[str, ...]
    limit: int | None


def pack_chunks(chunks: Sequence[Chunk], max_chars: int) -> PackedChunks:
    """All chunks in at most so many characters, as long as that can be had by cutting strings."""
    bodies = [json.dumps(chunk.body, separators=(",", ":")) for chunk in chunks]
    both = list(zip(chunks, bodies, strict=True))
    whole: list[str] = []
    limit = TEXT_LIMITS[0]
    for limit in TEXT_LIMITS:
        sample = both[::_SAMPLE_STRIDE] if len(both) > 2 * _SAMPLE_STRIDE and limit else []
        if sum(len(_pack_chunk(*each, limit)) for each in sample) * len(both) > max_chars * len(sample):
            continue
        whole, size = [], 0
        for each in both:
            whole.append(_pack_chunk(*each, limit))
            size += len(whole[-1])
            if size > max_chars and limit:
                break
        else:
            break
    cut = any(
        length > _effective_limit(limit, number in chunk.extended)
        for chunk in chunks
        for number, length in enumerate(chunk.lengths)
    )
    return PackedChunks(tuple(whole), limit if cut else None)


def escape_invisible(text: str) -> str:
    """The text with whatever is not seen, or moves what is, in a form that is seen; without colours."""
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
    """The text, or its two ends with the number of characters between them."""
    if length <= limit:
        return text
    head, tail = _split_ends(text, limit)
    return head, length - len(head) - len(tail), tail


def _split_ends(text: str, limit: int) -> tuple[str, str]:
    """Twice as much of the beginning as of the end."""
    if len(text) <= limit:
        return text, ""
    tail = limit // 3
    return text[: limit - tail], text[len(text) - tail :]


def _escape_match(match: re.Match[str]) -> str:
    if match["colour"]:
        return ""
    said = match[0]
    if match["kept"]:
        return said
    code = _SHORT_ESCAPES[said] if said in _SHORT_ESCAPES else int(said[2:6], 16)
    return f"\\u24{code:02x}" if code < 0x20 else said.replace("\\", "\\\\")
