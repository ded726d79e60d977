"""File contents of which only some lines are known, and their edits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

Mark = tuple[str, str]
"""A pending change of unknown text: the old and the new text, or `do` and a description of the operation."""


class Span(NamedTuple):
    """Lines `start` to `end` of the origin: 1-based, `end` excluded, None for the end of the file."""

    start: int
    end: int | None
    marks: tuple[Mark, ...] = ()


ContentPiece = Span | str
"""A span of the origin, or one line whose text is known."""


class Content(NamedTuple):
    """The content of a file in terms of its origin; contents known to be equal have the same digest."""

    origin: str
    """Identifies the text that the spans refer to; empty if every line is known."""
    pieces: tuple[ContentPiece, ...]
    marks: tuple[Mark, ...] = ()
    """Pending changes somewhere in the unknown lines."""


class KnownLines:
    """The lines of origins that a run has displayed, and the lengths of origins displayed completely."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[int, str]] = {}
        """Origin -> line number -> text."""
        self.lengths: dict[str, int] = {}
        """Origin -> number of lines."""

    def learn(self, content: Content, first: int, texts: Sequence[str]) -> None:
        """Record displayed lines of a file with this content, starting at line `first`."""
        position = 1
        for piece in content.pieces:
            if position >= first + len(texts):
                break
            if isinstance(piece, str):
                position += 1
                continue
            length = self._length(content.origin, piece)
            begin = max(first, position)
            end = first + len(texts) if length is None else min(first + len(texts), position + length)
            if not piece.marks and begin < end:
                known, shift = self.lines.setdefault(content.origin, {}), piece.start - position
                for number in range(begin, end):
                    known.setdefault(number + shift, texts[number - first])
            if length is None:
                break
            position += length

    def learn_numbered(self, content: Content, numbered_lines: Iterable[tuple[int, str]]) -> None:
        """Record displayed lines of a file with this content, each with its number."""
        if content.pieces != (Span(1, None),):
            for number, text in numbered_lines:
                self.learn(content, number, [text])
            return
        end = self.end(content.origin)
        lines = [line for line in numbered_lines if line[0] > 0 and (end is None or line[0] < end)]
        known = self.lines.setdefault(content.origin, {}) if lines else {}
        for number, text in lines:
            known.setdefault(number, text)

    def learn_file(self, content: Content, texts: Sequence[str]) -> None:
        """Record all lines of a file with this content."""
        spans = [piece for piece in content.pieces if isinstance(piece, Span)]
        self.learn(content, 1, texts)
        if spans and spans[-1].end is None:
            others = sum(
                1 if isinstance(piece, str) else (piece.end or 0) - piece.start
                for piece in content.pieces
                if piece is not spans[-1]
            )
            self.lengths[content.origin] = spans[-1].start + len(texts) - others - 1

    def line(self, origin: str, number: int) -> str | None:
        """The text of a line, if it is known."""
        return self.lines.get(origin, {}).get(number)

    def list_known_numbers(self, origin: str, start: int, end: int | None) -> list[int]:
        """Sorted numbers of the known lines from `start` up to `end`, `end` excluded."""
        known = self.lines.get(origin, {})
        if end is not None and end - start < len(known):
            return [number for number in range(start, end) if number in known]
        return sorted(n for n in known if n >= start and (end is None or n < end))

    def _length(self, origin: str, span: Span) -> int | None:
        end = span.end if span.end is not None else self.end(origin)
        return None if end is None else end - span.start

    def end(self, origin: str) -> int | None:
        """The number after the last line, if the length is known."""
        length = self.lengths.get(origin)
        return None if length is None else length + 1


def known_content(text: str) -> Content:
    """Content whose text is known."""
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    return Content("", tuple(lines))


def unknown_content(origin: str) -> Content:
    """Content of which no line is known."""
    return Content(origin, (Span(1, None),))


def add_opaque_change(content: Content, operation: str) -> Content:
    """The content after an operation with an unknown effect; equal operations yield equal contents."""
    return content._replace(marks=add_mark(content.marks, ("do", operation)))


def fingerprint(*parts: str) -> str:
    """A digest that identifies a program, a command or a state."""
    return _sha256("\0".join(parts))


def full_text(content: Content, known_lines: KnownLines) -> str | None:
    """The complete text, if every line is known."""
    lines: list[str] = []
    if content.marks:
        return None
    for piece in content.pieces:
        if isinstance(piece, str):
            lines.append(piece)
            continue
        end = piece.end if piece.end is not None else known_lines.end(content.origin)
        if end is None or piece.marks:
            return None
        numbers = known_lines.list_known_numbers(content.origin, piece.start, end)
        if len(numbers) < end - piece.start:
            return None
        lines += [known_lines.lines[content.origin][number] for number in numbers]
    return "\n".join(lines) + "\n" if lines else ""


def digest_content(content: Content, known_lines: KnownLines) -> str:
    """The SHA-256 of the text if it is completely known, else of the description of the content."""
    pieces = _restore_spans(merge_spans(content.pieces), content.origin, known_lines)
    if content.origin and pieces == (Span(1, None),) and not content.marks:
        return _sha256(f"origin\0{content.origin}")
    if not content.marks and (not content.origin or not any(isinstance(piece, Span) for piece in pieces)):
        return _sha256("".join(f"{piece}\n" for piece in pieces))
    return _sha256(repr((content.origin, pieces, sorted(content.marks))))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def merge_spans(pieces: Iterable[ContentPiece]) -> tuple[ContentPiece, ...]:
    """Join adjacent spans with equal marks."""
    merged: list[ContentPiece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, Span) and isinstance(last, Span) and _is_adjacent(last, piece):
            merged[-1] = Span(last.start, piece.end, last.marks)
        else:
            merged.append(piece)
    return tuple(merged)


def _is_adjacent(first: Span, second: Span) -> bool:
    return first.end == second.start and first.marks == second.marks


def _restore_spans(
    pieces: tuple[ContentPiece, ...], origin: str, known_lines: KnownLines
) -> tuple[ContentPiece, ...]:
    """Replace literal lines by spans where the origin has the same line at this position."""
    if not origin:
        return pieces
    out: list[ContentPiece] = []
    number, matches = 1, True
    starts = [piece.start for piece in reversed(pieces) if isinstance(piece, Span)]
    for piece in pieces:
        if isinstance(piece, Span):
            out.append(piece)
            number, matches = piece.end or number, True
            starts.pop()
            continue
        matches = (
            matches and known_lines.line(origin, number) == piece and (not starts or number < starts[-1])
        )
        out.append(Span(number, number + 1) if matches else piece)
        number += matches
    length = known_lines.lengths.get(origin)
    if out and isinstance(out[-1], Span) and length is not None and out[-1].end == length + 1:
        out[-1] = out[-1]._replace(end=None)
    return merge_spans(out)


def add_mark(marks: tuple[Mark, ...], mark: Mark) -> tuple[Mark, ...]:
    """Add a mark; replacing the result of an earlier replacement changes or cancels the earlier mark."""
    old, new = mark
    if old == new or mark in marks:
        return marks
    for number in range(len(marks) - 1, -1, -1):
        before, after = marks[number]
        if old == "do" or before == "do" or not old or old not in after:
            continue
        combined = after.replace(old, new)
        rest = (*marks[:number], *marks[number + 1 :])
        return rest if combined == before else tuple(sorted((*rest, (before, combined))))
    return tuple(sorted((*marks, mark)))


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
    end = span.end if span.end is not None else known_lines.end(origin)
    if span.marks or end is None:
        return False
    return len(known_lines.list_known_numbers(origin, span.start, end)) >= end - span.start
