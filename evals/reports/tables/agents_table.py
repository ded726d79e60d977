"""The tables of the cost of a switch: who takes over from whom, under which view, at which kind of point."""

from __future__ import annotations

from langgraph_takeover.evals.models import is_llm
from langgraph_takeover.evals.reports.collection import ReportData, display_names
from langgraph_takeover.evals.reports.tables.switch_costs import (
    OUTCOMES,
    SwitchCost,
    is_agent_study,
    measure_switches,
)
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.results import Results

_GROUP = ("predecessor", "successor", "view")
_COSTS = ("takeovers", "left out", "pairs", "solved %", "continuation solved %", "Δ events", "Δ tokens")
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
    names = display_names((*data.predecessors, *data.successors))
    rows = tuple(
        (
            *(names[cost.predecessor], names[cost.successor], cost.view),
            *_cost_cells(cost),
            cost.first_prompt_tokens,
            *(None if cost.events is None else cost.events[outcome] for outcome in OUTCOMES),
        )
        for cost in costs
    )
    columns = (*_GROUP, *_COSTS, "first prompt", *(f"events {outcome}" for outcome in OUTCOMES))
    notes = (
        *_describe_state(costs),
        *_NOTES,
        *_SESSION_NOTES,
        *data.describe_left_out(),
        *_describe_models(data),
    )
    return Table(18, "agents", "Cost of a switch by predecessor, successor and view", columns, rows, notes)


def _build_points_table(data: ReportData) -> Table:
    names = display_names((*data.predecessors, *data.successors))
    costs = [(point, cost) for point in data.points for cost in measure_switches(data, point)]
    rows = tuple(
        (point, names[cost.predecessor], names[cost.successor], cost.view, *_cost_cells(cost))
        for point, cost in costs
    )
    notes = (
        *_describe_state([cost for _, cost in costs]),
        *_NOTES,
        *data.describe_left_out(),
        *_describe_models(data),
    )
    title = "Cost of a switch by kind of handoff point"
    return Table(19, "agent_points", title, ("point", *_GROUP, *_COSTS), rows, notes)


def _cost_cells(cost: SwitchCost) -> tuple[Cell, ...]:
    share, own = cost.solved_share, cost.solved_by_continuation
    return (
        *(cost.takeovers, cost.left_out, cost.pairs or None, None if share is None else 100 * share),
        None if own is None else 100 * own / cost.pairs,
        *(cost.extra_events, cost.extra_tokens),
    )


def _describe_state(costs: tuple[SwitchCost, ...] | list[SwitchCost]) -> tuple[str, ...]:
    if not costs:
        return (_EMPTY,)
    return () if any(cost.pairs for cost in costs) else (_WITHOUT_BASELINE,)


def _describe_models(data: ReportData) -> tuple[str, ...]:
    """Say that only LLMs ran; the caveats of all tables name models that are none."""
    names = (*data.predecessors, *data.successors)
    return ("Every agent worked with an LLM.",) if names and all(map(is_llm, names)) else ()
