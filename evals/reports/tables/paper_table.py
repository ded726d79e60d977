"""The table that compares a run of a study with the paper's published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from langgraph_takeover.evals.reports.paper.published_tables import (
    ALL,
    PublishedTable,
    list_studies,
    load_published_tables,
)
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.results import Results

PAPER_COLUMNS = (
    *("paper's table", "successor", "category", "view", "measure", "paper's combination"),
    *("paper, lowest", "paper, highest", "ours", "difference"),
)
_NOTES = (
    "The paper's numbers are as published (evals/reports/paper/tables.yaml). The paper reports results by combination of models. "
    "If our successor's name contains qwen, gemma or devstral, it is compared with the combination that has that successor (in "
    "the paper's table 5, that predecessor); else lowest and highest cover all combinations. The paper's table 4 has only Qwen to "
    "Qwen. Its tables 1 and 7 cover three successors.",
    "Ours is computed as the paper's number: levels and differences of its tables 2, 4, 5 and 7 to 9 over all takeovers of a view "
    "(our table 20), those of its tables 3 and 6 over pairs (our table 3). Difference: ours minus the paper's; with several "
    "combinations, the distance from their range, and 0 inside. Differences of percentages are in percentage points. A "
    "p value that the paper prints as below .001 is 0.001 here. Counts differ if only a part of the study was run.",
)


class _Group(NamedTuple):
    """The rows of one of our tables that have a successor and a category in common."""

    successor: str
    category: str


def build_paper_tables(results: Results, tables: Sequence[Table]) -> tuple[Table, ...]:
    """The comparison of our `tables` with the paper's, if all runs belong to the same study of it."""
    studies, ours = list_studies(results), {table.name: table for table in tables}
    published = [each for each in load_published_tables() if studies == (each.study,)]
    if not published:
        return ()
    rows = tuple(row for each in published for row in _compare(each, ours[each.ours]))
    return (Table(17, "paper", f"The paper's study {studies[0]} and ours", PAPER_COLUMNS, rows, _NOTES),)


def _compare(published: PublishedTable, table: Table) -> Iterator[tuple[Cell, ...]]:
    for group, by_view in _read_groups(table, published.group).items():
        pairs = published.choose_pairs(
            group.category if published.match == "predecessor" else group.successor
        )
        shown = "all" if len(pairs) > 1 or pairs == (ALL,) else pairs[0]
        for view, cells in by_view.items():
            for column in published.columns:
                numbers = published.find_numbers(pairs, group.category, view, column)
                if numbers and column in cells:
                    low, high, own = min(numbers), max(numbers), cells[column]
                    comparison = (low, high, own, _subtract(own, low, high))
                    yield (published.table, *group, view, column, shown, *comparison)


def _read_groups(table: Table, part: str) -> dict[_Group, dict[str, dict[str, Cell]]]:
    """By group and view: the cells by column; by measure and column in the table of matched takeovers."""
    groups: dict[_Group, dict[str, dict[str, Cell]]] = {}
    for values in table.rows:
        cells = dict(zip(table.columns, values, strict=True))
        if cells.get("group", "") != part:
            continue
        if table.name == "study":
            group, view = _Group("", str(cells["item"])), str(cells["category"])
        else:
            category = str(cells.get("category", ""))
            group, view = _Group(str(cells["successor"]), category), str(cells["view"])
        groups.setdefault(group, {}).setdefault(view, {}).update(_name_cells(cells))
    return groups


def _name_cells(cells: Mapping[str, Cell]) -> dict[str, Cell]:
    prefix = f"{cells['measure']}: " if "measure" in cells else ""
    return {f"{prefix}{column}": value for column, value in cells.items()}


def _subtract(own: Cell, low: float, high: float) -> float | None:
    if not isinstance(own, int | float):
        return None
    return round(own - min(max(own, low), high), 6)
