"""Thoughts of a model in the text of its reply."""

from __future__ import annotations

import re

_THOUGHT = re.compile(r"<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL)
_ENDS = ("</think>", "</thinking>")
"""A server may send the end of a thought whose beginning is in the prompt."""


def remove_thoughts(text: str) -> str:
    """Remove thoughts between tags, thoughts that were cut off, and text before the end of a thought."""
    text = _THOUGHT.sub("", text)
    for end in _ENDS:
        text = text.rpartition(end)[2]
    return text
