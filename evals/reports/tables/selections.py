"""Tables as data: named columns, each a function of the takeovers in one row of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from langgraph_takeover.evals.reports.collection import ReportData, display_names
from langgraph_takeover.evals.reports.estimates import Pair, pair_with_baseline, quantile, read_values
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.rows import CountedTakeover
from langgraph_takeover.evals.run.settings.config import BASELINE

Rows = tuple[CountedTakeover, ...]


@dataclass(frozen=True)
class Selection:
    """The takeovers in one row of a table: those under one view with the same values of some fields."""

    data: ReportData
    fields: Mapping[str, str]
    view: str
    rows: Rows
    baseline: Rows
    """The takeovers under the baseline with the same values; none for the baseline itself."""
    expected: int
    """The takeovers that the row could cover, including those that are left out."""

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """The takeovers, each with the baseline's of the same point, successor and repeat."""
        return pair_with_baseline((*self.rows, *self.baseline), self.view) if self.baseline else ()

    def compute(self, columns: Columns) -> tuple[Cell, ...]:
        """The cells of a row: covered takeovers, those left out, and the columns."""
        covered = len(self.rows)
        return covered, self.expected - covered, *(compute(self) for compute in columns.values())


Columns: TypeAlias = Mapping[str, Callable[[Selection], Cell]]
COVERED = ("runs", "left out")
"""The columns before those of a table."""


def select_views(data: ReportData, **fields: str) -> Iterator[Selection]:
    """The takeovers with these field values under each view."""
    by_view: dict[str, list[CountedTakeover]] = {view: [] for view in (*data.views, BASELINE)}
    for row in data.select(**fields):
        by_view[row.view].append(row)
    for view in data.views:
        rows = tuple(by_view[view])
        baseline = () if view == BASELINE else tuple(by_view[BASELINE])
        expected = len(rows) + data.count_left_out(**fields, view=view)
        yield Selection(data, fields, view, rows, baseline, expected)


def build_view_table(
    table: tuple[int, str, str],
    data: ReportData,
    columns: Columns,
    notes: Iterable[str],
    *,
    narrow: Callable[[Rows], Rows] | None = None,
    if_empty: str = "",
) -> Table:
    """A table, by number, name and title, with one row for each successor and view.

    With `narrow`, a row covers only a part of the takeovers, and an empty row is left out.
    """
    names, rows = display_names(data.successors), []
    for successor in data.successors:
        for selection in select_views(data, successor=successor):
            covered = selection if narrow is None else replace(selection, rows=narrow(selection.rows))
            if covered.rows or narrow is None:
                rows.append((names[successor], selection.view, *covered.compute(columns)))
    shown = (if_empty,) if if_empty and not rows else tuple(notes)
    return Table(*table, ("successor", "view", *COVERED, *columns), tuple(rows), shown)


def median_of(measure: str) -> Callable[[Selection], Cell]:
    """The column with the median of a measure."""
    return quantile_of(measure, 0.5)


def quantile_of(measure: str, share: float) -> Callable[[Selection], Cell]:
    return lambda each: quantile(read_values(each.rows, measure), share)


def count_true(field: str) -> Callable[[Selection], Cell]:
    """The column with the number of takeovers for which an answer is yes; None if no answer is known."""
    return lambda each: sum(answers) if (answers := list_answers(each.rows, field)) else None


def count_known(field: str) -> Callable[[Selection], Cell]:
    """The column with the number of takeovers for which an answer is known; None if there is none."""
    return lambda each: len(list_answers(each.rows, field)) or None


def percent_true(field: str) -> Callable[[Selection], Cell]:
    """The column with the share of yes among the known answers."""
    return lambda each: percent_of(list_answers(each.rows, field))


def list_answers(rows: Iterable[CountedTakeover], field: str) -> list[bool]:
    """The known answers to a question."""
    return [answer for row in rows if (answer := getattr(row, field)) is not None]


def percent_of(answers: Sequence[bool]) -> float | None:
    return 100 * sum(answers) / len(answers) if answers else None


def count_solved(each: Selection) -> int:
    return sum(row.is_solved for row in each.rows)


def solved_share(rows: Rows) -> float | None:
    return sum(row.is_solved for row in rows) / len(rows) if rows else None


def to_percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
