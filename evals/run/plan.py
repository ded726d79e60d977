"""The plan of a run: its remaining jobs with estimated costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from statistics import median
from typing import NamedTuple

from langgraph_takeover.evals.models import ModelPrice, is_llm
from langgraph_takeover.evals.run.execution.jobs import RunJobs, list_point_takeovers
from langgraph_takeover.evals.run.journal import Journals
from langgraph_takeover.evals.run.measures.replies import TokenTotals, compute_cost_usd, list_needed_notes
from langgraph_takeover.evals.run.rows import STAGES, AgentRow, Row
from langgraph_takeover.evals.run.settings.config import BASELINE, RunConfig
from langgraph_takeover.evals.run.settings.point_selection import list_quotas
from langgraph_takeover.handoff.notes.writer import OUTPUT_TOKENS
from langgraph_takeover.handoff.views import VIEWS_WITH_NOTES

POINTS_PER_RUN = {
    "first_source_edit": 75 / 75,
    "first_validation": 75 / 75,
    "first_post_failure_edit": 31 / 75,
}
"""Rates of the paper's 75 predecessors."""
GRADING_S = 60.0
CALL_S = 8.0
_SAVINGS = (0.42, 0.63)
"""Prompt tokens that the other views save in the paper, relative to the repository view: minimum and maximum."""


class Costs(NamedTuple):
    """The costs of one run of an agent."""

    calls: float
    prompt_tokens: float
    completion_tokens: float
    seconds: float
    cached_tokens: float = 0.0
    """The part of the prompt tokens that is priced as cached."""
    usd: float = 0.0
    """NaN if the price of a model is unknown."""


RECORDED_COSTS = Costs(36, 421_000, 7_600, 36 * CALL_S)
"""Medians of 60 public runs of mini-swe-agent 1 on SWE-bench Verified. Seconds assume `CALL_S` per call."""
_NOTE_PROMPT = 14_000
"""Of one call, with the trace up to the point."""


class PlanLine(NamedTuple):
    """One stage of the plan, with minimum and maximum costs of its remaining jobs."""

    stage: str
    jobs: int
    done: int
    low: Costs
    high: Costs


class Plan(NamedTuple):
    points: Counter[str]
    """The points that are taken over, by kind."""
    reached: int
    """All points, of which those are selected."""
    is_estimated: bool
    """Whether the points are expected, because the predecessors have not run."""
    recorded: int
    """The number of predecessors whose points are those of their recordings, not the paper's rates."""
    lines: tuple[PlanLine, ...]
    basis: str


def make_plan(jobs: RunJobs) -> Plan:
    """Plan a run. Counts are exact once the predecessors have run; before, the points are estimated."""
    config = jobs.config
    runs = len(jobs.list_jobs("predecessors"))
    expected = len(jobs.journals.predecessors.keys()) < runs or bool(jobs.describe_missing_results())
    if expected:
        reached, kinds = _expect_points(jobs)
    else:
        reached = len(jobs.list_reached_points())
        kinds = Counter(point.kind for point in jobs.select_points())
    points = sum(kinds.values())
    noted = points if any(view in VIEWS_WITH_NOTES for view in config.views) else 0
    of_predecessors = sum(len(list_point_takeovers(config, name)) for name in config.predecessors)
    counts = {
        "predecessors": runs,
        "labels": reached if config.quotas else points,
        "notes": noted,
        "takeovers": round(points * of_predecessors / len(config.predecessors))
        if expected
        else len(jobs.list_jobs("takeovers")),
    }
    own, graded_s, basis = _choose_basis(jobs.journals)
    lines = []
    for name in STAGES:
        done = len(getattr(jobs.journals, name))
        left = max(counts[name] - done, 0)
        low, high = (_scale(costs, left) for costs in _estimate_costs(name, config, own, graded_s))
        lines.append(PlanLine(name, counts[name], done, low, high))
    return Plan(
        kinds, reached, expected, len(set(config.predecessors) & set(config.recordings)), tuple(lines), basis
    )


def _expect_points(jobs: RunJobs) -> tuple[int, Counter[str]]:
    """The number of points that the predecessors reach, and the selected ones by kind if each quota can be filled."""
    config, total = jobs.config, 0
    kinds: Counter[str] = Counter(dict.fromkeys(config.points, 0))
    for predecessor in config.predecessors:
        if predecessor in config.recordings:
            reached = _count_recorded_points(config, predecessor)
        else:
            rates = {kind: round(len(jobs.tasks) * POINTS_PER_RUN[kind]) for kind in config.points}
            reached = Counter(rates)
        total += reached.total()
        kinds.update(_select_kinds(jobs, reached) if list_quotas(config) else reached)
    return total, kinds


def _count_recorded_points(config: RunConfig, predecessor: str) -> Counter[str]:
    """The points of a replay's recordings, without running them."""
    from langgraph_takeover.evals.models.replay import list_recorded_points

    recordings = config.recordings[predecessor].values()
    kinds = [kind for name in recordings for kind in list_recorded_points(name)]
    return Counter(kind for kind in kinds if kind in config.points)


def _select_kinds(jobs: RunJobs, reached: Counter[str]) -> Counter[str]:
    selected: Counter[str] = Counter()
    for quota in list_quotas(jobs.config):
        wanted: Counter[str] = Counter(quota.list_wanted_kinds(jobs.get_shard()))
        found = wanted & (reached - selected)
        # Kinds with enough points replace the one that lacks some.
        while found.total() < wanted.total():
            spare = reached - selected - found
            kind = max(quota.kinds, key=spare.__getitem__)
            if not spare[kind]:
                break
            found[kind] += 1
        selected += found
    return selected


def _choose_basis(journals: Journals) -> tuple[Costs, float, str]:
    """The costs of one run and the seconds of one grading, from completed jobs with known usage if there are any."""
    taken: list[AgentRow] = [
        row
        for row in journals.takeovers.rows()
        if row.outcome == "graded" and row.view == BASELINE and row.prompt_tokens is not None
    ]
    known: list[AgentRow] = taken or [
        row for row in journals.predecessors.rows() if row.outcome == "run" and row.prompt_tokens is not None
    ]
    if not known:
        return (
            RECORDED_COSTS,
            GRADING_S,
            (
                f"medians of 60 recorded public runs: {RECORDED_COSTS.calls:.0f} calls, "
                f"{RECORDED_COSTS.prompt_tokens:,.0f} prompt and {RECORDED_COSTS.completion_tokens:,.0f} completion tokens a run; "
                f"assuming {CALL_S:.0f} s per call and {GRADING_S:.0f} s per "
                "grading"
            ),
        )
    own = Costs(
        *(
            _compute_median(known, name)
            for name in ("llm_calls", "prompt_tokens", "completion_tokens", "seconds", "cached_tokens")
        )
    )
    labels = [row for row in journals.labels.rows() if row.seconds is not None]
    return (
        own,
        _compute_median(labels, "seconds") if labels else GRADING_S,
        f"medians of this run's {f'takeovers under {BASELINE}' if taken else 'predecessors'} ({len(known)})",
    )


def _compute_median(rows: Iterable[Row], name: str) -> float:
    values = [getattr(row, name) for row in rows]
    return float(median([value for value in values if value is not None] or [0.0]))


def _estimate_costs(stage: str, config: RunConfig, own: Costs, graded_s: float) -> tuple[Costs, Costs]:
    """Minimum and maximum costs of one job."""
    grading = Costs(0, 0, 0, graded_s)
    if stage == "labels":
        return grading, grading
    if stage == "notes":
        writers = [config.choose_writer(name) for name in config.predecessors]
        kinds = len(list_needed_notes(config.views))
        calls = Costs(kinds, kinds * _NOTE_PROMPT, kinds * OUTPUT_TOKENS, kinds * CALL_S)
        note = _average(config, writers, calls)
        return _scale(note, 0.5), _scale(note, 1.5)
    if stage == "predecessors":
        run = _average(config, config.predecessors, own)
        return run, run
    others = (len(config.views) - 1) / len(config.views)
    average = _average(config, config.successors, own)
    low, high = (_scale(average, 1 - others * saved) for saved in reversed(_SAVINGS))
    return add_costs(low, grading), add_costs(high, grading)


def _average(config: RunConfig, models: Sequence[str], run: Costs) -> Costs:
    """The mean costs of these models' runs, at their prices. Models that are no LLM cost nothing."""
    priced = [run._replace(usd=estimate_usd(config.find_price(name), run)) for name in models if is_llm(name)]
    return _scale(reduce(add_costs, priced, Costs(0, 0, 0, 0)), 1 / len(models))


def estimate_usd(price: ModelPrice | None, run: Costs) -> float:
    """The price of a run; NaN if it is unknown."""
    if price is None:
        return math.nan
    # Medians of different rows: the cached part could exceed the whole.
    prompt, cached = round(run.prompt_tokens), round(min(run.cached_tokens, run.prompt_tokens))
    tokens = TokenTotals(prompt, cached, round(run.completion_tokens), 0)
    cost = compute_cost_usd(price, tokens, calls=1)
    assert cost is not None
    return cost


def _scale(costs: Costs, factor: float) -> Costs:
    # No job costs nothing, also at an unknown price.
    return Costs(*(value * factor if factor else 0.0 for value in costs))


def add_costs(one: Costs, other: Costs) -> Costs:
    """Return the sum of two costs."""
    return Costs(*(a + b for a, b in zip(one, other, strict=True)))
