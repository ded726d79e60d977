"""Show text of the earlier work as data in a fence that nothing inside can close, imitate or escape.

Imitations of our marks are found in a text's skeleton and escaped in the text itself. All other text stays unchanged, in
any language.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from langgraph_takeover.handoff.text.note_fields import (
    MODEL_FIELDS,
    OBSERVED_FIELDS,
    STATED_FIELDS,
    format_title,
)
from langgraph_takeover.handoff.text.skeleton import (
    CASED_CHAT_MARKUP,
    CHAT_MARKUP,
    Skeleton,
    escape_char,
    escape_invisible,
    lookalike_pattern,
)

OPENING, CLOSING = "<earlier-work", "</earlier-work"
"""The start of the fence's tags; their id follows."""
TASK, TRACE, PATCH, CHANGED_FILES, SUMMARY, NOTE, ENVELOPE = (
    "# Task",
    "# Record of the earlier work",
    "# Changes since the base commit",
    "# Changed files",
    "# Notes of the earlier agent",
    "# Note on the earlier work",
    "# Message from the earlier agent",
)
OBSERVED, REPORTED = "## Observed", "## Written by the earlier agent"
END_OF_WORK = "Here the earlier agent's work ends. From here on it is yours."

_TITLES = tuple(
    each.lstrip("# ")
    for each in (TASK, TRACE, PATCH, CHANGED_FILES, SUMMARY, NOTE, ENVELOPE, OBSERVED, REPORTED)
)
_FIELD_TITLES = (*OBSERVED_FIELDS, *map(format_title, (*STATED_FIELDS, *MODEL_FIELDS)))
_TITLE_SUFFIXES = {
    " ".join(words[start:])
    for words in map(str.split, (*_TITLES, *_FIELD_TITLES))
    for start in range(len(words))
}


_BLANK = r"[ \t\xa0]"
_BLANKS, _SPACES, _DASHES, _ANY_DASHES = rf"{_BLANK}+", r"\s+", r"[ \t\xa0*_`~-]*", r"[\s*_`~-]*"
_GAP = r"[\W_]+"


def _build_alternatives(words: Iterable[str], gap: str) -> str:
    return "|".join(lookalike_pattern(each, gap) for each in words)


def _allow_separators(word: str) -> str:
    """Build a pattern of the word, also with a few other marks between its letters."""
    return r"[\W_]{0,3}?".join(lookalike_pattern(letter, "") for letter in word)


# All over lower-case skeletons and without flags, because a search for a literal is fast. Context before a match is
# checked where it is found.
_TAG_NAME = rf"{_allow_separators('earlier')}(?:[\s_-]*+|[\W_]{{0,3}}?){_allow_separators('work')}"
_MARKS = r"[^\w\s<>]{0,4}"
_SLASH = rf"\s*+(?:{_MARKS}[/\\](?:\s*+{_MARKS}+){{0,2}}+\s*+)?+"
# What may surround a title so that Markdown renders it as the same heading.
_BEFORE_TITLE = rf"(?:(?:[*_`~\[]{{1,3}}+|<[^<>\n]{{1,200}}>){_BLANK}?){{0,6}}+"
_AFTER_TITLE = r"(?:\]\([^()\n]{0,200}\)|[^\w\n(\[<]|_|<[^<>\n]{1,200}>)*+"
_EVENT = rf"e?\d+[*_`~]{{0,3}}{_BLANK}*(?:·|[^\w\s]{{1,3}}{_BLANK}*(?:{_build_alternatives(('agent', 'sandbox'), '')})\b)"
_MARKUP = tuple(
    map(
        re.compile,
        (
            rf"<(?={_SLASH}{_TAG_NAME})",
            rf"⟨(?={_SLASH}{_TAG_NAME})",
            rf"\[(?=\s*+/\s*+{_TAG_NAME})",
            rf"\((?=\s*+/\s*+{_TAG_NAME})",
            rf"\{{(?=\s*+/\s*+{_TAG_NAME})",
            rf"<(?=h[1-6]\b[^<>\n]{{0,200}}>\s{{0,9}}{_BEFORE_TITLE}"
            rf"(?:{_EVENT}|(?:{_build_alternatives((*_TITLES, *_FIELD_TITLES), _SPACES)})[^\w<]{{0,20}}<))",
            *CHAT_MARKUP,
        ),
    )
)
_CASED_MARKUP = tuple(map(re.compile, CASED_CHAT_MARKUP))
# As far from the margin as Markdown allows a heading; any distance if the blanks are not plain ones.
_MARGIN = rf"(?:[ \t]*\xa0{_BLANK}*|[ \t]{{0,3}})"
_LINE_START = rf"{_MARGIN}(?:(?:>|[-*+]{_BLANK}|\d{{1,3}}[.)]{_BLANK}){_MARGIN})*+"
_BEFORE_HEADING = re.compile(_LINE_START)
_MAX_LINE_START = 1_000
_HEADING = re.compile(
    rf"#(?:#{{0,5}}{_BLANK}++|#{{1,5}}+){_BEFORE_TITLE}(?P<imitates>(?:{_build_alternatives(_FIELD_TITLES, _BLANKS)})\b|{_EVENT}"
    rf"|(?:{_build_alternatives(_TITLES, _DASHES)}){_AFTER_TITLE}(?=\n|\Z))"
)
_FIELD, _UNDERSCORED_FIELD = (
    re.compile(
        rf"{mark}{mark}[*_]*+(?P<imitates>{_BLANK}*(?:{_build_alternatives(_FIELD_TITLES, _BLANKS)}){_BLANK}*"
        rf"(?::{_BLANK}*[*_]{{2}}|[*_]{{2,}}+{_BLANK}*:))?"
    )
    for mark in (r"\*", "_")
)
_UNDERLINE = re.compile(rf"\n[ \t\xa0>]*(?P<line>=+|-+|[~^*+_#]{{3,}}){_BLANK}*\r?(?=\n|\Z)")
_UNDERLINED = re.compile(
    rf"(?:\A|\n){_LINE_START}{_BEFORE_TITLE}"
    rf"(?:(?:{_build_alternatives((*_TITLES, *_FIELD_TITLES), _ANY_DASHES)}){_AFTER_TITLE}|{_EVENT}[^\n]*)\Z"
)
_ENDS_UNDERLINED = re.compile(
    rf"{_LINE_START}{_BEFORE_TITLE}"
    rf"(?:(?:{_build_alternatives(sorted(_TITLE_SUFFIXES), _ANY_DASHES)}){_AFTER_TITLE}|{_EVENT}[^\n]*)"
)
"""The last line of an underlined heading, because a title may span several lines."""
_MAX_UNDERLINED = 400
_EARLIER_AGENT = re.compile(
    rf"{lookalike_pattern('earlier', '')}"
    rf"(?:(?P<ends>{_GAP}{lookalike_pattern('agent', '')}[\W_]{{0,2}}s?{_GAP}{lookalike_pattern('work ends', _GAP)})"
    rf"|(?P<agent>{_GAP}a(?:g(?:e(?:n(?:t\w*)?)?)?)?(?!\w)|\W*\Z))"
)
# In JSON, an escaped line end stands before a word without a space.
_BEFORE_EARLIER_AGENT = re.compile(
    rf"(?:(?<![^\W_])|(?<=\\[nrt])){lookalike_pattern('here the', _GAP)}{_GAP}(?<!\\)\Z"
)
_YOURS = re.compile(lookalike_pattern("yours", ""))
_BEFORE_YOURS = re.compile(rf"{lookalike_pattern('from here on it is', _GAP)}{_GAP}(?<!\\)\Z")
_MAX_PHRASE_LENGTH = 60
_TITLE = re.compile(
    rf"(?<![*_])(?P<before>[*_]{{2,}}+) ?(?:{_build_alternatives(_FIELD_TITLES, _BLANKS)}) ?:? ?(?P<after>[*_]{{2,}}+)"
)


def neutralize(text: str) -> str:
    """Escape everything that marks where data ends or who speaks; other text is unchanged."""
    return _neutralize(text).source


def quote_text(text: str, *, escape_fields: bool = True) -> str:
    """Quote a text of many lines for a fence: none of its lines passes for one of our headings.

    Nor for a field of a note, unless a person wrote it.
    """
    seen = _neutralize(text)
    text = seen.source
    found = {*_find_imitated_lines(_HEADING, seen.text), *_find_underlines(seen.text)}
    if escape_fields:
        found |= {
            *_find_imitated_lines(_FIELD, seen.text),
            *_find_imitated_lines(_UNDERSCORED_FIELD, seen.text),
        }
    return _escape_at(text, map(seen.source_position, found))


def format_entry(text: str) -> str:
    """Quote a text as one line of a note that cannot be struck out or look like a field; `x**2` stays unchanged."""
    text = re.sub("~{2,}", "~", " ".join(neutralize(text).split()))
    seen, parts, last = Skeleton(text), [], 0
    for found in _TITLE.finditer(seen.text):
        for marks in ("before", "after"):
            start, end = map(seen.source_position, found.span(marks))
            parts += [text[last:start], "*"]
            last = end
    return "".join([*parts, text[last:]])


def cut_middle(text: str, limit: int) -> str:
    """Return the text, its middle replaced by a mark if it is longer than `limit` characters.

    An ellipsis closes the part before the mark and opens the part after it. So the cut never puts the middle of a line
    where a heading could be, not even in text that is already quoted.
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}…\n[… {len(text) - 2 * half:,} characters left out …]\n…{text[len(text) - half :]}"


def compute_fence_id(content: str) -> str:
    """Name a fence by a digest of its content, which no text inside can know."""
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def wrap_in_fence(text: str) -> str:
    """Put the earlier work in a fence. Callers that add headings must quote the parts."""
    content = neutralize(text).rstrip()
    name = compute_fence_id(content)
    return f"{OPENING} id={name}>\n{content}\n{CLOSING} id={name}>\n"


def format_inline_code(text: str) -> str:
    """Format a text of one line as code."""
    ticks = _make_backticks(text, 1)
    space = " " if "`" in text else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def format_code_block(text: str) -> str:
    """Format a text of many lines as a code block that nothing inside can close."""
    ticks = _make_backticks(text, 3)
    return f"\n{ticks}\n{text.rstrip()}\n{ticks}"


def _make_backticks(text: str, minimum: int) -> str:
    """Return more backticks than stand together anywhere in the text."""
    return "`" * max([minimum, *(len(run) + 1 for run in re.findall("`+", text))])


def _neutralize(text: str) -> Skeleton:
    seen = _neutralize_markup(text)
    found = set(_find_end_phrases(seen.text))
    return Skeleton(_escape_at(seen.source, map(seen.source_position, found))) if found else seen


def _escape_at(text: str, positions: Iterable[int]) -> str:
    """Return the text with a backslash at each of the positions."""
    return "\\".join(text[start:end] for start, end in pairwise([0, *sorted(positions), len(text)]))


def _neutralize_markup(text: str) -> Skeleton:
    shown = escape_invisible(text)
    if shown == text:
        return _escape_markup(Skeleton(text))
    # Markup first, because invisible characters may be in it; and once more, because an escape may complete it.
    marked = _escape_markup(Skeleton(text)).source
    return _escape_markup(Skeleton(escape_invisible(marked)))


def _escape_markup(seen: Skeleton) -> Skeleton:
    """Escape the first character of each imitation in the skeleton of the text."""
    found = {each.start() for pattern in _MARKUP for each in pattern.finditer(seen.text)}
    found |= {each.start() for pattern in _CASED_MARKUP for each in pattern.finditer(seen.cased_text)}
    if not found:
        return seen
    parts, last = [], 0
    for position in sorted(set(map(seen.source_position, found))):
        parts += [seen.source[last:position], escape_char(seen.source[position])]
        last = position + 1
    return Skeleton("".join([*parts, seen.source[last:]]))


def _find_imitated_lines(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    """Return the match of an imitation if only the start of a line, a quote or a list precedes it."""
    for found in pattern.finditer(text):
        position = found.start()
        if found["imitates"]:
            start = text.rfind("\n", max(0, position - _MAX_LINE_START), position) + 1
            if (start or position <= _MAX_LINE_START) and _BEFORE_HEADING.fullmatch(text, start, position):
                yield position


def _find_underlines(text: str) -> Iterator[int]:
    """Start of a line that turns the previous line into a heading."""
    for found in _UNDERLINE.finditer(text):
        end = found.start()
        first = max(0, end - _MAX_UNDERLINED)
        if _ENDS_UNDERLINED.fullmatch(text, max(first, text.rfind("\n", first, end) + 1), end) and (
            _UNDERLINED.search(text[first:end])
        ):
            yield found.start("line")


def _find_end_phrases(text: str) -> Iterator[int]:
    """Positions of words that claim the end of the earlier work, also if truncated."""
    for found in _EARLIER_AGENT.finditer(text):
        before = _preceding_text(text, found)
        if (found["ends"] and not before.endswith("\\")) or _BEFORE_EARLIER_AGENT.search(before):
            yield found.start()
    for found in _YOURS.finditer(text):
        if _BEFORE_YOURS.search(_preceding_text(text, found)):
            yield found.start()


def _preceding_text(text: str, found: re.Match[str]) -> str:
    return text[max(0, found.start() - _MAX_PHRASE_LENGTH) : found.start()]
