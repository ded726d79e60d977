"""How text of the earlier work is shown: as data in a fence that nothing inside can close, imitate or steer with."""

from __future__ import annotations

import re

OPENING, CLOSING = "<earlier-work>", "</earlier-work>"
TASK, TRACE, SUMMARY, NOTE = (
    "# Task",
    "# Record of the earlier work",
    "# Notes of the earlier agent",
    "# Note on the earlier work",
)
OBSERVED, TOLD = "## Observed", "## Written by the earlier agent"

# Our own fence however it is written, and the marks by which chat templates tell who speaks.
_MARKERS = re.compile(r"<(?=\s*/?\s*earlier[\s_-]*work)|<(?=\|[^\s|<>]{1,40}\|>)", re.IGNORECASE)
_INSTRUCTION_MARKERS = re.compile(r"\[(?=/?INST\])|<(?=</?SYS>>)|<(?=/?(?:start|end)_of_turn>)")
_HEADINGS = re.compile(
    rf"^(?=(?:{'|'.join(map(re.escape, (TASK, TRACE, SUMMARY, NOTE, OBSERVED, TOLD)))})\s*$|## e?\d+ · )",
    re.MULTILINE,
)
# What moves a terminal's cursor, reorders a line or cannot be stored; a line may still end as in DOS.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)


def neutral(text: str) -> str:
    """The text without anything that marks where data ends or who speaks; else it is as it was."""
    text = _CONTROLS.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
    return _INSTRUCTION_MARKERS.sub(_harmless, _MARKERS.sub(_harmless, text))


def quoted(text: str) -> str:
    """A text of many lines as part of what is fenced: none of its lines passes for a heading of ours."""
    return _HEADINGS.sub(r"\\", neutral(text))


def fenced(text: str) -> str:
    """What a view shows of the earlier work. Its parts are `quoted` by whoever puts headings between them."""
    return f"{OPENING}\n{neutral(text).rstrip()}\n{CLOSING}\n"


def ticked(text: str) -> str:
    """A text of one line as code."""
    ticks = _ticks(text, 1)
    space = " " if "`" in text else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def code(text: str) -> str:
    """A text of many lines as a block of code that nothing inside can close."""
    ticks = _ticks(text, 3)
    return f"\n{ticks}\n{text.rstrip()}\n{ticks}"


def _ticks(text: str, least: int) -> str:
    """More backticks than stand together anywhere in the text."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", text))])


def _harmless(found: re.Match[str]) -> str:
    return {"<": "‹", "[": "⁅"}[found[0]]
