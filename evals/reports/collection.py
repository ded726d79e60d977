"""What the tables and the pictures of results have in common: who took over what, in which order it is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from evals.reports.statistics import Pair, against, graded
from evals.run.config import BASELINE, POINTS, short
from evals.run.journal import FAILED, Row
from evals.run.results import Results
from handoff.views import VIEWS

STATES = ("needs_completion", "already_solved", "behavior_broken")
UNLABELLED = "unlabelled"
BEST_INFORMED = ("trace", "transcript", "cited", "payload", "structured", "summary")
"""Views, the one that tells most of the predecessor's work first."""


class Collection(NamedTuple):
    """Takeovers with their handoff state, and the names that they are told by, in order."""

    takeovers: tuple[Row, ...]
    """Those whose infrastructure held; each with `handoff_state`."""
    failed: int
    views: tuple[str, ...]
    successors: tuple[str, ...]
    predecessors: tuple[str, ...]
    points: tuple[str, ...]
    states: tuple[str, ...]
    reference: str | None
    """The best-informed view there is, with which handoff debt is compared; None where there is but the baseline."""

    def of(self, **named: str) -> tuple[Row, ...]:
        """The takeovers whose fields are these."""
        return tuple(
            row for row in self.takeovers if all(row.get(name) == value for name, value in named.items())
        )

    def debts(self, rows: tuple[Row, ...], view: str) -> tuple[Pair, ...]:
        """Takeovers under a view, each beside the one under the best-informed view at its point."""
        return against(rows, view, self.reference) if self.reference else ()


def collected(results: Results) -> Collection:
    labels = {row["record_id"]: row.get("handoff_state") or UNLABELLED for row in results.labels}
    takeovers = tuple(
        row | {"handoff_state": labels.get(row["record_id"], UNLABELLED)} for row in graded(results.takeovers)
    )
    configs = [source.config for source in results.sources]
    views = _ordered(
        (BASELINE, *VIEWS), [*(view for config in configs for view in config.views), *_all(takeovers, "view")]
    )
    return Collection(
        takeovers=takeovers,
        failed=sum(row["outcome"] == FAILED for row in results.takeovers),
        views=views,
        successors=_ordered(
            [name for config in configs for name in config.successors], _all(results.takeovers, "successor")
        ),
        predecessors=_ordered(
            [name for config in configs for name in config.predecessors], _all(takeovers, "predecessor")
        ),
        points=_ordered(POINTS, _all(takeovers, "point")),
        states=_ordered((*STATES, UNLABELLED), _all(takeovers, "handoff_state")),
        reference=next((view for view in BEST_INFORMED if view in _all(takeovers, "view")), None),
    )


def names(models: Iterable[str]) -> dict[str, str]:
    """How models are called in print: a replay by its file's name, where that is no other's."""
    found = {name: f"replay:{short(name)}" if name.startswith("replay:") else name for name in models}
    plain = {name: f"replay:{name.rsplit('/', 1)[-1]}" for name in found if name.startswith("replay:")}
    unique = {name: text for name, text in plain.items() if list(plain.values()).count(text) == 1}
    return found | unique


def _all(rows: Iterable[Row], field: str) -> list[str]:
    return sorted({row[field] for row in rows if row.get(field)})


def _ordered(order: Iterable[str], there: Iterable[str]) -> tuple[str, ...]:
    """What there is, in that order; what is not in it comes last, by name."""
    known, left = list(dict.fromkeys(order)), set(there)
    return (*(name for name in known if name in left), *sorted(left.difference(known)))
