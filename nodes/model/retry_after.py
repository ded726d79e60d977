"""The time that an endpoint asks to wait before the next request, from the headers of its refusal.

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
_DURATION_PART = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)(ms|s|m|h|d)")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FIRST_EPOCH_S, _FIRST_EPOCH_MS = 1e9, 1e12
"""Numbers from these on are points in time, in seconds and in milliseconds, instead of durations."""
_RESET_NAMES = ("x-ratelimit-reset", "ratelimit-reset")


def read_wait(status: int, headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a refusal asks to wait, at most `MAX_WAIT_S`; None if it names no usable time.

    Args:
        headers: the answer's headers. A mapping that is not HTTPX's needs names in lower case.
    """
    millis = _parse_number(headers.get("retry-after-ms"))
    wait = millis / 1000 if millis else _parse_value(headers.get("retry-after"), headers)
    # Successful answers, too, say when a limit is reset: only a 429 is about it.
    if (wait is None or wait <= 0) and status == 429:
        wait = _find_reset(headers)
    return min(wait, MAX_WAIT_S) if wait is not None and wait > 0 else None


def format_wait(seconds: float) -> str:
    """Return a time to wait as text, such as `0.5 s` or `3,600 s`."""
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.3g} s"


def _find_reset(headers: Mapping[str, str]) -> float | None:
    """Return the time until the most exhausted limit is reset; of several that are equally exhausted, the longest."""
    found = []
    for name in headers:
        prefix = next((each for each in _RESET_NAMES if name.lower().startswith(each)), None)
        wait = _parse_value(headers.get(name), headers) if prefix else None
        if prefix and wait is not None and wait > 0:
            resource = name.lower().removeprefix(prefix)
            found.append((_measure_rest(headers, prefix.removesuffix("reset"), resource), -wait))
    return -min(found)[1] if found else None


def _measure_rest(headers: Mapping[str, str], prefix: str, resource: str) -> float:
    """Return the share of a limit that is left; 0 if it is unknown."""
    limit = _parse_number(headers.get(f"{prefix}limit{resource}"))
    rest = _parse_number(headers.get(f"{prefix}remaining{resource}"))
    return min(rest / limit, 1.0) if rest and limit else float(bool(rest))


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


def _parse_duration(text: str) -> float | None:
    seconds, place = 0.0, 0
    while place < len(text):
        part = _DURATION_PART.match(text, place)
        if part is None:
            return None
        seconds, place = seconds + float(part[1]) * _UNIT_SECONDS[part[2]], part.end()
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
