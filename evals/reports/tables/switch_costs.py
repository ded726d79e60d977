"""Tables of agents: the cost of a switch, by predecessor, successor and view, and what each agent cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeAlias

from langgraph_takeover.evals.models import is_llm, split_agent
from langgraph_takeover.evals.reports.collection import ReportData, display_names, list_cost_groups
from langgraph_takeover.evals.reports.estimates import (
    match_pairs,
    read_paired_values,
    read_values,
    total_tokens,
)
from langgraph_takeover.evals.reports.tables.selections import to_percent
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import CountedTakeover, Takeover
from langgraph_takeover.handoff.names import CONTINUATION

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
        row.view == CONTINUATION for row in results.takeovers
    )


def measure_switches(data: ReportData, point: str | None = None) -> tuple[SwitchCost, ...]:
    """The cost for each predecessor, successor and view with graded takeovers; of one kind of point, or of all."""
    rows = data.select(point=point) if point else data.takeovers
    continuations = [row for row in rows if row.view == CONTINUATION]
    groups: dict[tuple[str, str, str], list[CountedTakeover]] = {}
    for row in rows:
        groups.setdefault((row.predecessor or "", row.successor, row.view), []).append(row)
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
    key: tuple[str, str, str],
    rows: Sequence[CountedTakeover],
    continuations: Sequence[CountedTakeover],
    uncounted: int,
) -> SwitchCost:
    predecessor, successor, view = key
    pairs = () if view == CONTINUATION else match_pairs(rows, continuations, _PAIR_KEY)
    compared: Sequence[Takeover] = rows if view == CONTINUATION else [row for row, _ in pairs]
    events = [a - b for a, b in read_paired_values(pairs, "events")]
    tokens = [
        a - b
        for row, own in pairs
        if (a := total_tokens(row)) is not None and (b := total_tokens(own)) is not None
    ]
    return SwitchCost(
        predecessor=predecessor,
        successor=successor,
        view=view,
        takeovers=len(rows),
        left_out=uncounted + len(rows) - len(compared),
        solved=sum(row.is_solved for row in compared),
        solved_by_continuation=sum(own.is_solved for _, own in pairs) if pairs else None,
        pairs=len(pairs),
        extra_events=_median_or_none(events),
        extra_tokens=_median_or_none(tokens),
        first_prompt_tokens=_median_or_none(read_values(rows, "first_prompt_tokens")),
        events=_sum_accounts(row.session_account for row in rows),
    )


def _count_converted(outcome: str) -> Callable[[SwitchCost], Cell]:
    """The column with the number of events of native sessions with this outcome."""
    return lambda cost: None if cost.events is None else cost.events[outcome]


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


def _sum_accounts(accounts: Iterable[Mapping[str, int] | None]) -> dict[str, int] | None:
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


def build_cost_table(results: Results, data: ReportData) -> Table:
    groups = list_cost_groups(results, data.views)
    names = display_names(group.model for group in groups)
    return Table(
        13,
        "costs",
        "Tokens and costs",
        (
            *(
                "role",
                "model",
                "view",
                "runs",
                "left out",
                "LLM calls",
                "prompt tokens",
                "cached tokens",
                "completion tokens",
            ),
            *("uncounted calls", "cost, USD"),
        ),
        tuple(
            (group.role, names[group.model], group.view, group.cost.runs, group.left_out, *group.cost[1:])
            for group in groups
        ),
        (
            "Cached tokens are part of the prompt tokens, and have their own price. A sum is missing (–) if a price is unknown, "
            "or if an endpoint reported no usage for a call, which then counts as uncounted. Models that are no LLM cost "
            "nothing. Left out: infrastructure failures, whose calls may be billed, too.",
        ),
    )


_CostColumns: TypeAlias = Mapping[str, Callable[[SwitchCost], Cell]]
_GROUP = ("predecessor", "successor", "view")
_COSTS: _CostColumns = {
    "takeovers": lambda cost: cost.takeovers,
    "left out": lambda cost: cost.left_out,
    "pairs": lambda cost: cost.pairs or None,
    "solved %": lambda cost: to_percent(cost.solved_share),
    "continuation solved %": lambda cost: (
        None if cost.solved_by_continuation is None else 100 * cost.solved_by_continuation / cost.pairs
    ),
    "Δ events": lambda cost: cost.extra_events,
    "Δ tokens": lambda cost: cost.extra_tokens,
}
_SESSIONS: _CostColumns = {
    "first prompt": lambda cost: cost.first_prompt_tokens,
    **{f"events {outcome}": _count_converted(outcome) for outcome in OUTCOMES},
}
_NOTES = (
    "Continuation: the predecessor's own agent resumes its session at the same point; it is the baseline of all successors. "
    "Solved: of the pairs, by the takeover and by its continuation. Left out: takeovers without a pair. Δ: median over the "
    "pairs of what a takeover needed beyond the continuation of the same point and repeat. Tokens: prompt and completion.",
)
_SESSION_NOTES = (
    "First prompt: median tokens, estimated at four characters each, without the instructions and tools that an external agent "
    "adds; of a continuation, the conversation that it resumed. Events: sums over the takeovers whose successor got "
    "the history as a session of its own kind.",
)
_EMPTY = "No graded takeovers yet."
_WITHOUT_BASELINE = "No graded continuation yet, so differences are unknown."


def build_agent_tables(results: Results, data: ReportData) -> tuple[Table, ...]:
    """The tables of runs with continuations; none for other runs."""
    if not is_agent_study(results):
        return ()
    return _build_agents_table(data), _build_points_table(data)


def _build_agents_table(data: ReportData) -> Table:
    costs = measure_switches(data)
    columns = {**_COSTS, **_SESSIONS}
    rows = tuple(_compute_cells(data, cost, columns) for cost in costs)
    notes = (
        *_describe_state(costs),
        *_NOTES,
        *_SESSION_NOTES,
        *data.describe_left_out(),
        *_describe_models(data),
    )
    title = "Cost of a switch by predecessor, successor and view"
    return Table(18, "agents", title, (*_GROUP, *columns), rows, notes)


def _build_points_table(data: ReportData) -> Table:
    costs = [(point, cost) for point in data.points for cost in measure_switches(data, point)]
    rows = tuple((point, *_compute_cells(data, cost, _COSTS)) for point, cost in costs)
    notes = (
        *_describe_state([cost for _, cost in costs]),
        *_NOTES,
        *data.describe_left_out(),
        *_describe_models(data),
    )
    title = "Cost of a switch by kind of handoff point"
    return Table(19, "agent_points", title, ("point", *_GROUP, *_COSTS), rows, notes)


def _compute_cells(data: ReportData, cost: SwitchCost, columns: _CostColumns) -> tuple[Cell, ...]:
    names = display_names((*data.predecessors, *data.successors))
    labels = (names[cost.predecessor], names[cost.successor], cost.view)
    return (*labels, *(compute(cost) for compute in columns.values()))


def _describe_state(costs: tuple[SwitchCost, ...] | list[SwitchCost]) -> tuple[str, ...]:
    if not costs:
        return (_EMPTY,)
    return () if any(cost.pairs for cost in costs) else (_WITHOUT_BASELINE,)


def _describe_models(data: ReportData) -> tuple[str, ...]:
    """Note that only LLMs ran; the caveats of all tables name other models."""
    names = (*data.predecessors, *data.successors)
    return ("Every agent worked with an LLM.",) if names and all(map(is_llm, names)) else ()
