"""Whether what a soak watches grows: a least-squares slope with its interval, and the verdict on a stated bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from rich.table import Table
from scipy import stats

CONFIDENCE = 0.95
_FEWEST = 4
"""Samples, below which no slope is told from chance."""


class Measure(NamedTuple):
    """One thing that is watched, and how much growth of it is still no leak."""

    name: str
    bound: float
    per: Literal["hour", "operation"]
    """What the bound is for."""


class Sample(NamedTuple):
    """What all of it was at one moment."""

    hours: float
    operations: int
    values: dict[str, float]


class Growth(NamedTuple):
    """By how much something grows, and between what and what that lies."""

    slope: float
    low: float
    high: float


class Line(NamedTuple):
    """What became of one thing that was watched."""

    measure: Measure
    begin: float
    end: float
    hourly: Growth | None
    each: Growth | None
    """For each operation."""

    @property
    def judged(self) -> Growth | None:
        return self.hourly if self.measure.per == "hour" else self.each

    @property
    def verdict(self) -> Literal["leak", "holds", "too few samples"]:
        if self.judged is None:
            return "too few samples"
        return "leak" if self.judged.low > self.measure.bound else "holds"


def growth(places: Sequence[float], values: Sequence[float]) -> Growth | None:
    """The slope through these points and its interval; None where they are too few to tell."""
    if len(places) < _FEWEST or len(set(places)) < _FEWEST:
        return None
    count, x, y = len(places), fmean(places), fmean(values)
    spread = sum((place - x) ** 2 for place in places)
    slope = sum((place - x) * (value - y) for place, value in zip(places, values, strict=True)) / spread
    missed = sum((value - y - slope * (place - x)) ** 2 for place, value in zip(places, values, strict=True))
    # `scipy.stats.linregress` has no interval for what stays as it is.
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 2)) * math.sqrt(missed / (count - 2) / spread)
    return Growth(slope, slope - reach, slope + reach)


def lines(samples: Sequence[Sample], measures: Sequence[Measure]) -> tuple[Line, ...]:
    """What became of each thing that was watched."""
    hours = [sample.hours for sample in samples]
    operations = [float(sample.operations) for sample in samples]
    found = []
    for measure in measures:
        values = [sample.values[measure.name] for sample in samples]
        hourly, each = growth(hours, values), growth(operations, values)
        found.append(Line(measure, values[0], values[-1], hourly, each))
    return tuple(found)


def table(found: Sequence[Line], title: str) -> Table:
    shown = Table(title=f"{title}; growth with intervals of {CONFIDENCE:.0%}")
    shown.add_column("watched")
    for head in ("begin", "end", "an hour", "interval", "an operation", "interval", "bound"):
        shown.add_column(head, justify="right")
    shown.add_column("verdict")
    for line in found:
        begin, end = (_short(value) for value in (line.begin, line.end))
        bound = f"{_short(line.measure.bound)} {'an hour' if line.measure.per == 'hour' else 'each'}"
        verdict = f"[bold]{line.verdict}[/bold]" if line.verdict == "leak" else line.verdict
        slopes = (*_columns(line.hourly), *_columns(line.each))
        shown.add_row(line.measure.name, begin, end, *slopes, bound, verdict)
    return shown


def as_json(line: Line) -> dict[str, object]:
    return {
        "watched": line.measure.name,
        "begin": line.begin,
        "end": line.end,
        "an_hour": line.hourly and line.hourly._asdict(),
        "an_operation": line.each and line.each._asdict(),
        "bound": line.measure.bound,
        "bound_for": line.measure.per,
        "verdict": line.verdict,
    }


def _columns(found: Growth | None) -> tuple[str, str]:
    if found is None:
        return "–", "–"
    return f"{found.slope:+.3g}", f"{found.low:+.3g} … {found.high:+.3g}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
