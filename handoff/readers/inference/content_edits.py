"""Edits of a file's content of which some lines are unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from langgraph_takeover.handoff.readers.inference.content import (
    Content,
    ContentPiece,
    KnownLines,
    Mark,
    Span,
    add_mark,
    full_text,
    known_content,
    merge_spans,
)

LineTransform = Callable[[str], str]
"""Applies a substitution to one line."""


def split_at_lines(
    content: Content, first: int, last: int | None
) -> tuple[list[ContentPiece], list[ContentPiece], list[ContentPiece]]:
    """The pieces before line `first`, from `first` to `last`, and after `last`; None is the last line."""
    before: list[ContentPiece] = []
    within: list[ContentPiece] = []
    after: list[ContentPiece] = []
    position = 1
    for piece in content.pieces:
        if isinstance(piece, str):
            side = before if position < first else within if last is None or position <= last else after
            side.append(piece)
            position += 1
            continue
        end = None if piece.end is None else position + piece.end - piece.start
        shift = piece.start - position
        cuts = [position, *(c for c in (first, None if last is None else last + 1) if c is not None)]
        bounds = sorted({c for c in cuts if c >= position and (end is None or c < end)})
        for number, begin in enumerate(bounds):
            stop = bounds[number + 1] if number + 1 < len(bounds) else end
            part = Span(begin + shift, None if stop is None else stop + shift, piece.marks)
            side = before if begin < first else within if last is None or begin <= last else after
            side.append(part)
        if end is None:
            # Lines appended to a file of unknown length have no line number.
            rest = content.pieces[content.pieces.index(piece) + 1 :]
            (within if last is None else after).extend(rest)
            break
        position = end
    return before, within, after


def append_lines(content: Content, lines: Sequence[str]) -> Content:
    """Add lines at the end."""
    return content._replace(pieces=(*content.pieces, *lines))


def replace_lines(content: Content, first: int, last: int | None, lines: Sequence[str]) -> Content:
    """Replace lines `first` to `last`; `last = first - 1` inserts before `first`."""
    before, _, after = split_at_lines(content, first, last)
    return content._replace(pieces=merge_spans([*before, *lines, *after]))


def insert_lines(content: Content, after_line: int, lines: Sequence[str]) -> Content:
    """Insert lines after line `after_line`; 0 inserts at the beginning."""
    return replace_lines(content, after_line + 1, after_line, lines)


def substitute_lines(
    content: Content,
    known_lines: KnownLines,
    change: LineTransform,
    mark: Mark,
    first: int = 1,
    last: int | None = None,
) -> Content:
    """Substitute line by line; unknown lines receive `mark`, which the inverse substitution cancels.

    A substitution in the whole file that changes a known line is assumed to change no unknown line.
    """
    before, within, after = split_at_lines(content, first, last)
    pieces: list[ContentPiece] = []
    has_changed = False
    for piece in within:
        lines = (
            [(piece, piece)] if isinstance(piece, str) else _split_span(piece, content.origin, known_lines)
        )
        for part, line in lines:
            changed_line = line if line is None else change(line)
            has_changed = has_changed or changed_line != line
            pieces += [part] if changed_line is None or changed_line == line else changed_line.split("\n")
    is_unknown = [isinstance(p, Span) and not _is_fully_known(p, content.origin, known_lines) for p in pieces]
    if first > 1 or last is not None:
        pieces = [
            p._replace(marks=add_mark(p.marks, mark)) if unknown_part and isinstance(p, Span) else p
            for p, unknown_part in zip(pieces, is_unknown, strict=True)
        ]
    elif not has_changed and any(is_unknown):
        return content._replace(marks=add_mark(content.marks, mark))
    return content._replace(pieces=merge_spans([*before, *pieces, *after]))


def find_lines(
    content: Content, known_lines: KnownLines, pattern: re.Pattern[str], start: int = 1
) -> list[int]:
    """Numbers of the known lines from `start` that a pattern matches."""
    numbers: list[int] = []
    position = 1
    for piece in content.pieces:
        if isinstance(piece, str):
            if position >= start and pattern.search(piece):
                numbers.append(position)
            position += 1
            continue
        shift = position - piece.start
        end = piece.end if piece.end is not None else known_lines.end(content.origin)
        for number in known_lines.list_known_numbers(content.origin, piece.start, end):
            if number + shift >= start and pattern.search(known_lines.lines[content.origin][number]):
                numbers.append(number + shift)
        if end is None:
            break
        position += end - piece.start
    return numbers


def replace_text(content: Content, known_lines: KnownLines, old: str, new: str) -> Content:
    """Apply `text.replace(old, new)` where the text is known; else add a mark."""
    if old == new:
        return content
    text = full_text(content, known_lines)
    if text is not None:
        # Keep the origin, so that restored text is recognized as the original.
        return content._replace(pieces=known_content(text.replace(old, new)).pieces)
    pieces = _replace_in_literals(content.pieces, old, new)
    if pieces is not None:
        return content._replace(pieces=merge_spans(pieces))
    return content._replace(marks=add_mark(content.marks, (old, new)))


def _replace_in_literals(pieces: Sequence[ContentPiece], old: str, new: str) -> list[ContentPiece] | None:
    out: list[ContentPiece] = []
    has_changed = False
    for is_span, group in groupby(pieces, key=lambda piece: isinstance(piece, Span)):
        lines = list(group)
        before = "" if is_span else "\n".join(map(str, lines))
        after = before if is_span else before.replace(old, new)
        has_changed = has_changed or after != before
        out += lines if after == before else after.split("\n") if after else []
    return out if has_changed else None


def _split_span(span: Span, origin: str, known_lines: KnownLines) -> Iterable[tuple[Span, str | None]]:
    """Split a span into its known lines, each with its text, and the unknown spans between them."""
    if span.marks:
        yield span, None
        return
    end = span.end if span.end is not None else known_lines.end(origin)
    position = span.start
    for number in known_lines.list_known_numbers(origin, span.start, end):
        if number > position:
            yield Span(position, number), None
        yield Span(number, number + 1), known_lines.lines[origin][number]
        position = number + 1
    if end is None:
        yield Span(position, None), None
    elif position < end:
        yield Span(position, end), None


def _is_fully_known(span: Span, origin: str, known_lines: KnownLines) -> bool:
    return all(line is not None for _, line in _split_span(span, origin, known_lines))
