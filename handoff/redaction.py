"""Secrets taken out of whatever is written down: those of this process's environment, and what looks like a key."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, unquote

REDACTED = "[redacted]"
_LEAST = 8
_Value = TypeVar("_Value")

_SECRET_NAME = re.compile(
    r"(?:^|[^A-Z0-9])(?:KEYS?|AUTH|PRIVATE|DSN|PASS|PWD|CREDS?"
    r"|[A-Z0-9]*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|(?:API|ACCESS|SECRET|PRIVATE)KEY)S?)(?:[^A-Z0-9]|$)",
    re.IGNORECASE,
)
# What stands for itself in any program, so that taking it out would spoil the work.
_INNOCUOUS = re.compile(
    r"""[A-Za-z]{1,15}                                     # one word
    | [A-Za-z_]+(?:\.[A-Za-z_]+)+                          # a dotted name
    | [-+.,:\d]+                                           # a number, a version, an address
    | (?:~|\.\.?)?/ | (?:~|\.\.?)/\S* | /[A-Z]?[a-z]+(?:/\S*)?   # a path
    | [a-z][a-z0-9+.-]*://[^\s@?]*                         # an address on the net, without user and query""",
    re.VERBOSE,
)
_NO_VARIABLE = r"(?![${<%*\[])"
_PASSWORD_IN_URL = re.compile(rf"://[^\s/?#:@]*:{_NO_VARIABLE}([^\s/?#@]+)@")

_END = r"(?![\w-])"
_TOKENS = {
    "sk-": r"(?=[\w-]{0,99}?[A-Za-z0-9]{16})(?=[\w-]{0,99}?\d)[\w-]{20,}",
    "gh[pousr]_": r"[A-Za-z0-9]{36,}",
    "github_pat_": r"\w{40,}",
    "A[KS]IA": rf"(?=[A-Z]*\d)[A-Z0-9]{{16}}{_END}",
    "AIza": rf"[\w-]{{35}}{_END}",
    "xox[abprs]-": r"(?=[\w-]{0,99}?\d)[\w-]{20,}",
    "hf_": r"(?=[A-Za-z]*\d|[a-z]*[A-Z])[A-Za-z0-9]{30,}(?!\w)",
    "glpat-": r"(?=[\w-]{0,99}?\d)[\w-]{20,}",
    "pypi-AgE": r"[\w-]{50,}",
    "npm_": rf"[A-Za-z0-9]{{36}}{_END}",
    "sk_live_": r"[A-Za-z0-9]{16,}",
    "rk_live_": r"[A-Za-z0-9]{16,}",
    "eyJ": r"[\w-]{10,500}+\.eyJ[\w-]{10,8000}+\.[\w-]{10,}",
}
_KEY_MARK = r"[A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
_PATTERNS = (
    # What stands before comes second, because a search is quick by the letters that it begins with.
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
        # A variable, or one word, only stands for a password.
        re.compile(
            rf"(://[^\s/?#:@\"'`<>\\]{{0,100}}:){_NO_VARIABLE}(?=[A-Za-z]*[^A-Za-z@])[^\s/?#@\"'`<>\\]{{3,200}}(?=@)"
        ),
        rf"\1{REDACTED}",
    ),
    (
        # Where it was cut, up to where it was.
        re.compile(
            rf"-----BEGIN {_KEY_MARK}(?:(?!-----)[\s\S]){{0,300}}?[A-Za-z0-9+/]{{40}}"
            rf"[A-Za-z0-9+/=\s\\\"',-]*?(?:-----END {_KEY_MARK}|(?![A-Za-z0-9+/=\s\\\"',-]))"
        ),
        REDACTED,
    ),
)


def redacted(value: _Value, also: Collection[str] = ()) -> _Value:
    """A text or a JSON-like value without known secrets, and without what looks like a key; `also` are others known."""
    known = _known(also)
    return _each(value, lambda text: _without_patterns(_without(text, known)))  # type: ignore[no-any-return]


def without_known(value: _Value, also: Collection[str] = ()) -> _Value:
    """The same without known secrets alone: for what is carried out, where a key may be made up for a test."""
    known = _known(also)
    return _each(value, lambda text: _without(text, known)) if known else value


def _each(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value) if len(value) >= _LEAST else value
    if isinstance(value, Mapping):
        return {_each(key, clean): _each(item, clean) for key, item in value.items()}
    if isinstance(value, list):
        return [_each(item, clean) for item in value]
    if isinstance(value, tuple):
        return tuple(_each(item, clean) for item in value)
    return value


def _without(text: str, known: tuple[str, ...]) -> str:
    for form in known:
        if form in text:
            text = text.replace(form, REDACTED)
    return text


def _without_patterns(text: str) -> str:
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def _known(also: Collection[str]) -> tuple[str, ...]:
    """Every form in which a known secret may stand in a text, the longest first."""
    # It may change while a program runs, so it is looked at each time; undecoded, because that takes a tenth.
    environment = getattr(os.environ, "_data", os.environ)
    return _forms(tuple(environment.items()), tuple(also))


@lru_cache(maxsize=8)
def _forms(environment: tuple[tuple[Any, Any], ...], also: tuple[str, ...]) -> tuple[str, ...]:
    decoded = [(os.fsdecode(name), os.fsdecode(value)) for name, value in environment]
    secrets = {*also, *(secret for name, value in decoded for secret in _secrets(name, value))}
    found = {form for secret in secrets if _is_secret(secret) for form in _written(secret)}
    return tuple(sorted(found, key=lambda form: (-len(form), form)))


def _secrets(name: str, value: str) -> Iterator[str]:
    if _SECRET_NAME.search(name):
        yield value
        yield value.strip()
    for password in _PASSWORD_IN_URL.findall(value):
        yield password
        yield unquote(password)


def _is_secret(value: str) -> bool:
    return len(value) >= _LEAST and value not in REDACTED and not _INNOCUOUS.fullmatch(value)


def _written(secret: str) -> Iterator[str]:
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield re.sub(r'([$`"\\])', r"\\\1", secret)  # as bash declares a variable
    content = secret.encode("utf-8", "surrogateescape")
    yield quote(content, safe="")
    for before in range(3):
        # In base64 it depends on how many bytes stand before, and the first and last digits on which.
        whole = base64.b64encode(b"\0" * before + content)[
            -(-before * 8 // 6) : (before + len(content)) * 8 // 6
        ]
        yield whole.decode()
        yield whole.translate(bytes.maketrans(b"+/", b"-_")).decode()
