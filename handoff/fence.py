"""How text of the earlier work is shown: as data in a fence that nothing inside can close, imitate or steer with."""

from __future__ import annotations

import re

from handoff.notes.fields import MODEL_FIELDS, OBSERVED_FIELDS, titled

OPENING, CLOSING = "<earlier-work>", "</earlier-work>"
TASK, TRACE, SUMMARY, NOTE, LETTER = (
    "# Task",
    "# Record of the earlier work",
    "# Notes of the earlier agent",
    "# Note on the earlier work",
    "# Letter of the earlier agent",
)
OBSERVED, TOLD = "## Observed", "## Written by the earlier agent"
ENDS = "Here the earlier agent's work ends. From here on it is yours."
_ENDS_PREFIX = "Here the earlier agent"
"""Enough of the sentence to recognise it after a cut."""

_UNSEEN = "\u00ad\u200b-\u200d\u2060\ufeff"
"""What stands between letters without being seen."""


def _spelt(word: str) -> str:
    """The word also in full width, and with what is unseen between its letters."""
    return rf"[{_UNSEEN}]*+".join(f"[{letter}{chr(ord(letter) + 0xFEE0)}]" for letter in word)


# Our own fence however it is written, and the marks by which chat templates tell who speaks.
_GAP = rf"[\s{_UNSEEN}]*+"
_FENCE = rf"{_GAP}(?:[/／]{_GAP})?+{_spelt('earlier')}[\s{_UNSEEN}_＿‐-―﹣－-]*+{_spelt('work')}"
_MARKERS = re.compile(rf"[<＜﹤](?={_FENCE})|<(?=[|｜][^\s|｜<>]{{1,40}}[|｜]>)", re.IGNORECASE)
_INSTRUCTION_MARKERS = re.compile(
    r"\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\])|<(?=</?SYS>>)|<(?=/?s>|[be]os>)"
    r"|<(?=/?(?:start|end)_of_turn>)"
)
_TITLES = "|".join(
    re.escape(each.lstrip("# ")) for each in (TASK, TRACE, SUMMARY, NOTE, LETTER, OBSERVED, TOLD)
)
_HEADINGS = re.compile(
    rf"^(?=[ \t]{{0,3}}#{{1,6}}[ \t]+(?:(?:{_TITLES})[ \t:#\r]*$|e?\d+[ \t]*[·•‧∙・])|{_ENDS_PREFIX})",
    re.MULTILINE | re.IGNORECASE,
)
_FIELD_TITLES = "|".join((*OBSERVED_FIELDS, *map(titled, MODEL_FIELDS)))
_FIELDS = re.compile(
    rf"^(?=(?:[ \t]*[-*+])?[ \t]*\*\*(?:{_FIELD_TITLES}):\*\*)", re.MULTILINE | re.IGNORECASE
)
_TITLE = re.compile(rf"(?<!\*)\*{{2,}}+( ?(?:{_FIELD_TITLES}) ?:? ?)\*{{2,}}+", re.IGNORECASE)
# What moves a terminal's cursor, reorders or ends a line, is never seen or cannot be stored; a line may still
# end as in DOS.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]|\r(?!\n)"
)


def neutral(text: str) -> str:
    """The text without anything that marks where data ends or who speaks; else it is as it was."""
    text = _CONTROLS.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
    return _INSTRUCTION_MARKERS.sub(_harmless, _MARKERS.sub(_harmless, text))


def quoted(text: str, *, fields: bool = True) -> str:
    """A text of many lines as part of what is fenced: none of its lines passes for a heading of ours.

    Nor for a field of a note, unless it is one that a person wrote.
    """
    text = _HEADINGS.sub(r"\\", neutral(text))
    return _FIELDS.sub(r"\\", text) if fields else text


def entry(text: str) -> str:
    """A text as one line of a note, in which nothing can be struck out or look like a field; `x**2` stays what it is."""
    return _TITLE.sub(r"*\1*", re.sub("~{2,}", "~", " ".join(neutral(text).split())))


def cut_middle(text: str, limit: int) -> str:
    """Return the text, its middle replaced by a mark if it is longer than `limit` characters.

    An ellipsis closes the part before the mark and opens the part after it. So the cut never puts the middle of a line
    where a heading could stand, not even in text that is already `quoted`.
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}…\n[… {len(text) - 2 * half:,} characters left out …]\n…{text[len(text) - half :]}"


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
    return "⁅" if found[0] == "[" else "‹"
