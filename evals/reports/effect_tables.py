"""The tables of what views change against the baseline: over all, by point, by state, by predecessor."""

from __future__ import annotations

from collections.abc import Callable

from evals.reports.collection import Collection, names
from evals.reports.statistics import (
    RESAMPLES,
    SEED,
    Estimate,
    Pair,
    against,
    known,
    mcnemar,
    median_change,
    quantile,
    reduction,
    solved_delta,
    values,
)
from evals.reports.table_files import Cell, Table
from evals.run.config import BASELINE
from evals.run.journal import Row

Rows = tuple[Row, ...]
_COSTS = ("events", "prompt_tokens", "completion_tokens", "seconds")
_EFFECTS = (
    *("runs", "solved", "solved %", "median events", "median prompt tokens", "median completion tokens"),
    *("median seconds", "pairs", "Δ median events %", "Δ median prompt tokens %", "Δ solved pp"),
)
REFERENCE = "Reference effect sizes (the paper's Table 2): median events 20 to 59 % down, prompt tokens 42 to 63 % down."
_DELTAS = (
    f"Δ: against {BASELINE} at the same point, by the same successor and repeat; of medians over those pairs, and of "
    "solved in percentage points."
)


def main(found: Collection) -> Table:
    rows = by_successor_and_view(
        found, lambda rows, view: _effects(rows, _pairs(found, view, rows, "successor"))
    )
    columns = ("successor", "view", *_EFFECTS)
    return Table(
        2, "effects", "Takeovers by successor and view", columns, rows, (*_said(found, _DELTAS), REFERENCE)
    )


def matched(found: Collection) -> Table:
    """One row a successor, view and measure."""
    called, rows = names(found.successors), []
    for successor in found.successors:
        mine = found.of(successor=successor)
        for view in found.views:
            if view == BASELINE or not (pairs := against(mine, view)):
                continue
            test = mcnemar(pairs)
            for name, measure in (("events", "events"), ("prompt tokens", "prompt_tokens")):
                saved = _percent(reduction(pairs, measure))
                rows.append((called[successor], view, f"{name}, reduction %", *saved, None, None, None))
            delta = _percent(solved_delta(pairs))
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
        _said(
            found,
            "Estimate: median over pairs of the share that is saved, or mean of solved less the baseline's. Left out: "
            "pairs whose tokens nobody counted.",
            f"Intervals: percentile bootstrap of runs, {RESAMPLES:,} resamples, seed {SEED}, none from a single pair; "
            "runs of one task are not independent. p: McNemar, exact and two-sided, over the pairs gained and lost; no "
            "correction for multiple comparisons.",
        ),
    )


def by_point(found: Collection) -> Table:
    return _by(found, 5, "points", "Takeovers by kind of handoff point", "point", found.points)


def by_state(found: Collection) -> Table:
    return _by(
        found,
        6,
        "states",
        "Takeovers by the state that they began with",
        "handoff_state",
        found.states,
        "States are the evaluator's, by official validation of the frozen machine; no agent sees them. Solved is the "
        "official verdict at the end: from behavior_broken it means that no regression is left, from already_solved "
        "that the solution was kept.",
    )


def by_predecessor(found: Collection) -> Table:
    alone = () if len(found.predecessors) > 1 else ("One predecessor: nothing to compare.",)
    return _by(
        found,
        8,
        "predecessors",
        "Takeovers by predecessor",
        "predecessor",
        found.predecessors,
        *alone,
    )


def by_successor_and_view(
    found: Collection, told: Callable[[Rows, str], tuple[Cell, ...] | None]
) -> tuple[tuple[Cell, ...], ...]:
    """A row for each successor and view that there is something to tell of."""
    called = names(found.successors)
    return tuple(
        (called[successor], view, *cells)
        for successor in found.successors
        for view in found.views
        if (cells := told(found.of(successor=successor, view=view), view)) is not None
    )


def _by(
    found: Collection, number: int, name: str, title: str, field: str, kinds: tuple[str, ...], *said: str
) -> Table:
    called = names((*found.successors, *found.predecessors))
    rows = []
    for successor in found.successors:
        for kind in kinds:
            for view in found.views:
                mine = found.of(**{"successor": successor, field: kind, "view": view})
                if mine:
                    cells = _effects(mine, _pairs(found, view, mine, "successor", field))
                    rows.append((called[successor], called.get(kind, kind), view, *cells))
    columns = ("successor", field.replace("_", " "), "view", *_EFFECTS)
    return Table(number, name, title, columns, tuple(rows), (*said, *_said(found, _DELTAS)))


def _pairs(found: Collection, view: str, rows: Rows, *fields: str) -> tuple[Pair, ...]:
    """The rows beside those of the baseline that have the same in these fields."""
    if view == BASELINE or not rows:
        return ()
    return against((*rows, *found.of(view=BASELINE, **{field: rows[0][field] for field in fields})), view)


def _effects(rows: Rows, pairs: tuple[Pair, ...]) -> tuple[Cell, ...]:
    solved = sum(row["resolved"] for row in rows)
    return (
        *(len(rows), solved, 100 * solved / len(rows) if rows else None),
        *(quantile(values(rows, measure), 0.5) for measure in _COSTS),
        len(pairs) if pairs else None,
        *(_hundredths(median_change(pairs, measure)) for measure in _COSTS[:2]),
        _hundredths(solved_delta(pairs).value) if pairs else None,
    )


def _percent(found: Estimate) -> tuple[Cell, ...]:
    low, high = found.interval or (None, None)
    return found.pairs, found.left_out, _hundredths(found.value), _hundredths(low), _hundredths(high)


def _hundredths(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _said(found: Collection, *of_deltas: str) -> tuple[str, ...]:
    """What the notes must say of these rows, and of deltas where there are any."""
    uncounted = sum(known(row, "prompt_tokens") is None for row in found.takeovers)
    said = [f"{uncounted} takeovers whose prompt tokens nobody counted are in no median of them."]
    ran = {row["view"] for row in found.takeovers}
    if BASELINE not in ran:
        of_deltas = (f"The {BASELINE} view was not run, so that there is nothing to match with.",)
    elif ran == {BASELINE}:
        of_deltas = (f"No view but {BASELINE} was run, so that there is nothing to compare.",)
    return (*of_deltas, *(said if uncounted else ()))
