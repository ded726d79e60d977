"""Redact secrets in everything that is written: those of this process's environment, and text that looks like a key."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote

from langgraph_takeover.handoff.text.secret_matching import SecretForms, build_secret_forms

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 8
_Value = TypeVar("_Value")

_SECRET_NAME = re.compile(
    r"(?:^|[^A-Z0-9])(?:KEYS?|AUTH(?:ORIZATION)?|PRIVATE|DSN|PASS|PWD|CREDS?"
    r"|[A-Z0-9]*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|(?:API|ACCESS|SECRET|PRIVATE)KEY)S?)(?:[^A-Z0-9]|$)",
    re.IGNORECASE,
)
# Values that are ordinary words of any program; redacting them would damage the work.
_NOT_A_SECRET = re.compile(
    r"""[A-Za-z]{1,15}                                     # one word
    | [A-Za-z_]+(?:\.[A-Za-z_]+)+                          # a dotted name
    | [-+.,:\d]+                                           # a number, a version, an address
    | (?:~|\.\.?)?/ | (?:~|\.\.?)/\S* | /[A-Z]?[a-z]+(?:/\S*)?   # a path
    | [a-z][a-z0-9+.-]*://[^\s@?]*                         # an address on the net, without user and query""",
    re.VERBOSE,
)
# What stands before the key in the value of a header.
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|ApiKey)\s+", re.IGNORECASE)
_NO_VARIABLE = r"(?![${<%*\[])"
_PASSWORD_IN_URL = re.compile(rf"://[^\s/?#:@]*:{_NO_VARIABLE}([^\s/?#@]+)@")

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
            rf"(://[^\s/?#:@\"'`<>\\]{{0,100}}:){_NO_VARIABLE}(?=[A-Za-z]*[^A-Za-z@])[^\s/?#@\"'`<>\\]{{3,200}}(?=@)"
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


def is_secret_name(name: str) -> bool:
    """Whether a setting or variable of that name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def is_secret_setting(name: str, value: str) -> bool:
    """Whether a setting's value is a secret: by its name, and because the value is more than a word or a number."""
    return is_secret_name(name) and _is_secret(value)


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
    """Return the pattern of each known secret in all its spellings."""
    # The environment may change while a program runs, so it is read each time; undecoded, because that takes a tenth.
    environment = getattr(os.environ, "_data", os.environ)
    return _build_cached_spellings(tuple(environment.items()), tuple(extra_secrets))


@lru_cache(maxsize=8)
def _build_cached_spellings(
    environment: tuple[tuple[Any, Any], ...], extra_secrets: tuple[str, ...]
) -> SecretForms:
    decoded = [(os.fsdecode(name), os.fsdecode(value)) for name, value in environment]
    secrets = {
        *extra_secrets,
        *(secret for name, value in decoded for secret in _find_setting_secrets(name, value)),
    }
    return build_secret_forms(secret for secret in secrets if _is_secret(secret))


def _find_setting_secrets(name: str, value: str) -> Iterator[str]:
    if _SECRET_NAME.search(name):
        yield value
        yield value.strip()
        yield _SCHEME.sub("", value.strip(), count=1)
    for password in _PASSWORD_IN_URL.findall(value):
        yield password
        yield unquote(password)


def _is_secret(value: str) -> bool:
    return len(value) >= MIN_SECRET_LENGTH and value not in REDACTED and not _NOT_A_SECRET.fullmatch(value)
