"""Redact secrets in everything that is written: those of this process's environment, and text that looks like a key.

A known secret is found as it is, escaped as in JSON, in a shell's declaration or in a URL, and in base64 or hex.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from langgraph_takeover.base.secret_names import (
    MIN_SECRET_LENGTH,
    NO_VARIABLE,
    PASSWORD_IN_URL,
    REDACTED,
    is_secret_name,
    is_secret_value,
)

_Value = TypeVar("_Value")

# What stands before the key in the value of a header.
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|ApiKey)\s+", re.IGNORECASE)

_TOKEN_END = r"(?![\w-])"
_TOKENS = {
    "sk-": r"(?=[\w-]{0,99}?[A-Za-z0-9]{16})(?=[\w-]{0,99}?\d)[\w-]{20,}",
    "gh[pousr]_": r"[A-Za-z0-9]{36,}",
    "github_pat_": r"\w{40,}",
    "A[KS]IA": rf"(?=[A-Z]*\d)[A-Z0-9]{{16}}{_TOKEN_END}",
    "AIza": rf"[\w-]{{35}}{_TOKEN_END}",
    "xox[abprs]-": r"(?=[\w-]{0,99}?\d)[\w-]{20,}",
    "hf_": r"(?=[A-Za-z]*\d|[a-z]*[A-Z])[A-Za-z0-9]{30,}(?!\w)",
    "glpat-": r"(?=[\w-]{0,99}?\d)[\w-]{20,}",
    "pypi-AgE": r"[\w-]{50,}",
    "npm_": rf"[A-Za-z0-9]{{36}}{_TOKEN_END}",
    "sk_live_": r"[A-Za-z0-9]{16,}",
    "rk_live_": r"[A-Za-z0-9]{16,}",
    "eyJ": r"[\w-]{10,500}+\.eyJ[\w-]{10,8000}+\.[\w-]{10,}",
}
_KEY_MARK = r"[A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_PATTERNS = (
    # The part before a key is checked second, because a search is fast by the key's first letters.
    *(
        (
            re.compile(rf"{start}(?:(?<![A-Za-z0-9]{start})|(?<=\\[nrt]{start})){rest}", re.ASCII),
            REDACTED,
        )
        for start, rest in _TOKENS.items()
    ),
    (re.compile(r"(earer +)(?=\S{0,99}?\d)[\w.~+/=-]{16,}"), rf"\1{REDACTED}"),
    (
        re.compile(r"(uthorization[\"']?\s?[:=]\s?[\"']?(?:Basic|[Tt]oken) +)(?=\S{0,99}?\d)[\w.~+/=-]{16,}"),
        rf"\1{REDACTED}",
    ),
    (
        # A variable, or one word, only names a password.
        re.compile(
            rf"(://[^\s/?#:@\"'`<>\\]{{0,100}}:){NO_VARIABLE}(?=[A-Za-z]*[^A-Za-z@])[^\s/?#@\"'`<>\\]{{3,200}}(?=@)"
        ),
        rf"\1{REDACTED}",
    ),
    (
        # If it was cut, up to the cut.
        re.compile(
            rf"-----BEGIN {_KEY_MARK}(?:(?!-----)[\s\S]){{0,300}}?[A-Za-z0-9+/]{{40}}"
            rf"[A-Za-z0-9+/=\s\\\"',-]*?(?:-----END {_KEY_MARK}|(?![A-Za-z0-9+/=\s\\\"',-]))"
        ),
        REDACTED,
    ),
)


def redact(value: _Value, extra_secrets: Collection[str] = ()) -> _Value:
    """Redact known secrets and text that looks like a key, in a text or a JSON-like value; `extra_secrets` adds known secrets."""
    known = _load_known_secrets(extra_secrets)
    return _map_texts(value, lambda text: _remove_patterns(_remove_secrets(text, known)))  # type: ignore[no-any-return]


def redact_known_secrets(value: _Value, extra_secrets: Collection[str] = ()) -> _Value:
    """Redact only known secrets, in text that is executed: a test may need a made-up key."""
    known = _load_known_secrets(extra_secrets)
    return _map_texts(value, lambda text: _remove_secrets(text, known)) if known.plain else value


def find_secrets(settings: Mapping[str, Any]) -> Iterator[str]:
    """List the values that are secrets by their setting's name, and passwords in URLs."""
    for name, value in settings.items():
        if isinstance(value, str):
            yield from _find_setting_secrets(name, value)


def _map_texts(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value) if len(value) >= MIN_SECRET_LENGTH else value
    if not isinstance(value, Mapping | list | tuple):
        return value
    # One search over all texts is cheaper than one per text, and most values contain no secret.
    whole = "\n".join(_iterate_texts(value))
    part = _copy_structure if clean(whole) == whole else lambda item: _map_texts(item, clean)
    return _map_parts(value, part)


def _copy_structure(value: Any) -> Any:
    return _map_parts(value, _copy_structure) if isinstance(value, Mapping | list | tuple) else value


def _map_parts(value: Any, transform: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {transform(key): transform(item) for key, item in value.items()}
    parts = map(transform, value)
    return list(parts) if isinstance(value, list) else tuple(parts)


def _iterate_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) >= MIN_SECRET_LENGTH:
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iterate_texts(key)
            yield from _iterate_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_texts(item)


def _remove_secrets(text: str, known: SecretForms) -> str:
    content = text.encode("utf-8", "surrogatepass")
    parts, end = [], 0
    for start, stop in known.find_spans(content):
        parts += [content[end:start], REDACTED.encode()]
        end = stop
    return b"".join([*parts, content[end:]]).decode("utf-8", "surrogatepass") if parts else text


def _remove_patterns(text: str) -> str:
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _load_known_secrets(extra_secrets: Collection[str]) -> SecretForms:
    """Return the forms of the environment's secrets and of these."""
    # The environment may change while a program runs, so it is read each time; undecoded, because that takes a tenth.
    environment = getattr(os.environ, "_data", os.environ)
    return _build_cached_forms(tuple(environment.items()), tuple(extra_secrets))


@lru_cache(maxsize=8)
def _build_cached_forms(
    environment: tuple[tuple[Any, Any], ...], extra_secrets: tuple[str, ...]
) -> SecretForms:
    decoded = [(os.fsdecode(name), os.fsdecode(value)) for name, value in environment]
    secrets = {
        *extra_secrets,
        *(secret for name, value in decoded for secret in _find_setting_secrets(name, value)),
    }
    return _build_forms(secret for secret in secrets if is_secret_value(secret))


def _find_setting_secrets(name: str, value: str) -> Iterator[str]:
    if is_secret_name(name):
        yield value
        yield value.strip()
        yield _SCHEME.sub("", value.strip(), count=1)
    for password in PASSWORD_IN_URL.findall(value):
        yield password
        yield unquote(password)


_WHITE_SPACE = b" \t\r\n"
_TO_STANDARD_BASE64 = bytes.maketrans(b"-_", b"+/")
_ESCAPES = (
    re.compile(
        rb"\\(?:u(?P<high>[dD][89abAB][0-9A-Fa-f]{2})\\u(?P<low>[dD][c-fC-F][0-9A-Fa-f]{2})"
        rb"|u(?P<code>[0-9A-Fa-f]{4})|(?P<letter>[bfnrt])|(?P<mark>[\"\\/$`]))"
    ),
    re.compile(rb"%(?P<byte>[0-9A-Fa-f]{2})"),
)
"""As in JSON, with the marks that bash escapes, and as in a URL."""
_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


class SecretForms(NamedTuple):
    """The forms of some secrets."""

    plain: tuple[bytes, ...]
    base64: tuple[bytes, ...]
    hex: tuple[bytes, ...]
    """In lower case."""

    def find_spans(self, content: bytes) -> list[tuple[int, int]]:
        """Start and end of each form in the content, in order and without overlaps."""
        if not self.plain:
            return []
        found = self._find_forms(content)
        for escape in _ESCAPES:
            unescaped = escape.sub(_decode_escape, content)
            if unescaped != content and (below := self._find_forms(unescaped)):
                offsets = _compute_offsets(escape, content)
                found += [(offsets[start], offsets[stop]) for start, stop in below]
        apart: list[tuple[int, int]] = []
        for start, stop in sorted(found):
            if apart and start < apart[-1][1]:
                apart[-1] = (apart[-1][0], max(stop, apart[-1][1]))
            else:
                apart.append((start, stop))
        return apart

    def _find_forms(self, content: bytes) -> list[tuple[int, int]]:
        found = _find_occurrences(self.plain, content)
        # Digits may be wrapped and indented, and in the alphabet for URLs.
        digits = content.translate(_TO_STANDARD_BASE64, _WHITE_SPACE)
        below = _find_occurrences(self.base64, digits) + _find_occurrences(self.hex, digits.lower())
        if below:
            kept = [index for index, byte in enumerate(content) if byte not in _WHITE_SPACE]
            found += [(kept[start], kept[stop - 1] + 1) for start, stop in below]
        return found


def _build_forms(secrets: Iterable[str]) -> SecretForms:
    plain: set[bytes] = set()
    digits: set[bytes] = set()
    hexadecimal: set[bytes] = set()
    for secret in secrets:
        content = secret.encode("utf-8", "surrogatepass")
        try:
            raw = secret.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raw = content
        plain |= {content, raw, content.replace(b" ", b"+")}
        digits.update(_list_base64_forms(raw))
        hexadecimal.add(raw.hex().encode())
    return SecretForms(tuple(sorted(plain)), tuple(sorted(digits)), tuple(sorted(hexadecimal)))


def _list_base64_forms(content: bytes) -> Iterator[bytes]:
    """The digits of a content, except those that depend on its neighbours."""
    for before in range(3):
        # The digits depend on how many bytes stand before the content.
        yield base64.b64encode(bytes(before) + content)[
            -(-before * 8 // 6) : (before + len(content)) * 8 // 6
        ]


def _find_occurrences(forms: Iterable[bytes], content: bytes) -> list[tuple[int, int]]:
    found = []
    for form in forms:
        start = content.find(form)
        while start >= 0:
            found.append((start, start + len(form)))
            start = content.find(form, start + 1)
    return found


def _decode_escape(escape: re.Match[bytes]) -> bytes:
    """The bytes that an escape encodes."""
    kind = escape.lastgroup or ""
    text = escape[kind]
    if kind == "byte":
        return bytes([int(text, 16)])
    if kind in ("letter", "mark"):
        return _LETTERS.get(text, text)
    code = int(text, 16)
    if kind == "low":
        code = 0x10000 + ((int(escape["high"], 16) - 0xD800) << 10) + code - 0xDC00
    return chr(code).encode("utf-8", "surrogatepass")


def _compute_offsets(escape: re.Pattern[bytes], content: bytes) -> list[int]:
    """Where each byte of the unescaped content begins in the content; last, its end."""
    offsets: list[int] = []
    end = 0
    for match in escape.finditer(content):
        offsets += range(end, match.start())
        offsets += [match.start()] * len(_decode_escape(match))
        end = match.end()
    return [*offsets, *range(end, len(content) + 1)]
