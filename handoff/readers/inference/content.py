"""A file's content as far as a recording tells it: known lines, stretches of unknown ones, and what was done to them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

LineTransform = Callable[[str], str]
"""What a substitution makes of one line."""
Mark = tuple[str, str]
"""A replacement whose effect on unknown text cannot be carried out: what by what, or `do` and what was done."""


class Span(NamedTuple):
    """Lines `start` to `end` (1-based, `end` excluded, None for the end of the file) of what it began as."""

    start: int
    end: int | None
    marks: tuple[Mark, ...] = ()


ContentPiece = Span | str
"""Some lines of the origin, or one line that is known to the letter."""


class Content(NamedTuple):
    """What a file holds, in terms of its origin; two that are known to be equal have one digest."""

    origin: str
    """What the spans are lines of; empty when no line is unknown."""
    pieces: tuple[ContentPiece, ...]
    marks: tuple[Mark, ...] = ()
    """Replacements somewhere in the unknown lines."""


class KnownLines:
    """The lines of origins that a run was shown, and the lengths of those it was shown whole."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[int, str]] = {}
        """Origin -> line number -> text."""
        self.lengths: dict[str, int] = {}

    def learn(self, content: Content, first: int, texts: Sequence[str]) -> None:
        """A run was shown these lines of a file that has this content."""
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
            if not piece.marks:
                for number in range(begin, end):
                    origin_line = piece.start + number - position
                    self.lines.setdefault(content.origin, {}).setdefault(origin_line, texts[number - first])
            if length is None:
                break
            position += length

    def learn_file(self, content: Content, texts: Sequence[str]) -> None:
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
        return self.lines.get(origin, {}).get(number)

    def list_known_numbers(self, origin: str, start: int, end: int | None) -> list[int]:
        """The numbers of the known lines from `start` to before `end`, in order."""
        return sorted(n for n in self.lines.get(origin, ()) if n >= start and (end is None or n < end))

    def _length(self, origin: str, span: Span) -> int | None:
        end = span.end if span.end is not None else self.end(origin)
        return None if end is None else end - span.start

    def end(self, origin: str) -> int | None:
        length = self.lengths.get(origin)
        return None if length is None else length + 1


def from_text(text: str) -> Content:
    """Content that is known to the letter."""
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    return Content("", tuple(lines))


def unknown_content(origin: str) -> Content:
    return Content(origin, (Span(1, None),))


def add_opaque_change(content: Content, operation: str) -> Content:
    """The content after something whose effect nobody knows, but whose repetition is known as the same."""
    return content._replace(marks=add_mark(content.marks, ("do", operation)))


def fingerprint(*parts: str) -> str:
    """One short name for a program, a command, a state: equal for equal ones."""
    return _sha256("\0".join(parts))


def full_text(content: Content, known_lines: KnownLines) -> str | None:
    """The whole text, if every line of it is known."""
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
    """A SHA-256: of the text where it is known whole, else of what is known about it."""
    pieces = _restore_spans(_merge_spans(content.pieces), content.origin, known_lines)
    if content.origin and pieces == (Span(1, None),) and not content.marks:
        return _sha256(f"origin\0{content.origin}")
    if not content.origin or not any(isinstance(piece, Span) for piece in pieces):
        return _sha256("".join(f"{piece}\n" for piece in pieces))
    return _sha256(repr((content.origin, pieces, sorted(content.marks))))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _merge_spans(pieces: Iterable[ContentPiece]) -> tuple[ContentPiece, ...]:
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
    """Literal lines that are what the origin has at their place count as the origin's own."""
    if not origin:
        return pieces
    out: list[ContentPiece] = []
    number, follows = 1, True
    starts = [piece.start for piece in reversed(pieces) if isinstance(piece, Span)]
    for piece in pieces:
        if isinstance(piece, Span):
            out.append(piece)
            number, follows = piece.end or number, True
            starts.pop()
            continue
        follows = (
            follows and known_lines.line(origin, number) == piece and (not starts or number < starts[-1])
        )
        out.append(Span(number, number + 1) if follows else piece)
        number += follows
    length = known_lines.lengths.get(origin)
    if out and isinstance(out[-1], Span) and length is not None and out[-1].end == length + 1:
        out[-1] = out[-1]._replace(end=None)
    return _merge_spans(out)


def split_at_lines(
    content: Content, first: int, last: int | None
) -> tuple[list[ContentPiece], list[ContentPiece], list[ContentPiece]]:
    """The pieces before line `first`, from it to line `last`, and after that; None is the last line."""
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
            # What was put behind the last of unknown many lines has no number.
            rest = content.pieces[content.pieces.index(piece) + 1 :]
            (within if last is None else after).extend(rest)
            break
        position = end
    return before, within, after


def append_lines(content: Content, lines: Sequence[str]) -> Content:
    return content._replace(pieces=(*content.pieces, *lines))


def replace_lines(content: Content, first: int, last: int | None, lines: Sequence[str]) -> Content:
    """Lines `first` to `last` replaced by others; `last = first - 1` inserts before `first`."""
    before, _, after = split_at_lines(content, first, last)
    return content._replace(pieces=_merge_spans([*before, *lines, *after]))


def insert_lines(content: Content, after_line: int, lines: Sequence[str]) -> Content:
    return replace_lines(content, after_line + 1, after_line, lines)


def substitute_lines(
    content: Content,
    known_lines: KnownLines,
    change: LineTransform,
    mark: Mark,
    first: int = 1,
    last: int | None = None,
) -> Content:
    """A substitution line by line; on unknown lines it is kept as a mark, which its inverse takes away.

    Where a known line of the whole file is changed, unknown lines are taken not to be.
    """
    before, within, after = split_at_lines(content, first, last)
    out: list[ContentPiece] = []
    hit = False
    for piece in within:
        lines = (
            [(piece, piece)] if isinstance(piece, str) else _split_span(piece, content.origin, known_lines)
        )
        for part, line in lines:
            new = line if line is None else change(line)
            hit = hit or new != line
            out += [part] if new is None or new == line else new.split("\n")
    is_open = [isinstance(p, Span) and not _is_fully_known(p, content.origin, known_lines) for p in out]
    if first > 1 or last is not None:
        out = [
            p._replace(marks=add_mark(p.marks, mark)) if unknown_part and isinstance(p, Span) else p
            for p, unknown_part in zip(out, is_open, strict=True)
        ]
    elif not hit and any(is_open):
        return content._replace(marks=add_mark(content.marks, mark))
    return content._replace(pieces=_merge_spans([*before, *out, *after]))


def find_lines(
    content: Content, known_lines: KnownLines, pattern: re.Pattern[str], start: int = 1
) -> list[int]:
    """The line numbers, from `start`, of the known lines that a pattern matches."""
    found: list[int] = []
    position = 1
    for piece in content.pieces:
        if isinstance(piece, str):
            if position >= start and pattern.search(piece):
                found.append(position)
            position += 1
            continue
        shift = position - piece.start
        end = piece.end if piece.end is not None else known_lines.end(content.origin)
        for number in known_lines.list_known_numbers(content.origin, piece.start, end):
            if number + shift >= start and pattern.search(known_lines.lines[content.origin][number]):
                found.append(number + shift)
        if end is None:
            break
        position += end - piece.start
    return found


def replace_text(content: Content, known_lines: KnownLines, old: str, new: str) -> Content:
    """`text.replace(old, new)`: carried out where the text is known, else kept as a mark."""
    if old == new:
        return content
    text = full_text(content, known_lines)
    if text is not None:
        # In terms of its origin, so that text put back as it was is known as such.
        return content._replace(pieces=from_text(text.replace(old, new)).pieces)
    pieces = _replace_in_literals(content.pieces, old, new)
    if pieces is not None:
        return content._replace(pieces=_merge_spans(pieces))
    return content._replace(marks=add_mark(content.marks, (old, new)))


def _replace_in_literals(pieces: Sequence[ContentPiece], old: str, new: str) -> list[ContentPiece] | None:
    out: list[ContentPiece] = []
    hit = False
    for is_span, group in groupby(pieces, key=lambda piece: isinstance(piece, Span)):
        lines = list(group)
        before = "" if is_span else "\n".join(map(str, lines))
        after = before if is_span else before.replace(old, new)
        hit = hit or after != before
        out += lines if after == before else after.split("\n") if after else []
    return out if hit else None


def add_mark(marks: tuple[Mark, ...], mark: Mark) -> tuple[Mark, ...]:
    """The marks after one more: a replacement of what an earlier one put in changes or undoes that one."""
    old, new = mark
    if old == new or mark in marks:
        return marks
    for number in range(len(marks) - 1, -1, -1):
        before, after = marks[number]
        if old == "do" or before == "do" or not old or old not in after:
            continue
        now = after.replace(old, new)
        rest = (*marks[:number], *marks[number + 1 :])
        return rest if now == before else tuple(sorted((*rest, (before, now))))
    return tuple(sorted((*marks, mark)))


def _split_span(span: Span, origin: str, known_lines: KnownLines) -> Iterable[tuple[Span, str | None]]:
    """A span cut where its lines are known: each such line by itself, with its text."""
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
