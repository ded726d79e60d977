"""The time that an endpoint asks to wait before the next request, from the headers of its refusal or its text.

An endpoint is not trusted: a value that is not a positive time is ignored, and the caller chooses its own pause.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_WAIT_S = 1e9
"""Longer waits count as this one, which no budget allows."""
_MAX_VALUE_CHARS = 64
_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?")
_DURATION_PART = re.compile(
    r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s?"
    r"(ms|s|m|h|d|milliseconds?|seconds?|secs?|minutes?|mins?|hours?|days?)(?![a-z])[\s,]{0,2}",
    re.IGNORECASE,
)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FIRST_EPOCH_S, _FIRST_EPOCH_MS = 1e9, 1e12
"""Numbers from these on are points in time, in seconds and in milliseconds, instead of durations."""
_RESET_NAME = re.compile(r"(.{0,40}rate-?limit.{0,40}-)reset((?:-.{0,40})?)", re.IGNORECASE)
"""Headers such as `x-ratelimit-reset-tokens` and `anthropic-ratelimit-tokens-reset`."""
_WAIT_IN_TEXT = re.compile(
    r"(?:\bretryDelay\W{1,6}|\bX-RateLimit-Reset\W{1,6}|\b(?:try again|retry|wait) (?:in|after|for) )"
    r"([0-9][0-9a-z., ]{0,50})",
    re.IGNORECASE,
)
"""A wait that a refusal names in its text, as endpoints without headers for it do."""
_MAX_SEARCHED_CHARS = 10_000


def read_wait(status: int, headers: Mapping[str, str], text: str = "") -> float | None:
    """Return the seconds that a refusal asks to wait, at most `MAX_WAIT_S`; None if it names no usable time.

    Args:
        headers: the answer's headers. A mapping that is not HTTPX's needs names in lower case.
        text: the answer's content, which is searched if no header names a time.
    """
    millis = _parse_number(headers.get("retry-after-ms"))
    wait = millis / 1000 if millis else _parse_value(headers.get("retry-after"), headers)
    # Successful answers, too, say when a limit is reset: only a 429 is about it.
    if (wait is None or wait <= 0) and status == 429:
        wait = _find_reset(headers)
    if wait is None or wait <= 0:
        wait = _find_in_text(text[:_MAX_SEARCHED_CHARS], headers)
    return min(wait, MAX_WAIT_S) if wait is not None and wait > 0 else None


def format_wait(seconds: float) -> str:
    """Return a time to wait as text, such as `0.5 s` or `3,600 s`."""
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.3g} s"


def _find_reset(headers: Mapping[str, str]) -> float | None:
    """Return the time until the most exhausted limit is reset; of several that are equally exhausted, the longest."""
    found = []
    for name in headers:
        match = _RESET_NAME.fullmatch(name.lower())
        wait = _parse_value(headers.get(name), headers) if match else None
        if match and wait is not None and wait > 0:
            found.append((_measure_rest(headers, match[1], match[2]), -wait))
    return -min(found)[1] if found else None


def _measure_rest(headers: Mapping[str, str], prefix: str, resource: str) -> float:
    """Return the share of a limit that is left; 0 if it is unknown."""
    limit = _parse_number(headers.get(f"{prefix}limit{resource}"))
    rest = _parse_number(headers.get(f"{prefix}remaining{resource}"))
    return min(rest / limit, 1.0) if rest and limit else float(bool(rest))


def _find_in_text(text: str, headers: Mapping[str, str]) -> float | None:
    """Return the first wait that a text names, such as `try again in 12.5s`."""
    match = _WAIT_IN_TEXT.search(text)
    if match is None:
        return None
    seconds = _parse_duration(match[1], is_prefix=True)
    number = re.match(r"[0-9]{1,20}(?:\.[0-9]{1,20})?", match[1])
    return seconds if seconds or not number else _parse_value(number[0], headers)


def _parse_value(text: str | None, headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a number, a duration such as `1m30.5s`, or a point in time."""
    text = (text or "").strip()
    if not text or len(text) > _MAX_VALUE_CHARS:
        return None
    if (number := _parse_number(text)) is not None:
        if number < _FIRST_EPOCH_S:
            return number
        return (number / 1000 if number >= _FIRST_EPOCH_MS else number) - _read_clock(headers)
    if (duration := _parse_duration(text)) is not None:
        return duration
    moment = _parse_time(text)
    return None if moment is None else moment - _read_clock(headers)


def _parse_number(text: str | None) -> float | None:
    text = (text or "")[: _MAX_VALUE_CHARS + 1].strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _parse_duration(text: str, *, is_prefix: bool = False) -> float | None:
    """Return the seconds of a duration; with `is_prefix`, other text may follow it."""
    seconds, place = 0.0, 0
    while place < len(text):
        part = _DURATION_PART.match(text, place)
        if part is None:
            return seconds if is_prefix and place else None
        unit = part[2].lower()
        seconds += float(part[1]) * _UNIT_SECONDS["ms" if unit.startswith(("ms", "mil")) else unit[0]]
        place = part.end()
    return seconds


def _parse_time(text: str) -> float | None:
    """Return an HTTP date, or one of ISO 8601, as seconds since the epoch."""
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = parse(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


def _read_clock(headers: Mapping[str, str]) -> float:
    """Return the present time of the endpoint, whose clock may differ from this host's."""
    date = (headers.get("date") or "")[:_MAX_VALUE_CHARS]
    moment = _parse_time(date) if date else None
    return time.time() if moment is None else moment
