"""The cost of a switch: takeovers by predecessor, successor and view, against the predecessor's own continuation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from langgraph_takeover.evals.models import split_agent
from langgraph_takeover.evals.reports.collection import ReportData, display_names
from langgraph_takeover.evals.reports.estimates import match_pairs, read_measure, read_values
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.handoff.views.names import CONTINUATION

BUILT_IN = "built-in"
OUTCOMES = ("converted", "shortened", "dropped")
_PAIR_KEY = ("record_id", "repeat")


class SwitchCost(NamedTuple):
    """The takeovers of one predecessor's work by one successor under one view."""

    predecessor: str
    successor: str
    view: str
    takeovers: int
    left_out: int
    """Takeovers without a pair: failed, not run, or without a continuation."""
    solved: int
    """Of the pairs; of a continuation, of all takeovers."""
    solved_by_continuation: int | None
    """Of the same pairs; None without any."""
    pairs: int
    """Takeovers whose point and repeat have a continuation."""
    extra_events: float | None
    """Median over the pairs: events beyond those of the continuation."""
    extra_tokens: float | None
    """The same for prompt and completion tokens, over the pairs in which both are counted."""
    first_prompt_tokens: float | None
    """Median."""
    events: dict[str, int] | None
    """How many events of the history became what in native sessions; None without native sessions."""

    @property
    def solved_share(self) -> float | None:
        """Of the pairs, from 0 to 1; None without any."""
        compared = self.takeovers if self.view == CONTINUATION else self.pairs
        return self.solved / compared if compared else None


def is_agent_study(results: Results) -> bool:
    """Whether a run compares takeovers with continuations."""
    return any(CONTINUATION in source.config.views for source in results.sources) or any(
        row["view"] == CONTINUATION for row in results.takeovers
    )


def measure_switches(data: ReportData, point: str | None = None) -> tuple[SwitchCost, ...]:
    """The cost for each predecessor, successor and view with graded takeovers; of one kind of point, or of all."""
    rows = data.select(point=point) if point else data.takeovers
    continuations = [row for row in rows if row["view"] == CONTINUATION]
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.get("predecessor") or "", row["successor"], row["view"]), []).append(row)
    kind = {"point": point} if point else {}
    return tuple(
        _measure_group(
            (predecessor, successor, view),
            own,
            continuations,
            data.count_left_out(predecessor=predecessor, successor=successor, view=view, **kind),
        )
        for predecessor in data.predecessors
        for successor in data.successors
        for view in data.views
        if (own := groups.get((predecessor, successor, view)))
    )


def _measure_group(
    key: tuple[str, str, str], rows: Sequence[Row], continuations: Sequence[Row], uncounted: int
) -> SwitchCost:
    predecessor, successor, view = key
    pairs = () if view == CONTINUATION else match_pairs(rows, continuations, _PAIR_KEY)
    compared = rows if view == CONTINUATION else [row for row, _ in pairs]
    events = [
        a - b
        for row, own in pairs
        if (a := read_measure(row, "events")) is not None and (b := read_measure(own, "events")) is not None
    ]
    tokens = [
        a - b
        for row, own in pairs
        if (a := _sum_tokens(row)) is not None and (b := _sum_tokens(own)) is not None
    ]
    return SwitchCost(
        predecessor=predecessor,
        successor=successor,
        view=view,
        takeovers=len(rows),
        left_out=uncounted + len(rows) - len(compared),
        solved=sum(bool(row["resolved"]) for row in compared),
        solved_by_continuation=sum(bool(own["resolved"]) for _, own in pairs) if pairs else None,
        pairs=len(pairs),
        extra_events=_median_or_none(events),
        extra_tokens=_median_or_none(tokens),
        first_prompt_tokens=_median_or_none(read_values(rows, "first_prompt_tokens")),
        events=_sum_accounts(row.get("session_account") for row in rows),
    )


def find_best_successors(costs: Iterable[SwitchCost]) -> set[tuple[str, str, str]]:
    """Predecessor, successor and view of the best takeovers of each predecessor's work under each view.

    The best are solved most often compared with the continuations, then with the fewest extra events; several if they are equal.
    """
    ranks: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for cost in costs:
        if cost.extra_events is not None:
            lost = (cost.solved_by_continuation or 0) - cost.solved
            rank = (lost / cost.pairs, cost.extra_events)
            ranks.setdefault((cost.predecessor, cost.view), {})[cost.successor] = rank
    return {
        (predecessor, successor, view)
        for (predecessor, view), by_successor in ranks.items()
        for successor, rank in by_successor.items()
        if rank == min(by_successor.values())
    }


def label_agents(names: Sequence[str]) -> dict[str, str]:
    """Short names for a figure: those of the agents alone, if the same model works for all of them."""
    split = {name: split_agent(name) for name in names}
    if len({model for _, model in split.values()}) > 1:
        return display_names(names)
    return {name: agent or BUILT_IN for name, (agent, _) in split.items()}


def _sum_tokens(row: Row) -> float | None:
    prompt, completion = read_measure(row, "prompt_tokens"), read_measure(row, "completion_tokens")
    return None if prompt is None or completion is None else prompt + completion


def _sum_accounts(accounts: Iterable[dict[str, int] | None]) -> dict[str, int] | None:
    """Sums by outcome; an account names a reason after the outcome."""
    known = [account for account in accounts if account]
    if not known:
        return None
    return {
        outcome: sum(
            number
            for account in known
            for name, number in account.items()
            if name.partition(":")[0] == outcome
        )
        for outcome in OUTCOMES
    }


def _median_or_none(sample: Sequence[float]) -> float | None:
    return float(median(sample)) if sample else None
