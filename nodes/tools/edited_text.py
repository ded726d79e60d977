"""The text of a file before and after an edit; an edit takes the line ending of its place."""

from __future__ import annotations

import re
from collections.abc import Sequence

from langgraph_takeover.base.values import TakeoverError

_CONTEXT_LINES = 4
_MAX_MATCHES = 10
"""Matches that a refusal lists; the rest is not counted, which would take long in a text of one letter."""
_BYTE_ORDER_MARK = "\ufeff"


class EditError(TakeoverError, ValueError):
    """The edit cannot be made; the message says what to send instead."""


def replace_text(text: str, old: str, new: str, path: str) -> str:
    """Return the text with the only match of `old` replaced. Only bytes that differ between old and new change.

    A line feed in `old` matches CRLF too. Raises EditError without a match, or with several, which may overlap.
    """
    if not old:
        raise EditError("old is empty; use insert to add lines")
    start, end = _find_only_match(text, old, path)
    place, new = text[start:end], _normalize(new, text)
    shown = _to_line_feeds(place)
    head = _count_common_prefix(shown, new)
    tail = _count_common_prefix(shown[head:][::-1], new[head:][::-1])
    first, last = start + _locate(place, head), start + _locate(place, len(shown) - tail)
    changed = new[head : len(new) - tail]
    if text.startswith(("\n", "\r\n"), last):
        changed = changed.removesuffix("\r")  # would make CRLF of the line feed
    edited = text[:first] + _fit_line_endings(changed, text, first, last) + text[last:]
    if edited == text:
        raise EditError("old and new are the same; change line endings alone with the shell")
    return edited


def insert_text(text: str, line: int, new: str, path: str) -> str:
    """Return the text with new lines after a line, 0 for the top. Raises EditError beyond the last line."""
    lines = split_lines(text)
    if line > len(lines):
        raise EditError(f"{path} has only {len(lines)} lines; cannot insert after line {line}")
    new = end_last_line(_normalize(new, text))
    place = sum(map(len, lines[:line]))
    if line and not lines[line - 1].endswith("\r" if _has_only_returns(text) else "\n"):
        new = ("\r\n" if new.endswith("\r\n") else "\n") + new
    if line == 0 and text.startswith(_BYTE_ORDER_MARK):
        place = 1
    # New lines end as the line before them; those at the top, as the line after them.
    near = place - len(lines[line - 1]) if line else place
    return text[:place] + _fit_line_endings(new, text, near, near) + text[place:]


def end_last_line(text: str) -> str:
    """Return new text that ends as its other lines do."""
    return text if text.endswith("\n") else text.removesuffix("\r") + ("\r\n" if "\r\n" in text else "\n")


def split_lines(text: str) -> list[str]:
    """Return the lines, with their ends, as grep and tracebacks count them: only a line feed ends one."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def describe_line_endings(lines: Sequence[str]) -> str:
    """Return, in brackets, what numbered lines do not show: CRLF and a byte order mark. Empty for most files."""
    notes = ["byte order mark"] if lines and lines[0].startswith(_BYTE_ORDER_MARK) else []
    ends = {
        "CRLF": [number for number, line in enumerate(lines, 1) if line.endswith("\r\n")],
        "LF": [number for number, line in enumerate(lines, 1) if line.endswith("\n") and line[-2:] != "\r\n"],
    }
    if ends["CRLF"] and ends["LF"]:
        fewer = min(ends, key=lambda end: len(ends[end]))
        numbers = ", ".join(map(str, ends[fewer][:_MAX_MATCHES]))
        more = ", …" if len(ends[fewer]) > _MAX_MATCHES else ""
        notes.append(f"mixed line endings: {fewer} in lines {numbers}{more}")
    elif ends["CRLF"]:
        notes.append("CRLF line endings")
    elif _has_only_returns("".join(lines)):
        notes.append("CR line endings, which count as one line")
    return f" ({', '.join(notes)})" if notes else ""


def format_change(before: str, after: str) -> str:
    """Return the changed lines of the new text with context, numbered."""
    old, new = split_lines(before), split_lines(after)
    head = _count_common_prefix(old, new)
    tail = _count_common_prefix(old[head:][::-1], new[head:][::-1])
    start = max(head + 1 - _CONTEXT_LINES, 1)
    return number_lines(new, start, min(len(new) - tail + _CONTEXT_LINES, len(new)))


def number_lines(lines: Sequence[str], start: int, end: int) -> str:
    """Return lines with their numbers, without line endings and byte order mark."""
    shown = (_to_line_feeds(line).removesuffix("\n") for line in lines[start - 1 : end])
    return "\n".join(
        f"{number:6}\t{line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line}"
        for number, line in enumerate(shown, start)
    )


def _find_only_match(text: str, old: str, path: str) -> tuple[int, int]:
    # Line endings that are sent must be there; without them, both kinds look alike to the sender.
    matches = _find_matches(text, old) if "\r" in old else []
    is_exact = bool(matches)
    if not is_exact:
        old = _to_line_feeds(old)
        shown = text.replace("\r", "\n") if _has_only_returns(text) else _to_line_feeds(text)
        matches = _find_matches(shown, old, has_crlf=False)
    if not matches:
        raise EditError(
            f"old does not occur in {path}; view the lines and copy them exactly, including indentation"
        )
    if len(matches) > 1:
        searched = text if is_exact else _to_line_feeds(text)
        where = ", ".join(str(searched.count("\n", 0, match) + 1) for match in matches[:_MAX_MATCHES])
        count = f"more than {_MAX_MATCHES}" if len(matches) > _MAX_MATCHES else str(len(matches))
        raise EditError(f"old occurs {count} times in {path} (lines {where}); include more surrounding lines")
    start, end = matches[0], matches[0] + len(old)
    return (start, end) if is_exact else (_locate(text, start), _locate(text, end))


def _find_matches(text: str, old: str, *, has_crlf: bool = True) -> list[int]:
    """Return where `old` begins in the text, overlaps included; at most one place more than are listed.

    With `has_crlf`, a match that begins or ends within a CRLF does not count.
    """
    found: list[int] = []
    place = text.find(old)
    while place >= 0 and len(found) <= _MAX_MATCHES:
        edges = (place, place + len(old)) if has_crlf else ()
        if all(text[edge - 1 : edge + 1] != "\r\n" for edge in edges if edge):
            found.append(place)
        place = text.find(old, place + 1)
    return found


def _locate(text: str, place: int) -> int:
    """Return where a place of the text with line feeds only is in the text; never between CR and LF."""
    before = 0
    for match in re.finditer("\r\n", text):
        if match.start() - before >= place:
            break
        before += 1
    return place + before


def _fit_line_endings(new: str, text: str, start: int, end: int) -> str:
    """Return the new text with the line endings of the text that it replaces, or of the line that it is in."""
    ends = re.findall(r"\r?\n", text[start:end])
    if not ends:
        after = text.find("\n", end)
        place = after if after >= 0 else text.rfind("\n", 0, start)
        if place < 0 and "\r" not in text:
            return new
        ends = ["\r" if place < 0 else "\r\n" if text[max(place - 1, 0) : place + 1] == "\r\n" else "\n"]
    parts = new.split("\n")
    fitted = [part + ends[min(number, len(ends) - 1)] for number, part in enumerate(parts[:-1])]
    return "".join([*fitted, parts[-1]])


def _normalize(new: str, text: str) -> str:
    """Return new text with line feeds only, unless no line of the text has an ending that it could take."""
    return _to_line_feeds(new) if "\n" in text or "\r" in text else new


def _has_only_returns(text: str) -> bool:
    """Whether a lone CR ends the lines, as on old Macs."""
    return "\r" in text and "\n" not in text


def _to_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n")


def _count_common_prefix(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many items two sequences have in common at the start."""
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)
