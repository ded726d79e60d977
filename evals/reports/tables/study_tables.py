"""The tables of results: the study, the effects of views, the cost of handoffs, over-trust, and the paper's figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

from langgraph_takeover.evals.reports.caveats import list_result_caveats
from langgraph_takeover.evals.reports.collection import (
    ReportData,
    collect_report_data,
    display_names,
    read_states_by_regression,
)
from langgraph_takeover.evals.reports.estimates import read_values
from langgraph_takeover.evals.reports.published_tables import (
    ALL,
    PublishedTable,
    list_studies,
    load_published_tables,
)
from langgraph_takeover.evals.reports.tables import debt_tables, effect_tables, trust_tables
from langgraph_takeover.evals.reports.tables.debt_tables import build_notes_table
from langgraph_takeover.evals.reports.tables.selections import (
    Columns,
    Rows,
    Selection,
    build_view_table,
    median_of,
    quantile_of,
)
from langgraph_takeover.evals.reports.tables.switch_costs import build_agent_tables, build_cost_table
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import STAGES

PAPER_COLUMNS = (
    *("paper's table", "successor", "category", "view", "measure", "paper's combination"),
    *("paper, lowest", "paper, highest", "ours", "difference"),
)
_NOTES = (
    "The paper's numbers are as published (evals/reports/published_tables.yaml). The paper reports results by combination of "
    "models. If our successor's name contains qwen, gemma or devstral, it is compared with the combination that has that successor "
    "(in the paper's table 5, that predecessor); else lowest and highest cover all combinations. The paper's table 4 has only "
    "Qwen to Qwen. Its tables 1 and 7 cover three successors.",
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


__all__ = ["Table", "build_tables"]


def build_tables(results: Results) -> tuple[Table, ...]:
    """Build all tables; a table without data is empty, and its notes say why. Only runs of a study have the paper's,
    and only runs with continuations those of agents.
    """
    data = collect_report_data(results)
    common = data.restrict_to_common_points()
    tables = (
        _build_study_table(results, data),
        effect_tables.build_effects_table(common),
        effect_tables.build_matched_table(data),
        _build_first_prompts_table(common),
        effect_tables.build_point_table(common),
        effect_tables.build_state_table(common),
        _build_repeats_table(data),
        effect_tables.build_predecessor_table(common),
        debt_tables.build_debt_table(results, common),
        debt_tables.build_uninterrupted_table(common),
        trust_tables.build_trust_table(common),
        trust_tables.build_belief_table(common),
        build_cost_table(results, data),
        build_notes_table(results),
        effect_tables.build_regression_table(common),
        trust_tables.build_patches_table(common),
    )
    all_takeovers = (
        trust_tables.build_unmatched_table(data),
        trust_tables.build_left_out_table(common.restrict_to_pooled_successors()),
    )
    compared = build_paper_tables(results, (*tables, *all_takeovers))
    caveats = (*list_result_caveats(results), *results.warnings)
    return tuple(
        table._replace(notes=table.notes + caveats)
        for table in (*tables, *compared, *build_agent_tables(results, data), *all_takeovers)
    )


def _build_study_table(results: Results, data: ReportData) -> Table:
    runs = [row for row in results.predecessors if not row.is_failure]
    kinds = {record: record.rpartition(".")[2] for row in runs for record in row.records or ()}
    kinds |= {row.record_id: row.point for row in data.takeovers if row.point}
    without_point = sum(not row.records for row in runs)
    tasks = {row.task_id for row in (*results.predecessors, *results.takeovers) if row.task_id}
    names = display_names([*data.successors, *(row.predecessor for row in runs)])
    states = Counter(row.handoff_state for row in results.labels if row.handoff_state)
    by_regression = read_states_by_regression(results.labels).values()
    stop_reasons = Counter((names[row.successor], row.stop_reason) for row in data.takeovers)
    rows: list[tuple[Cell, ...]] = [
        ("tasks", "", len(tasks)),
        *(("predecessor runs", name, n) for name, n in _count_sorted(names[row.predecessor] for row in runs)),
        ("predecessor runs", "without a handoff point", without_point),
        *(
            ("predecessor stop reasons", name, n)
            for name, n in _count_sorted(str(row.stop_reason) for row in runs)
        ),
        ("handoff points", "all", len(kinds)),
        *(("handoff points", name, n) for name, n in _count_sorted(kinds.values())),
        *_count_excluded(data),
        *(("handoff states", name, n) for name, n in sorted(states.items())),
        *(("handoff states, any regression is broken", name, n) for name, n in _count_sorted(by_regression)),
        ("takeovers", "graded", len(data.takeovers)),
        *((f"takeovers by {name}", reason, n) for (name, reason), n in sorted(stop_reasons.items())),
    ]
    for stage in STAGES:
        failed = sum(row.is_failure for row in getattr(results, stage))
        rows.append(("infrastructure failures", stage, failed))
    notes = (
        "Infrastructure failures are excluded from all other numbers of all tables. Handoff points: all that were reached. "
        "Excluded: all takeovers of a point are left out if it has no notes, but a view of the run shows notes.",
    )
    return Table(1, "study", "The study", ("item", "category", "count"), tuple(rows), notes)


def _count_excluded(data: ReportData) -> list[tuple[Cell, ...]]:
    """Rows with the number of points that do not count, as far as it could be checked."""
    counts = {}
    if data.excluded.runs and not data.excluded.is_unchecked:
        counts["excluded: notes missing"] = len(data.excluded.without_notes)
    if data.excluded.without_record:
        counts["excluded: record missing"] = len(data.excluded.without_record)
    return [("handoff points", name, number) for name, number in counts.items()]


def _count_sorted(keys: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(Counter(keys).items())


def _max_of(measure: str) -> Callable[[Selection], Cell]:
    return lambda each: max(read_values(each.rows, measure), default=None)


_FIRST_PROMPTS: Columns = {
    "median characters": median_of("first_prompt_chars"),
    "P90 characters": quantile_of("first_prompt_chars", 0.9),
    "max characters": _max_of("first_prompt_chars"),
    "median tokens": median_of("first_prompt_tokens"),
    "P90 tokens": quantile_of("first_prompt_tokens", 0.9),
    "max tokens": _max_of("first_prompt_tokens"),
}


def _build_first_prompts_table(data: ReportData) -> Table:
    notes = (
        "Takeovers at common points. Tokens of first prompts are estimated at four characters each.",
        *data.describe_left_out(),
    )
    table = (4, "first_prompts", "Size of a successor's first prompt")
    return build_view_table(table, data, _FIRST_PROMPTS, notes)


def _group_repeats(rows: Rows) -> list[Rows]:
    """The takeovers of each point that has several."""
    ordered = sorted(rows, key=lambda row: row.record_id)
    groups = (tuple(group) for _, group in groupby(ordered, key=lambda row: row.record_id))
    return [group for group in groups if len(group) > 1]


def _count_points(matches: Callable[[set[bool]], bool]) -> Callable[[Selection], int]:
    """The column with the number of points whose set of verdicts matches."""
    return lambda each: sum(matches({row.is_solved for row in group}) for group in _group_repeats(each.rows))


_count_all_points, _count_agreement = _count_points(bool), _count_points(lambda verdicts: len(verdicts) == 1)


def _median_range(measure: str) -> Callable[[Selection], Cell]:
    """The column with the median over points of maximum minus minimum."""

    def compute(each: Selection) -> Cell:
        samples = [read_values(group, measure) for group in _group_repeats(each.rows)]
        ranges = [max(values) - min(values) for values in samples if len(values) > 1]
        return median(ranges) if ranges else None

    return compute


_REPEATS: Columns = {
    "points": _count_all_points,
    "solved in all": _count_points(lambda verdicts: verdicts == {True}),
    "solved in some": _count_points(lambda verdicts: len(verdicts) > 1),
    "solved in none": _count_points(lambda verdicts: verdicts == {False}),
    "agreement %": lambda each: 100 * _count_agreement(each) / _count_all_points(each),
    "median range of events": _median_range("events"),
    "median range of prompt tokens": _median_range("prompt_tokens"),
}


def _build_repeats_table(data: ReportData) -> Table:
    notes = (
        "Only points with several graded repeats, so the points of the views can differ. Left out: takeovers at other points. "
        "Range: maximum minus minimum at a point.",
        *data.describe_left_out(),
    )
    return build_view_table(
        (7, "repeats", "Agreement between repeats"),
        data,
        _REPEATS,
        notes,
        narrow=lambda rows: tuple(row for group in _group_repeats(rows) for row in group),
        if_empty="No successor took a point over more than once under the same view.",
    )
