"""The text of one file that a predecessor was shown or wrote, and the search for a line in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property
from typing import NamedTuple

from langgraph_takeover.evals.run.measures.shown_text import ShownLine

_DISTINCTIVE_CHARS = 24
"""A line of this length that occurs once in the known text of its file needs no neighbours to be recognized."""
_WRITTEN_CHARS = 8
_CONTAINED_CHARS = 10
"""A line of this length counts as written if an action that changed the file contains it."""
_SHINGLE_CHARS = 12
_LONG_LINE_CHARS = 200
_MAX_GAP = 4
"""Neighbours have at most this distance in the file: blank lines are left out."""
_MIN_SHIFT_SHARE = 0.25
"""An edit moves lines by a number that at least this share of the best supported one's lines agree on."""
_MIN_SIMILARITY = 0.6
"""Of a line before and after a substitution."""
_MAX_POSITIONS = 200
_MAX_COMPARED_LINES = 5_000
_MAX_COMPARISONS = 500
"""Limits that keep the time of a search linear in the text."""


class _KnownLine(NamedTuple):
    number: int | None
    version: int
    """Version of the file when the line was shown; -1 separates two observations."""


class KnownFile:
    """The text of one file that the predecessor was shown or wrote."""

    def __init__(self) -> None:
        self.lines: list[_KnownLine] = []
        """In the order shown; consecutive lines of one observation are neighbours."""
        self.positions: dict[str, list[int]] = defaultdict(list)
        self.written: set[str] = set()
        self.written_texts: list[str] = []
        self._comparisons = 0

    def reset_comparisons(self) -> None:
        """Start another successor, so that its figures do not depend on those measured before."""
        self._comparisons = 0

    def add_shown(self, line: ShownLine, version: int) -> None:
        positions = self.positions[line.text.rstrip()]
        if len(positions) < _MAX_POSITIONS:
            positions.append(len(self.lines))
        self.lines.append(_KnownLine(line.number, version))

    def end_observation(self) -> None:
        """Separate the lines of two observations."""
        self.lines.append(_KnownLine(None, -1))

    def add_written(self, text: str) -> None:
        self.written_texts.append(text)
        self.written.update(stripped for line in text.split("\n") if (stripped := line.strip()))

    def match_line(
        self, shown: Sequence[ShownLine], index: int, version: int, shifts: frozenset[int]
    ) -> tuple[int, int | None]:
        """Known characters of the line `shown[index]`, and its number in the file if known.

        `version` is the present version of the file, `shifts` what `find_shifts` returns for it.
        """
        line = shown[index]
        stripped = line.text.strip()
        exact, near = self._find_positions(line, version, shifts)
        if exact is not None or self._has_context(near, shown, index):
            earlier = next((self.lines[p].number for p in near if self.lines[p].number), None)
            return line.size, exact or line.number or earlier
        if stripped in self.written and (
            len(stripped) >= _WRITTEN_CHARS or self._has_written_neighbour(shown, index)
        ):
            return line.size, line.number
        if len(stripped) >= _CONTAINED_CHARS and any(stripped in text for text in self.written_texts):
            return line.size, line.number
        if len(stripped) > _LONG_LINE_CHARS:
            return round(line.size * self._measure_shingles(stripped)), line.number
        return (line.size, line.number) if self._is_substitution(stripped) else (0, None)

    def _find_positions(
        self, line: ShownLine, version: int, shifts: frozenset[int]
    ) -> tuple[int | None, tuple[int, ...]]:
        """The line's number if it was shown with it, or else the positions at which it may have been shown."""
        near = []
        for position in self.positions.get(line.text.rstrip(), ()):
            known = self.lines[position]
            if known.number is None or line.number is None:
                near.append(position)
            elif known.number == line.number:
                return line.number, ()
            elif known.version != version and line.number - known.number in shifts:
                near.append(position)
        return None, tuple(near)

    def find_shifts(self, lines: Iterable[ShownLine], version: int) -> frozenset[int]:
        """By how many lines the shown part of an edited file has moved: the differences that most lines agree on."""
        counts: Counter[int] = Counter()
        for line in lines:
            for position in self.positions.get(line.text.rstrip(), ()):
                known = self.lines[position]
                if known.number is not None and line.number is not None and known.version != version:
                    counts[line.number - known.number] += 1
        most = max(counts.values(), default=0)
        return frozenset(shift for shift, count in counts.items() if count >= max(most * _MIN_SHIFT_SHARE, 1))

    def _has_context(self, near: Sequence[int], shown: Sequence[ShownLine], index: int) -> bool:
        """Whether a line is recognized: it is distinctive, or its neighbour was its neighbour before, too."""
        if not near:
            return False
        is_distinctive = len(shown[index].text.strip()) >= _DISTINCTIVE_CHARS
        if is_distinctive and len({self.lines[position].number for position in near}) == 1:
            return True
        for step in (-1, 1):
            neighbour = _find_neighbour(shown, index, step)
            known = self.positions.get(neighbour.text.rstrip(), ()) if neighbour else ()
            if any(position + step in known for position in near):
                return True
        return False

    def _has_written_neighbour(self, shown: Sequence[ShownLine], index: int) -> bool:
        neighbours = (_find_neighbour(shown, index, step) for step in (-1, 1))
        texts = [neighbour.text.strip() for neighbour in neighbours if neighbour]
        return any(len(text) >= _WRITTEN_CHARS and text in self.written for text in texts)

    def _is_substitution(self, text: str) -> bool:
        """Whether a line is a known one in which the predecessor replaced some characters."""
        is_too_much = len(self.positions) > _MAX_COMPARED_LINES or self._comparisons >= _MAX_COMPARISONS
        if not self.written_texts or len(text) < _WRITTEN_CHARS or is_too_much:
            return False
        self._comparisons += 1
        candidates = get_close_matches(text, self._comparable_lines, n=3, cutoff=_MIN_SIMILARITY)
        return any(self._was_replaced(candidate, text) for candidate in candidates)

    @cached_property
    def _comparable_lines(self) -> tuple[str, ...]:
        return tuple(line for known in self.positions if len(line := known.strip()) <= _LONG_LINE_CHARS)

    def _was_replaced(self, before: str, after: str) -> bool:
        inserted = [
            after[start:end]
            for kind, _, _, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
            if kind in ("insert", "replace")
        ]
        return bool(inserted) and all(
            any(each.strip() in text for text in self.written_texts) for each in inserted
        )

    def _measure_shingles(self, text: str) -> float:
        """Share of the shingles of a text that occur in the known text."""
        shingles = _list_shingles(text)
        return sum(each in self._shingles for each in shingles) / len(shingles)

    @cached_property
    def _shingles(self) -> frozenset[str]:
        return frozenset(_list_shingles("\n".join([*self.positions, *self.written_texts])))


def _find_neighbour(shown: Sequence[ShownLine], index: int, step: int) -> ShownLine | None:
    """The line of the same file before or after a line, if it is near it in the file."""
    other = index + step
    if not 0 <= other < len(shown) or shown[other].paths != shown[index].paths:
        return None
    here, there = shown[index].number, shown[other].number
    return None if here and there and abs(there - here) > _MAX_GAP else shown[other]


def _list_shingles(text: str) -> list[str]:
    return [text[start : start + _SHINGLE_CHARS] for start in range(max(len(text) - _SHINGLE_CHARS + 1, 1))]
