"""Parts of the page that are read one at a time: each is compressed, and its long texts are cut until all fit."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

LIMITS = (16_000, 8_000, 4_000, 2_000, 1_400, 1_000, 700, 500, 350, 250, 175, 120, 60, 0)
"""Of one text's characters: the first with which everything fits is taken."""
_SAMPLE = 10
# In JSON's own escapes: what moves a cursor, reorders or ends a line, is never seen, or is half of a character.
_UNSEEN = re.compile(
    r"\\(?:(?P<colour>u001b\[[0-9;:]*m)|(?P<kept>\\|ud(?!b40)[89ab]..\\ud[c-f]..)|udb40\\ud[c-f].."
    r"|u(?:00[0189].|007f|061c|200[b-f]|202[89a-e]|206.|feff|fff[9ab]|d[89a-f]..)|[bf]|r(?!\\n))"
)
_SHORT = {"\\b": 0x08, "\\f": 0x0C, "\\r": 0x0D}


class Chunk(NamedTuple):
    """What one part holds: its body says by number where a text of `strings` belongs."""

    strings: tuple[str, ...]
    lengths: tuple[int, ...]
    """Of the whole texts: the strings are cut to what is shown at most already."""
    roomy: frozenset[int]
    """Which of the strings are worth four times as much."""
    body: Any


class Pool:
    """The texts of a chunk, each held once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._roomy: set[int] = set()

    def __call__(self, text: str, *, roomy: bool = False) -> int:
        """The number that the text goes by."""
        number = self._numbers.setdefault(text, len(self._numbers))
        if roomy:
            self._roomy.add(number)
        return number

    def chunk(self, body: Any) -> Chunk:
        texts = tuple(self._numbers)
        most = [_allowed(LIMITS[0], number in self._roomy) for number in range(len(texts))]
        strings = tuple("".join(_ends(text, n)) for text, n in zip(texts, most, strict=True))
        return Chunk(strings, tuple(map(len, texts)), frozenset(self._roomy), body)


class Packed(NamedTuple):
    """Chunks as text, and the limit that their strings were cut to; None where none was."""

    chunks: tuple[str, ...]
    limit: int | None


def packed(chunks: Sequence[Chunk], room: int) -> Packed:
    """All chunks in at most so many characters, as long as that can be had by cutting strings."""
    bodies = [json.dumps(chunk.body, separators=(",", ":")) for chunk in chunks]
    both = list(zip(chunks, bodies, strict=True))
    whole: list[str] = []
    limit = LIMITS[0]
    for limit in LIMITS:
        sample = both[::_SAMPLE] if len(both) > 2 * _SAMPLE and limit else []
        if sum(len(_pack(*each, limit)) for each in sample) * len(both) > room * len(sample):
            continue
        whole, size = [], 0
        for each in both:
            whole.append(_pack(*each, limit))
            size += len(whole[-1])
            if size > room and limit:
                break
        else:
            break
    cut = any(
        length > _allowed(limit, number in chunk.roomy)
        for chunk in chunks
        for number, length in enumerate(chunk.lengths)
    )
    return Packed(tuple(whole), limit if cut else None)


def shown(text: str) -> str:
    """The text with whatever is not seen, or moves what is, in a form that is seen; without colours."""
    return str(json.loads(_UNSEEN.sub(_seen, json.dumps(text))))


def _pack(chunk: Chunk, body: str, limit: int) -> str:
    strings = [
        _cut(text, length, _allowed(limit, number in chunk.roomy))
        for number, (text, length) in enumerate(zip(chunk.strings, chunk.lengths, strict=True))
    ]
    raw = f'{{"strings":{json.dumps(strings, separators=(",", ":"))},"body":{body}}}'
    return base64.b64encode(zlib.compress(_UNSEEN.sub(_seen, raw).encode("ascii"))).decode("ascii")


def _allowed(limit: int, roomy: bool) -> int:
    return 4 * limit if roomy else limit


def _cut(text: str, length: int, limit: int) -> str | tuple[str, int, str]:
    """The text, or its two ends with the number of characters between them."""
    if length <= limit:
        return text
    head, tail = _ends(text, limit)
    return head, length - len(head) - len(tail), tail


def _ends(text: str, limit: int) -> tuple[str, str]:
    """Twice as much of the beginning as of the end."""
    if len(text) <= limit:
        return text, ""
    tail = limit // 3
    return text[: limit - tail], text[len(text) - tail :]


def _seen(found: re.Match[str]) -> str:
    if found["colour"]:
        return ""
    said = found[0]
    if found["kept"]:
        return said
    code = _SHORT[said] if said in _SHORT else int(said[2:6], 16)
    return f"\\u24{code:02x}" if code < 0x20 else said.replace("\\", "\\\\")
