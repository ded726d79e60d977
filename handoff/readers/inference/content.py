"""A file's content as far as a recording tells it: known lines, stretches of unknown ones, and what was done to them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

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
