"""Fixed words decide as the patterns would that they stand for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_takeover.handoff.text.word_search import contains_any, matches_line

_PATTERN = re.compile(r"^ab\b|: abc$|\[b+\]", re.M)
_WORDS = ("ab", "abc", "[b")


@given(st.text("abc:[] \n", max_size=40))
def test_a_line_matches_if_the_text_does(text: str) -> None:
    assert matches_line(_PATTERN, _WORDS, text) == (_PATTERN.search(text) is not None)


@pytest.mark.parametrize(
    ("text", "expected"), [("", False), ("b\na", False), ("xaby", True), ("x\nx: [b", True)]
)
def test_any_word_counts_wherever_it_stands(text: str, expected: bool) -> None:
    assert contains_any(text, _WORDS) == expected
