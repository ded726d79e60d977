"""Data that tables and plots share: graded takeovers and the order of their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from langgraph_takeover.evals.reports.derived import add_derived_measures
from langgraph_takeover.evals.reports.estimates import Pair, pair_with_baseline, select_graded
from langgraph_takeover.evals.run.journal import INFRASTRUCTURE_FAILURE, Row
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.settings.config import BASELINE, POINTS, shorten_model_name
from langgraph_takeover.handoff.views import VIEWS

STATES = ("needs_completion", "already_solved", "behavior_broken")
UNLABELLED = "unlabelled"
BEST_INFORMED_VIEWS = ("trace", "transcript", "cited", "payload", "structured", "summary")
"""Views, from the most informative down."""


class ReportData(NamedTuple):
    """Graded takeovers with their handoff state, and their names in display order."""

    takeovers: tuple[Row, ...]
    """Takeovers without an infrastructure failure, each with `handoff_state` and derived measures."""
    failed_count: int
    views: tuple[str, ...]
    successors: tuple[str, ...]
    predecessors: tuple[str, ...]
    points: tuple[str, ...]
    states: tuple[str, ...]
    reference_view: str | None
    """The best-informed view that was run, the reference of handoff debt; None if only the baseline was run."""

    def select(self, **fields: str) -> tuple[Row, ...]:
        """The takeovers with these field values."""
        return tuple(
            row for row in self.takeovers if all(row.get(name) == value for name, value in fields.items())
        )

    def pair_with_reference(self, rows: tuple[Row, ...], view: str) -> tuple[Pair, ...]:
        """Takeovers under a view, each with the one under the best-informed view at the same point."""
        return pair_with_baseline(rows, view, self.reference_view) if self.reference_view else ()


def collect_report_data(results: Results) -> ReportData:
    labels = {row["record_id"]: row.get("handoff_state") or UNLABELLED for row in results.labels}
    takeovers = add_derived_measures(
        (
            row | {"handoff_state": labels.get(row["record_id"], UNLABELLED)}
            for row in select_graded(results.takeovers)
        ),
        results.predecessors,
    )
    configs = [source.config for source in results.sources]
    views = _sort_by_order(
        (BASELINE, *VIEWS),
        [*(view for config in configs for view in config.views), *_distinct_values(takeovers, "view")],
    )
    return ReportData(
        takeovers=takeovers,
        failed_count=sum(row["outcome"] == INFRASTRUCTURE_FAILURE for row in results.takeovers),
        views=views,
        successors=_sort_by_order(
            [name for config in configs for name in config.successors],
            _distinct_values(results.takeovers, "successor"),
        ),
        predecessors=_sort_by_order(
            [name for config in configs for name in config.predecessors],
            _distinct_values(takeovers, "predecessor"),
        ),
        points=_sort_by_order(POINTS, _distinct_values(takeovers, "point")),
        states=_sort_by_order((*STATES, UNLABELLED), _distinct_values(takeovers, "handoff_state")),
        reference_view=next(
            (view for view in BEST_INFORMED_VIEWS if view in _distinct_values(takeovers, "view")), None
        ),
    )


def display_names(models: Iterable[str]) -> dict[str, str]:
    """Display names of models: a replay has the name of its file if that is unique."""
    names = {
        name: f"replay:{shorten_model_name(name)}" if name.startswith("replay:") else name for name in models
    }
    file_names = {name: f"replay:{name.rsplit('/', 1)[-1]}" for name in names if name.startswith("replay:")}
    unique = {name: text for name, text in file_names.items() if list(file_names.values()).count(text) == 1}
    return names | unique


def _distinct_values(rows: Iterable[Row], field: str) -> list[str]:
    return sorted({row[field] for row in rows if row.get(field)})


def _sort_by_order(order: Iterable[str], present: Iterable[str]) -> tuple[str, ...]:
    """The present names in that order; names without a place in it come last, by name."""
    ordered, remaining = list(dict.fromkeys(order)), set(present)
    return (*(name for name in ordered if name in remaining), *sorted(remaining.difference(ordered)))
