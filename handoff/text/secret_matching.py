"""Find a secret in a text in any spelling: escaped, encoded, reversed, or with separators between its digits."""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from html.entities import html5
from itertools import chain
from urllib.parse import quote

_ALL_BYTES = bytes(range(256))
_PRINTABLE_BYTES = frozenset(b"\0\t\n\r") | frozenset(range(0x20, 0x7F))
_NON_BASE64_BYTES = bytes(byte for byte in _ALL_BYTES if not re.match(rb"[A-Za-z0-9+/_-]", bytes([byte])))
_NON_ALPHANUMERIC_BYTES = bytes(byte for byte in _ALL_BYTES if not re.match(rb"[A-Za-z0-9]", bytes([byte])))
_TO_STANDARD_BASE64 = bytes.maketrans(b"-_", b"+/")
_TO_URL_BASE64 = bytes.maketrans(b"+/", b"-_")
_TO_LOWERCASE = bytes.maketrans(_ALL_BYTES, _ALL_BYTES.lower())
_WORD_BYTES = 8
"""Bytes per word of the prefilter; memoryview reads so many as one integer."""

_DIGIT_RUN = rb"[A-Za-z0-9+/_-]{20}"
# Secrets consist of printable ASCII, with NUL between its characters in UTF-16, and stand in lines. Ordinary text is
# full of other escapes.
_HEX = rb"[2-7][0-9A-Fa-f]|0[09AaDd]"
_ESCAPES = (
    re.compile(
        rb"\\(?:x(?P<x>" + _HEX + rb")|u(?:00|\{0{0,4})(?P<u>" + _HEX + rb")\}?|U0{6}(?P<U>" + _HEX + rb")"
        rb"|(?P<octal>000|01[125]|0[4-7][0-7]|1[0-7]{2})"
        rb"|(?P<again>\\(?:(?=\\{0,6}[xuU01])|(?=[nrt])(?<=" + _DIGIT_RUN + rb"\\\\)))"
        # A line end inside wrapped digits, as JSON writes it.
        rb"|[nrt](?P<pair>\\[nrt])?+(?P<line>(?=" + _DIGIT_RUN + rb")"
        rb"|(?(pair)(?<=" + _DIGIT_RUN + rb"\\[nrt]\\[nrt])|(?<=" + _DIGIT_RUN + rb"\\[nrt]))))"
    ),
    re.compile(rb"%(?:u00)?(?P<x>" + _HEX + rb")"),
    re.compile(
        rb"&(?:#0{0,6}(?P<decimal>[0-9]{1,3})|#[xX]0{0,6}(?P<x>"
        + _HEX
        + rb"|[9AaDd])|(?P<name>[A-Za-z]{2,6}));?"
    ),
)
# Where a line begins in a patch, a list, a comment, or behind its number as `cat -n` and `grep -n` show it.
_LINE_START = re.compile(
    rb"\n[ \t]*(?:(?:[^\s:]{0,200}[:-])?[0-9]{1,9}(?:[:\s-]|\\t))?[+-]?[ \t]*(?:(?://+|--|[-+*])[ \t]+|//)?"
)
_MAX_ESCAPE_BYTES = 12
_MAX_STEP = 6
"""Maximum distance of the words of the prefilter, in words, so that a wrapped line of 60 digits holds one."""
_MAX_ESCAPE_DEPTH = 3
"""Maximum depth of escapes that are escaped themselves."""


@dataclass(frozen=True)
class SecretForms:
    """The forms of some secrets, sorted by the reading of a text in which each is found."""

    plain: tuple[bytes, ...]
    """In the text as it is."""
    digits: tuple[bytes, ...]
    """In its base64 digits alone."""
    lower: tuple[bytes, ...]
    """In its ASCII letters and digits alone, in lower case."""
    words: frozenset[int]
    """The words of all long `digits` and `lower`: a text in which none is found holds none of these forms."""
    step: int
    """The distance of the words that must be looked at, in words."""
    context_bytes: int
    """Maximum bytes between an escape and the ends of a form that contains it."""

    def find_spans(self, content: bytes) -> list[tuple[int, int]]:
        """Start and end of each form in the content, in order and without overlaps."""
        if not self.plain:
            return []
        found = self._find_forms(content)
        for start, stop in self._find_escaped_parts(content):
            part = unescaped = content[start:stop]
            for rounds in range(1, _MAX_ESCAPE_DEPTH + 1):
                before, unescaped = unescaped, _unescape(unescaped)
                if unescaped == before:
                    break
                if below := self._find_forms(unescaped):
                    offsets = _compute_offsets(part, rounds)
                    found += [(start + offsets[first], start + offsets[last]) for first, last in below]
        apart: list[tuple[int, int]] = []
        for start, stop in sorted(found):
            if apart and start < apart[-1][1]:
                apart[-1] = (apart[-1][0], max(stop, apart[-1][1]))
            else:
                apart.append((start, stop))
        return apart

    def _find_escaped_parts(self, content: bytes) -> Iterator[tuple[int, int]]:
        """The parts of a content around its escapes, as far as a form may reach."""
        escapes = chain.from_iterable(escape.finditer(content) for escape in _ESCAPES)
        start, stop = 0, 0
        for position in sorted(match.start() for match in escapes):
            if position - self.context_bytes > stop:
                if stop:
                    yield start, stop
                start = position - self.context_bytes
            stop = position + self.context_bytes
        if stop:
            yield start, stop

    def _find_forms(self, content: bytes) -> list[tuple[int, int]]:
        found = [span for form in self.plain for span in _find_occurrences(form, content)]
        letters = content.translate(_TO_LOWERCASE, _NON_ALPHANUMERIC_BYTES)
        sample = memoryview(letters)[: len(letters) // _WORD_BYTES * _WORD_BYTES].cast("Q")[:: self.step or 1]
        if self.step and self.words.isdisjoint(sample):
            return found
        # What begins a line may be digits too, so each reading finds forms that the other does not.
        for reading in {content, _LINE_START.sub(_replace_with_newlines, content)}:
            digits, letters = (
                reading.translate(_TO_STANDARD_BASE64, _NON_BASE64_BYTES),
                reading.translate(_TO_LOWERCASE, _NON_ALPHANUMERIC_BYTES),
            )
            within = [span for form in self.digits for span in _find_occurrences(form, digits)]
            if within:
                found += _map_to_original(within, reading, _NON_BASE64_BYTES)
            within = [span for form in self.lower for span in _find_occurrences(form, letters)]
            if within:
                found += _map_to_original(within, reading, _NON_ALPHANUMERIC_BYTES)
        return found


def build_secret_forms(secrets: Iterable[str]) -> SecretForms:
    """The forms of these secrets."""
    plain: set[bytes] = set()
    digits: set[bytes] = set()
    lower: set[bytes] = set()
    for secret in secrets:
        content, written = _encode(secret), set(_list_text_forms(secret))
        backwards = secret[::-1].encode("utf-8", "surrogatepass")
        # UTF-16 of either byte order, without the zero byte at the end or the start.
        wide = {
            secret.encode("utf-16-le", "surrogatepass").rstrip(b"\0"),
            secret.encode("utf-16-be", "surrogatepass").lstrip(b"\0"),
        }
        plain |= {*written, *wide, backwards, codecs.encode(secret, "rot13").encode("utf-8", "surrogatepass")}
        plain |= set(_list_unescaped_forms(content))
        for each in {content, *written, *wide, backwards}:
            digits.update(_list_base64_forms(each))
            lower.add(each.hex().encode())
        # Encoded twice.
        base64_forms = {
            form for each in _list_base64_forms(content) for form in (each, each.translate(_TO_URL_BASE64))
        }
        for fragment in (*base64_forms, content.hex().encode(), content.hex().upper().encode()):
            digits.update(_list_base64_forms(fragment))
            lower.add(fragment.hex().encode())
        lower.update(_list_base32_forms(content))
        lower.add("".join(map(str, content)).encode())
        lower.add("".join(f"0x{byte:02x}" for byte in content).encode())
    encoded = [*(form.translate(_TO_LOWERCASE, _NON_ALPHANUMERIC_BYTES) for form in digits), *lower]
    # Where a line end cuts a form in two, the longer part covers a whole word of a text wherever it begins.
    shortest = min(map(len, encoded), default=0)
    step = 0
    if shortest >= 2 * _WORD_BYTES - 1:
        step = max(min((shortest // 2 - _WORD_BYTES + 1) // _WORD_BYTES, _MAX_STEP), 1)
    words = {
        form[start : start + _WORD_BYTES] for form in encoded for start in range(len(form) - _WORD_BYTES + 1)
    }
    return SecretForms(
        plain=tuple(sorted(plain)),
        digits=tuple(sorted(digits)),
        lower=tuple(sorted(lower)),
        words=frozenset(memoryview(b"".join(words)).cast("Q")),
        step=step,
        context_bytes=_MAX_ESCAPE_BYTES * max(map(len, (*plain, *encoded)), default=0),
    )


def _encode(secret: str) -> bytes:
    try:
        return secret.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return secret.encode("utf-8", "surrogatepass")


def _list_text_forms(secret: str) -> Iterator[bytes]:
    percent = quote(_encode(secret), safe="")
    for form in (
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        re.sub(r'([$`"\\])', r"\\\1", secret),  # as bash declares a variable
        secret.replace("/", "\\/"),  # as PHP writes JSON
        percent,
        re.sub("%..", lambda escape: escape[0].lower(), percent),
    ):
        yield form.encode("utf-8", "surrogatepass")


def _list_unescaped_forms(content: bytes) -> Iterator[bytes]:
    """A secret after its own characters are decoded as escapes, like the surrounding text."""
    for _ in range(_MAX_ESCAPE_DEPTH):
        for escape in _ESCAPES:
            unescaped = escape.sub(_decode_escape, content)
            if unescaped != content and len(unescaped) >= _WORD_BYTES:
                yield unescaped
            content = unescaped


def _list_base64_forms(content: bytes) -> Iterator[bytes]:
    """The digits of a content, except those that depend on its neighbours."""
    for before in range(3):
        # The digits depend on how many bytes stand before the content.
        whole = base64.b64encode(bytes(before) + content)
        yield whole[-(-before * 8 // 6) : (before + len(content)) * 8 // 6]


def _list_base32_forms(content: bytes) -> Iterator[bytes]:
    for before in range(5):
        whole = base64.b32encode(bytes(before) + content).lower()
        yield whole[-(-before * 8 // 5) : (before + len(content)) * 8 // 5]


def _find_occurrences(form: bytes, content: bytes) -> Iterator[tuple[int, int]]:
    start = content.find(form)
    while start >= 0:
        yield start, start + len(form)
        start = content.find(form, start + 1)


def _replace_with_newlines(start: re.Match[bytes]) -> bytes:
    """As many line ends, so that later lines keep their numbers."""
    return b"\n" * len(start[0])


def _map_to_original(
    spans: Iterable[tuple[int, int]], content: bytes, removed_bytes: bytes
) -> Iterator[tuple[int, int]]:
    """Where spans of a content without some of its bytes lie in the whole content."""
    kept = [index for index, byte in enumerate(content) if byte not in removed_bytes]
    return ((kept[start], kept[stop - 1] + 1) for start, stop in spans)


def _unescape(content: bytes) -> bytes:
    for escape in _ESCAPES:
        content = escape.sub(_decode_escape, content)
    return content


def _compute_offsets(content: bytes, rounds: int) -> list[int]:
    """Where each byte of the content begins after so many rounds of unescaping; last, its end."""
    offsets = list(range(len(content) + 1))
    for _ in range(rounds):
        for escape in _ESCAPES:
            parts: list[bytes] = []
            kept: list[int] = []
            end = 0
            for match in escape.finditer(content):
                start, unescaped = match.start(), _decode_escape(match)
                parts += [content[end:start], unescaped]
                kept += offsets[end:start] + [offsets[start]] * len(unescaped)
                end = match.end()
            content, offsets = b"".join([*parts, content[end:]]), kept + offsets[end:]
    return offsets


def _decode_escape(escape: re.Match[bytes]) -> bytes:
    """The bytes that an escape encodes."""
    kind = escape.lastgroup or ""
    return _decode_byte(kind, escape[kind]) or escape[0]


@lru_cache(maxsize=4096)
def _decode_byte(kind: str, text: bytes) -> bytes:
    """The byte, or nothing where it is neither printable ASCII, NUL nor white space."""
    if kind == "line":
        return b"\n"
    if kind == "again":
        return b"\\"
    if kind == "name":
        character = html5.get(f"{text.decode()};", "")
        code = ord(character) if len(character) == 1 else -1
    else:
        code = int(text, {"octal": 8, "decimal": 10}.get(kind, 16))
    return bytes([code]) if code in _PRINTABLE_BYTES else b""
