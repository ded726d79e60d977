"""The tables of what views change against the baseline: over all, by point, by state, by predecessor."""

from __future__ import annotations

from collections.abc import Callable

from langgraph_takeover.evals.reports.collection import ReportData, display_names
from langgraph_takeover.evals.reports.statistics import (
    RESAMPLES,
    SEED,
    Estimate,
    Pair,
    compute_median_change,
    estimate_reduction,
    estimate_solved_delta,
    mcnemar,
    pair_with_baseline,
    quantile,
    read_measure,
    read_values,
)
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.settings.config import BASELINE

Rows = tuple[Row, ...]
_COST_MEASURES = ("events", "prompt_tokens", "completion_tokens", "seconds")
_EFFECT_COLUMNS = (
    *("runs", "solved", "solved %", "median events", "median prompt tokens", "median completion tokens"),
    *("median seconds", "pairs", "Δ median events %", "Δ median prompt tokens %", "Δ solved pp"),
)
REFERENCE_NOTE = "Reference effect sizes (the paper's Table 2): median events 20 to 59 % down, prompt tokens 42 to 63 % down."
_DELTA_NOTE = (
    f"Δ: against {BASELINE} at the same point, by the same successor and repeat; of medians over those pairs, and of "
    "solved in percentage points."
)


def build_effects_table(data: ReportData) -> Table:
    rows = build_rows(data, lambda rows, view: _effect_cells(rows, _pair_rows(data, view, rows, "successor")))
    columns = ("successor", "view", *_EFFECT_COLUMNS)
    return Table(
        2,
        "effects",
        "Takeovers by successor and view",
        columns,
        rows,
        (*_build_notes(data, _DELTA_NOTE), REFERENCE_NOTE),
    )


def build_matched_table(data: ReportData) -> Table:
    """One row a successor, view and measure."""
    called, rows = display_names(data.successors), []
    for successor in data.successors:
        mine = data.select(successor=successor)
        for view in data.views:
            if view == BASELINE or not (pairs := pair_with_baseline(mine, view)):
                continue
            test = mcnemar(pairs)
            for name, measure in (("events", "events"), ("prompt tokens", "prompt_tokens")):
                saved = _percent_cells(estimate_reduction(pairs, measure))
                rows.append((called[successor], view, f"{name}, reduction %", *saved, None, None, None))
            delta = _percent_cells(estimate_solved_delta(pairs))
            rows.append((called[successor], view, "solved, Δ pp", *delta, *test))
    return Table(
        3,
        "matched",
        f"Matched takeovers against {BASELINE}",
        (
            *("successor", "view", "measure", "pairs", "left out", "estimate", "95 % low", "95 % high"),
            *("gained", "lost", "p"),
        ),
        tuple(rows),
        _build_notes(
            data,
            "Estimate: median over pairs of the share that is saved, or mean of solved less the baseline's. Left out: "
            "pairs whose tokens nobody counted.",
            f"Intervals: percentile bootstrap of runs, {RESAMPLES:,} resamples, seed {SEED}, none from a single pair; "
            "runs of one task are not independent. p: McNemar, exact and two-sided, over the pairs gained and lost; no "
            "correction for multiple comparisons.",
        ),
    )


def build_point_table(data: ReportData) -> Table:
    return _build_table_by(data, 5, "points", "Takeovers by kind of handoff point", "point", data.points)


def build_state_table(data: ReportData) -> Table:
    return _build_table_by(
        data,
        6,
        "states",
        "Takeovers by the state that they began with",
        "handoff_state",
        data.states,
        "States are the evaluator's, by official validation of the frozen machine; no agent sees them. Solved is the "
        "official verdict at the end: from behavior_broken it means that no regression is left, from already_solved "
        "that the solution was kept.",
    )


def build_predecessor_table(data: ReportData) -> Table:
    alone = () if len(data.predecessors) > 1 else ("One predecessor: nothing to compare.",)
    return _build_table_by(
        data,
        8,
        "predecessors",
        "Takeovers by predecessor",
        "predecessor",
        data.predecessors,
        *alone,
    )


def build_rows(
    data: ReportData, make_cells: Callable[[Rows, str], tuple[Cell, ...] | None]
) -> tuple[tuple[Cell, ...], ...]:
    """A row for each successor and view that there is something to tell of."""
    called = display_names(data.successors)
    return tuple(
        (called[successor], view, *cells)
        for successor in data.successors
        for view in data.views
        if (cells := make_cells(data.select(successor=successor, view=view), view)) is not None
    )


def _build_table_by(
    data: ReportData, number: int, name: str, title: str, field: str, kinds: tuple[str, ...], *notes: str
) -> Table:
    called = display_names((*data.successors, *data.predecessors))
    rows = []
    for successor in data.successors:
        for kind in kinds:
            for view in data.views:
                mine = data.select(**{"successor": successor, field: kind, "view": view})
                if mine:
                    cells = _effect_cells(mine, _pair_rows(data, view, mine, "successor", field))
                    rows.append((called[successor], called.get(kind, kind), view, *cells))
    columns = ("successor", field.replace("_", " "), "view", *_EFFECT_COLUMNS)
    return Table(number, name, title, columns, tuple(rows), (*notes, *_build_notes(data, _DELTA_NOTE)))


def _pair_rows(data: ReportData, view: str, rows: Rows, *fields: str) -> tuple[Pair, ...]:
    """The rows beside those of the baseline that have the same in these fields."""
    if view == BASELINE or not rows:
        return ()
    return pair_with_baseline(
        (*rows, *data.select(view=BASELINE, **{field: rows[0][field] for field in fields})), view
    )


def _effect_cells(rows: Rows, pairs: tuple[Pair, ...]) -> tuple[Cell, ...]:
    solved = sum(row["resolved"] for row in rows)
    return (
        *(len(rows), solved, 100 * solved / len(rows) if rows else None),
        *(quantile(read_values(rows, measure), 0.5) for measure in _COST_MEASURES),
        len(pairs) if pairs else None,
        *(_to_percent(compute_median_change(pairs, measure)) for measure in _COST_MEASURES[:2]),
        _to_percent(estimate_solved_delta(pairs).value) if pairs else None,
    )


def _percent_cells(estimate: Estimate) -> tuple[Cell, ...]:
    low, high = estimate.interval or (None, None)
    return estimate.pairs, estimate.excluded, _to_percent(estimate.value), _to_percent(low), _to_percent(high)


def _to_percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _build_notes(data: ReportData, *delta_notes: str) -> tuple[str, ...]:
    """What the notes must say of these rows, and of deltas where there are any."""
    uncounted = sum(read_measure(row, "prompt_tokens") is None for row in data.takeovers)
    said = [f"{uncounted} takeovers whose prompt tokens nobody counted are in no median of them."]
    ran = {row["view"] for row in data.takeovers}
    if BASELINE not in ran:
        delta_notes = (f"The {BASELINE} view was not run, so that there is nothing to match with.",)
    elif ran == {BASELINE}:
        delta_notes = (f"No view but {BASELINE} was run, so that there is nothing to compare.",)
    return (*delta_notes, *(said if uncounted else ()))
