"""Measures of a takeover that need other rows: harm, rescue, preservation, debt against the uninterrupted run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langgraph_takeover.evals.reports.estimates import POINT_KEY, read_measure, select_graded
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.settings.config import BASELINE
from langgraph_takeover.handoff.views import CHARS_PER_TOKEN

ALREADY_SOLVED = "already_solved"


def add_derived_measures(takeovers: Iterable[Row], predecessors: Iterable[Row]) -> tuple[Row, ...]:
    """Graded takeovers with more fields; each is None where it does not apply.

    `takeovers` have their `handoff_state`. `harm` and `rescue`: solved only under the baseline, or only under the row's
    view, at the same point, successor and repeat. `preserved`: still solved, of snapshots that were solved. The
    `uninterrupted_*` fields are what the predecessor needed after the point, and `debt_vs_uninterrupted` (events) and
    `token_debt_vs_uninterrupted` (prompt tokens) what the takeover needed beyond that. `reshown_share` is from 0 to 1,
    `reshown_tokens` estimated at four characters each.
    """
    rows = select_graded(takeovers)
    baselines = {_get_key(row): row for row in rows if row["view"] == BASELINE}
    remainders = _collect_remainders(predecessors)
    return tuple(
        row
        | _compare_outcomes(row, baselines)
        | _compare_with_remainder(row, remainders.get(row["record_id"]))
        | _measure_text(row)
        for row in rows
    )


def _get_key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in POINT_KEY)


def _compare_outcomes(row: Row, baselines: Mapping[tuple[Any, ...], Row]) -> Row:
    baseline = baselines.get(_get_key(row)) if row["view"] != BASELINE else None
    is_solved = bool(row["resolved"])
    return {
        "harm": None if baseline is None else bool(baseline["resolved"]) and not is_solved,
        "rescue": None if baseline is None else is_solved and not baseline["resolved"],
        "preserved": is_solved if row.get("handoff_state") == ALREADY_SOLVED else None,
    }


def _collect_remainders(predecessors: Iterable[Row]) -> dict[str, Row]:
    """By record: what its predecessor still needed, and whether it solved the task at the end."""
    return {
        record_id: remainder | {"resolved": row.get("resolved")}
        for row in predecessors
        for record_id, remainder in (row.get("remainders") or {}).items()
        if remainder is not None
    }


def _compare_with_remainder(row: Row, remainder: Row | None) -> Row:
    rest = remainder or {}
    return {
        "uninterrupted_events": rest.get("events"),
        "uninterrupted_prompt_tokens": rest.get("prompt_tokens"),
        "uninterrupted_resolved": rest.get("resolved"),
        "debt_vs_uninterrupted": _subtract(row, rest, "events"),
        "token_debt_vs_uninterrupted": _subtract(row, rest, "prompt_tokens"),
    }


def _subtract(row: Row, rest: Row, measure: str) -> float | None:
    own, other = read_measure(row, measure), read_measure(rest, measure)
    return None if own is None or other is None else own - other


def _measure_text(row: Row) -> Row:
    shown, reshown = read_measure(row, "shown_chars"), read_measure(row, "reshown_chars")
    return {
        "reshown_share": reshown / shown if reshown is not None and shown else None,
        "reshown_tokens": None if reshown is None else -(-reshown // CHARS_PER_TOKEN),
    }
