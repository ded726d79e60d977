"""Thoughts that a model wrote into the text of its reply, and text about such tags."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.text.skeleton import remove_thoughts


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>First</think>Then.", "Then."),
        ("<thinking>\nFirst {\n</thinking>\n{}", "\n{}"),
        ("First.\n</think>\n\nThen.", "\n\nThen."),
        ("<think>Cut of", ""),
        ("The parser drops text before `</think>`.", "The parser drops text before `</think>`."),
        ('It keeps "<think>" as text.', 'It keeps "<think>" as text.'),
        (
            '{"work": ["drops text before </think>, <think>"]}',
            '{"work": ["drops text before </think>, <think>"]}',
        ),
        ('```json\n{"work": ["</think>"]}\n```', '```json\n{"work": ["</think>"]}\n```'),
    ],
)
def test_only_thoughts_are_removed(text: str, rest: str) -> None:
    assert remove_thoughts(text) == rest
