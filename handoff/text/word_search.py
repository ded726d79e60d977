"""Searches for fixed words, which are much faster than patterns, before a pattern decides."""

from __future__ import annotations

import re
from collections.abc import Iterable


def contains_any(text: str, words: Iterable[str]) -> bool:
    """Whether any of the words occurs in the text."""
    for word in words:  # noqa: SIM110 - a generator costs more than the search
        if word in text:
            return True
    return False


def matches_line(pattern: re.Pattern[str], words: Iterable[str], text: str) -> bool:
    """Whether a line that contains one of the words has a match of the pattern.

    Every match must lie in one line and contain one of the words.
    """
    for word in words:
        at = text.find(word)
        while at >= 0:
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            if pattern.search(text[text.rfind("\n", 0, at) + 1 : end]):
                return True
            at = text.find(word, end)
    return False
