"""Tables of the effects of views against the baseline: overall, by point, by state, by predecessor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from langgraph_takeover.evals.reports.collection import (
    OVERFLOW,
    STATE_BY_REGRESSION,
    STATES,
    ReportData,
    display_names,
    sum_costs,
)
from langgraph_takeover.evals.reports.estimates import (
    RESAMPLES,
    SEED,
    Estimate,
    Pair,
    compute_matched_medians,
    compute_median_change,
    estimate_change,
    estimate_solved_delta,
    mcnemar,
    pair_with_baseline,
    quantile,
    read_measure,
    read_values,
)
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.results import UNLABELLED
from langgraph_takeover.evals.run.settings.config import BASELINE

Rows = tuple[Row, ...]
COST_MEASURES = ("events", "prompt_tokens", "completion_tokens", "seconds")
EFFECT_COLUMNS = (
    *("runs", "left out", "solved", "solved %", "median events", "median prompt tokens"),
    *("median completion tokens", "median seconds", "pairs", "Δ median events %", "Δ median prompt tokens %"),
    *("Δ solved pp", "context overflow", "uncounted calls", "cost, USD"),
)
_FAILURE_COLUMNS = (
    *("median failing FAIL_TO_PASS", "median failing PASS_TO_PASS"),
    "with regressions",
)
_FAILURE_NOTE = (
    "Solved is the official verdict at the end: from behavior_broken, no regression remains; from already_solved, the "
    "solution is preserved. Failing tests and regressions (any failing PASS_TO_PASS test) are those of the final patch."
)
_DELTA_NOTE = (
    "Only common points, at which the successor has a graded takeover under each of its views, so that levels can be compared; "
    f"table 20 has all takeovers, as the paper. Δ compares with {BASELINE} at the same point, successor and repeat: medians "
    "over these pairs in percent, solved in percentage points. Left out: takeovers that are not at common points."
)


def build_effects_table(data: ReportData) -> Table:
    """Table 2; like those by kind, of data at common points."""
    rows = build_rows(data, lambda rows, view: _effect_cells(rows, _pair_rows(data, view, rows, "successor")))
    columns = ("successor", "view", *EFFECT_COLUMNS)
    title = "Takeovers by successor and view, at common points"
    return Table(2, "effects", title, columns, rows, build_notes(data, _DELTA_NOTE))


def build_matched_table(data: ReportData) -> Table:
    """One row per successor, view and measure."""
    names, rows = display_names(data.successors), []
    for successor in data.successors:
        of_successor = data.select(successor=successor)
        for view in data.views:
            if view == BASELINE or not (pairs := pair_with_baseline(of_successor, view)):
                continue
            test = mcnemar(pairs)
            for name, measure in (("events", "events"), ("prompt tokens", "prompt_tokens")):
                rows += [
                    (names[successor], view, f"{name}, {change} %", *cells, None, None, None)
                    for change, cells in _change_cells(pairs, measure).items()
                ]
            delta = estimate_solved_delta(pairs)
            cells = (delta.pairs, delta.excluded, None, None, *_percent_cells(delta))
            rows.append((names[successor], view, "solved, Δ pp", *cells, *test))
    return Table(
        3,
        "matched",
        f"Matched takeovers against {BASELINE}",
        (
            *("successor", "view", "measure", "pairs", "excluded", f"{BASELINE} median", "view median"),
            *("estimate", "95 % low", "95 % high", "gained", "lost", "p"),
        ),
        tuple(rows),
        build_notes(
            data,
            "Reductions are negative. Change of medians: the view's median against the baseline's, both over the pairs. "
            "Mean and median change: of the relative changes of single pairs; the paper's intervals are those of "
            "mean changes. Solved: mean difference. Excluded: pairs without token counts.",
            f"Intervals: percentile bootstrap of pairs, {RESAMPLES:,} resamples, seed {SEED}, none for a single pair. Pairs "
            "of one task are not independent. p: McNemar's exact two-sided test over pairs gained and lost, without "
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
        "Takeovers by initial handoff state",
        "handoff_state",
        data.states,
        "The evaluator determines states by official validation of the snapshot; agents never see them. An unresolved "
        "snapshot with a failing FAIL_TO_PASS test is needs_completion, without one behavior_broken; table 15 has the "
        "regression-first order.",
        _FAILURE_NOTE,
    )


def build_regression_table(data: ReportData) -> Table:
    """The table by state in the regression-first order; empty if no label knows it."""
    by_state = {state: {STATE_BY_REGRESSION: state} for state in (*STATES, UNLABELLED)}
    states = tuple(
        state for state, field in by_state.items() if data.select(**field) or data.count_left_out(**field)
    )
    notes: tuple[str, ...] = (
        "The states of table 6 in the regression-first order: an unresolved snapshot is behavior_broken if any "
        "PASS_TO_PASS test fails, "
        "else needs_completion.",
        _FAILURE_NOTE,
    )
    if states in ((), (UNLABELLED,)):
        states, notes = (), ("No label states regressions.",)
    title = "Takeovers by initial handoff state, any regression is broken"
    return _build_table_by(data, 15, "states_by_regression", title, STATE_BY_REGRESSION, states, *notes)


def build_predecessor_table(data: ReportData) -> Table:
    notes = () if len(data.predecessors) > 1 else ("Only one predecessor: no comparison.",)
    return _build_table_by(
        data,
        8,
        "predecessors",
        "Takeovers by predecessor",
        "predecessor",
        data.predecessors,
        *notes,
    )


def build_rows(
    data: ReportData, make_cells: Callable[[Rows, str], tuple[Cell, ...] | None]
) -> tuple[tuple[Cell, ...], ...]:
    """A row for each successor and view that has cells.

    The first cell is the number of takeovers that the others cover. The number of those left out is added after it.
    """
    names = display_names(data.successors)
    rows = []
    for successor in data.successors:
        for view in data.views:
            selected = data.select(successor=successor, view=view)
            if cells := make_cells(selected, view):
                expected = len(selected) + data.count_left_out(successor=successor, view=view)
                rows.append((names[successor], view, *add_left_out(cells, expected)))
    return tuple(rows)


def add_left_out(cells: tuple[Cell, ...], expected: int) -> tuple[Cell, ...]:
    """The cells, with the number of expected takeovers that they do not cover after the number of those that they do."""
    assert isinstance(cells[0], int)
    return cells[0], expected - cells[0], *cells[1:]


def _build_table_by(
    data: ReportData, number: int, name: str, title: str, field: str, kinds: tuple[str, ...], *notes: str
) -> Table:
    names = display_names((*data.successors, *data.predecessors))
    by_state = field in ("handoff_state", STATE_BY_REGRESSION)
    rows = []
    for successor in data.successors:
        for kind in kinds:
            for view in data.views:
                fields = {"successor": successor, field: kind, "view": view}
                selected = data.select(**fields)
                expected = len(selected) + data.count_left_out(**fields)
                if expected:
                    cells = _effect_cells(selected, _pair_rows(data, view, selected, "successor", field))
                    failures = _failure_cells(selected) if by_state else ()
                    labels = (names[successor], names.get(kind, kind), view)
                    rows.append((*labels, *add_left_out(cells, expected), *failures))
    group = "handoff state" if by_state else field
    columns = ("successor", group, "view", *EFFECT_COLUMNS, *(_FAILURE_COLUMNS if by_state else ()))
    title = f"{title}, at common points"
    return Table(number, name, title, columns, tuple(rows), (*notes, *build_notes(data, _DELTA_NOTE)))


def _pair_rows(data: ReportData, view: str, rows: Rows, *fields: str) -> tuple[Pair, ...]:
    """The rows, each with the row of the baseline that has the same values in these fields."""
    if view == BASELINE or not rows:
        return ()
    return pair_with_baseline(
        (*rows, *data.select(view=BASELINE, **{field: rows[0][field] for field in fields})), view
    )


def _effect_cells(rows: Rows, pairs: tuple[Pair, ...]) -> tuple[Cell, ...]:
    return (
        *level_cells(rows),
        len(pairs) if pairs else None,
        *(to_percent(compute_median_change(pairs, measure)) for measure in COST_MEASURES[:2]),
        to_percent(estimate_solved_delta(pairs).value) if pairs else None,
        *cost_cells(rows),
    )


def level_cells(rows: Rows) -> tuple[Cell, ...]:
    return (
        *(len(rows), sum(row["resolved"] for row in rows), 100 * solved_share(rows) if rows else None),
        *(quantile(read_values(rows, measure), 0.5) for measure in COST_MEASURES),
    )


def cost_cells(rows: Rows) -> tuple[Cell, ...]:
    cost = sum_costs(rows)
    overflows = sum(row["stop_reason"] == OVERFLOW for row in rows)
    return overflows, cost.uncounted_calls, cost.cost_usd if rows else None


def solved_share(rows: Rows) -> float:
    return sum(bool(row["resolved"]) for row in rows) / len(rows)


def _failure_cells(rows: Rows) -> tuple[Cell, ...]:
    """Failing tests of the final patches, and the takeovers with regressions; None if no row states them."""
    regressions = [row["regressions"] for row in rows if isinstance(row.get("regressions"), bool)]
    return (
        quantile(read_values(rows, "fail_to_pass_failures"), 0.5),
        quantile(read_values(rows, "pass_to_pass_failures"), 0.5),
        sum(regressions) if regressions else None,
    )


def _change_cells(pairs: tuple[Pair, ...], measure: str) -> dict[str, tuple[Cell, ...]]:
    """By kind of change: pairs, excluded pairs, both medians, the estimate and its interval."""
    mean = estimate_change(pairs, measure, np.mean)
    own, base = compute_matched_medians(pairs, measure) or (None, None)
    counts, change = (mean.pairs, mean.excluded), to_percent(compute_median_change(pairs, measure))
    middle = estimate_change(pairs, measure, np.median)
    return {
        "change of medians": (*counts, base, own, change, None, None),
        "mean change": (*counts, None, None, *_percent_cells(mean)),
        "median change": (*counts, None, None, *_percent_cells(middle)),
    }


def _percent_cells(estimate: Estimate) -> tuple[Cell, ...]:
    low, high = estimate.interval or (None, None)
    return to_percent(estimate.value), to_percent(low), to_percent(high)


def to_percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def build_notes(data: ReportData, *delta_notes: str) -> tuple[str, ...]:
    """Notes on deltas and on missing token counts."""
    uncounted = sum(read_measure(row, "prompt_tokens") is None for row in data.takeovers)
    token_notes = [
        f"Medians of prompt tokens exclude {uncounted} takeovers without token counts (at common points: with one under some view)."
    ]
    overflows = sum(row["stop_reason"] == OVERFLOW for row in data.takeovers)
    overflow_notes = [
        f"{overflows} takeovers ended with context_overflow: their conversation exceeded the model's context window. Their "
        "patch and their effort up to there count."
    ]
    views = {row["view"] for row in data.takeovers}
    if BASELINE not in views:
        delta_notes = (f"The {BASELINE} view was not run: no deltas.",)
    elif views == {BASELINE}:
        delta_notes = (f"Only the {BASELINE} view was run: no comparison.",)
    return (
        *delta_notes,
        *data.describe_left_out(),
        *(token_notes if uncounted else ()),
        *(overflow_notes if overflows else ()),
    )
