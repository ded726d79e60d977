"""Tokens and money over rows: by role, model and view, and of a whole study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from langgraph_takeover.evals.reports.estimates import read_measure
from langgraph_takeover.evals.run.journal import INFRASTRUCTURE_FAILURE, Row
from langgraph_takeover.evals.run.results import Results

OVERFLOW = "context_overflow"
"""The stop reason of a conversation that exceeded its model's context window."""


class CostSum(NamedTuple):
    """Sums over rows. None if a row's value is unknown, because a part is no sum."""

    runs: int
    llm_calls: int
    prompt_tokens: int | None
    cached_tokens: int | None
    """The part of the prompt tokens that was cached; None also if no row reports it."""
    completion_tokens: int | None
    uncounted_calls: int
    cost_usd: float | None


class CostGroup(NamedTuple):
    """The rows of one role and model, and of one view for successors."""

    role: str
    model: str
    view: str
    cost: CostSum
    left_out: int
    """Infrastructure failures, whose costs are unknown."""


def sum_costs(rows: Iterable[Row]) -> CostSum:
    """Sum the costs of rows. Infrastructure failures have none."""
    counted = [row for row in rows if row["outcome"] != INFRASTRUCTURE_FAILURE]
    prompt = _sum_tokens(counted, "prompt_tokens")
    cached = [value for row in counted if (value := read_measure(row, "cached_tokens")) is not None]
    costs = [read_measure(row, "cost_usd") for row in counted]
    return CostSum(
        runs=len(counted),
        llm_calls=int(sum(read_measure(row, "llm_calls") or 0 for row in counted)),
        prompt_tokens=prompt,
        cached_tokens=int(sum(cached)) if cached and prompt is not None else None,
        completion_tokens=_sum_tokens(counted, "completion_tokens"),
        uncounted_calls=int(sum(read_measure(row, "uncounted_calls") or 0 for row in counted)),
        cost_usd=None if None in costs else round(sum(cost for cost in costs if cost is not None), 8),
    )


def list_cost_groups(results: Results, views: Sequence[str]) -> tuple[CostGroup, ...]:
    """The costs of predecessors, notes and successors by model, those of successors also by view, and of all."""
    groups = [
        *_group("predecessor", results.predecessors, "predecessor"),
        *_group("notes", results.notes, "model"),
        *(
            group._replace(view=view)
            for view in views
            for group in _group(
                "successor", [row for row in results.takeovers if row["view"] == view], "successor"
            )
        ),
    ]
    every = (*results.predecessors, *results.notes, *results.takeovers)
    return (*groups, CostGroup("all", "", "", sum_costs(every), _count_failures(every)))


def _group(role: str, rows: Iterable[Row], field: str) -> list[CostGroup]:
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(str(row.get(field) or ""), []).append(row)
    return [
        CostGroup(role, model, "", sum_costs(mine), _count_failures(mine))
        for model, mine in sorted(by_model.items())
    ]


def _count_failures(rows: Iterable[Row]) -> int:
    return sum(row["outcome"] == INFRASTRUCTURE_FAILURE for row in rows)


def _sum_tokens(rows: Sequence[Row], name: str) -> int | None:
    values = [value for row in rows if row.get("llm_calls") != 0 for value in _read_tokens(row, name)]
    return None if None in values else int(sum(value for value in values if value is not None))


def _read_tokens(row: Row, name: str) -> list[float | None]:
    """A row's tokens; of notes that an older version wrote, those of both kinds."""
    if name in row or "usage" not in row:
        return [read_measure(row, name)]
    return [read_measure(usage, name) for usage in row["usage"].values() if isinstance(usage, dict)]


def format_usd(value: float | None) -> str:
    """An amount in US dollars, with the digits that small runs need."""
    if value is None:
        return "–"
    return f"{value:,.2f}" if value >= 100 else f"{value:.4f}"
