"""Thoughts of a model in the text of its reply."""

from __future__ import annotations

import re

_THOUGHT = re.compile(r"(?<![`\"'])<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL)
_END = re.compile(r"^.*(?<![`\"'])</think(?:ing)?>(?![`\"'])", re.DOTALL)
"""A server may send the end of a thought whose beginning is in the prompt. In quotes it is text about tags."""
_END_AFTER_OBJECT = re.compile(r"\}(?:\s*```)?\s*</think(?:ing)?>")
_OBJECT_START = re.compile(r"\s*(?:```\w*\s*)?\{")


def remove_thoughts(text: str) -> str:
    """Remove thoughts between tags, thoughts that were cut off, and text before the end of a thought.

    In a reply that starts with a JSON object, tags are text, unless they follow the object.
    """
    if _OBJECT_START.match(text) and not _END_AFTER_OBJECT.search(text):
        return text
    return _END.sub("", _THOUGHT.sub("", text))
