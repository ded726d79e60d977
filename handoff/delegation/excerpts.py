"""The parts of a long edited file that a successor starts with: the changed lines and their surroundings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from langgraph_takeover.handoff.text.patch_sections import split_patch

_MAX_CHARS = 24_000
"""A longer file is shown in part."""
_CONTEXT_LINES = 60
_LINE_NUMBER_CHARS = 8
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


class Excerpt(NamedTuple):
    """Lines of a file, counted from 1."""

    first: int
    last: int
    total: int
    """Number of lines of the whole file."""
    text: str
    """The lines with their numbers, as the editor shows them."""


def list_excerpts(path: str, content: str, patch: str, budget_chars: int) -> tuple[Excerpt, ...]:
    """List what to show of a file: all of it, or of a long one the lines around its changes, from the top.

    `patch` is that of the repository; `budget_chars` is the space for everything that is shown to the successor.
    """
    limit = _limit(budget_chars)
    if is_shown_whole(content, budget_chars):
        return (cut_whole(content),)
    lines = _split_lines(content)
    found: list[Excerpt] = []
    for first, last in _merge(_list_hunks(path, patch), len(lines)) or [(1, len(lines))]:
        room = limit - sum(len(each.text) for each in found)
        while last >= first and len(_cut(lines, first, last).text) > room:
            last = first + (last - first + 1) // 2 - 1
        if last >= first:
            found.append(_cut(lines, first, last))
    return tuple(found)


def is_shown_whole(content: str, budget_chars: int) -> bool:
    """Whether a file is short enough to be shown without a cut."""
    return len(content) + _LINE_NUMBER_CHARS * (content.count("\n") + 1) <= _limit(budget_chars)


def _limit(budget_chars: int) -> int:
    return min(_MAX_CHARS, budget_chars // 3)


def measure_excerpts(excerpts: Iterable[Excerpt]) -> int:
    """Characters of the excerpts."""
    return sum(len(each.text) for each in excerpts)


def cut_whole(content: str) -> Excerpt:
    """The whole file as one excerpt."""
    lines = _split_lines(content)
    return _cut(lines, 1, len(lines))


def _split_lines(content: str) -> list[str]:
    return content.removesuffix("\n").split("\n")


def _cut(lines: list[str], first: int, last: int) -> Excerpt:
    text = "\n".join(f"{number:6}\t{lines[number - 1]}" for number in range(first, last + 1))
    return Excerpt(first, last, len(lines), text)


def _list_hunks(path: str, patch: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each hunk of a file, in its new text."""
    text = next((section.text for section in split_patch(patch) if section.path == path), "")
    for first, count in _HUNK.findall(text):
        yield int(first[:9]), int(first[:9]) + max(int((count or "1")[:9]), 1) - 1


def _merge(hunks: Iterable[tuple[int, int]], total: int) -> list[tuple[int, int]]:
    """Widen the hunks by their context, and merge those that meet."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(hunks):
        start, end = max(first - _CONTEXT_LINES, 1), min(last + _CONTEXT_LINES, total)
        if start > total:
            continue
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
