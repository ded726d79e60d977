"""The plan of a run: its remaining jobs with estimated costs, and the printed table of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from langgraph_takeover.evals.models import ModelPrice, is_llm
from langgraph_takeover.evals.run.execution.jobs import RunJobs, list_point_takeovers
from langgraph_takeover.evals.run.journal import Journals
from langgraph_takeover.evals.run.measures.replies import TokenTotals, compute_cost_usd, list_needed_notes
from langgraph_takeover.evals.run.rows import STAGES, AgentRow, Row
from langgraph_takeover.evals.run.settings.config import BASELINE, RunConfig
from langgraph_takeover.evals.run.settings.study import Study, list_quotas, load_studies
from langgraph_takeover.evals.tasks import Task
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
        runs_left = left * config.attempts if name == "takeovers" else left
        low, high = (_scale(costs, runs_left) for costs in _estimate_costs(name, config, own, graded_s))
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


def print_plan(
    console: Console, config: RunConfig, tasks: Sequence[Task], plan: Plan, out: Path, workers: int
) -> None:
    """Print the plan."""
    tiers = Counter(str(task.instance.get("difficulty") or "unknown difficulty") for task in tasks)
    print(
        f"{len(tasks)} tasks of {config.tasks}: " + ", ".join(f"{n} of {tier}" for tier, n in tiers.items())
    )
    print(f"predecessors: {', '.join(config.predecessors)}; successors: {', '.join(config.successors)}")
    print(
        f"views: {', '.join(config.views)}; repeats: {config.repeats}; attempts: {config.attempts}; "
        f"prompt: {config.prompt}; sandbox: {config.sandbox}, "
        f"grading {'with' if config.grading_network else 'without'} network; out: {out}"
    )
    kinds = ", ".join(f"{number} {kind}" for kind, number in plan.points.items())
    selected = sum(plan.points.values())
    print(
        f"points: {selected} ({kinds})"
        + (f", selected from {plan.reached}" if plan.reached > selected else "")
        + (_describe_basis(plan, len(config.predecessors)) if plan.is_estimated else "")
    )
    table = Table(
        title=f"Remaining jobs and estimated costs with {workers} worker{'s' if workers > 1 else ''}"
    )
    for name in (
        *("stage", "jobs", "done", "LLM calls", "prompt tokens", "completion tokens", "US dollars", "hours"),
    ):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for line in (*plan.lines, _sum_lines(plan)):
        table.add_row(*_format_cells(line, workers), style="bold" if line.stage == "all" else None)
    console.print(table)
    console.print(
        f"Estimates: {plan.basis}; other views save 42 to 63 % of the repository view's prompt tokens, as in the paper.",
        style="dim",
    )
    _print_price_note(console, config)
    if config.study is not None:
        study = load_studies()[config.study]
        paper = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in study.paper.items())
        published = f"; in the paper {paper}, with {_describe_models(study)}" if paper else ""
        print(f"study {config.study}: {study.title}{published}")


def _describe_basis(plan: Plan, predecessors: int) -> str:
    if plan.recorded == predecessors:
        return ", as in the recordings"
    return ", estimated from the paper's rates" + (" and the recordings" if plan.recorded else "")


def _print_price_note(console: Console, config: RunConfig) -> None:
    writers = map(config.choose_writer, config.predecessors)
    names = dict.fromkeys((*config.predecessors, *config.successors, *writers))
    unknown = [name for name in names if config.find_price(name) is None]
    if unknown:
        console.print(
            f"Unknown prices (–): {', '.join(unknown)} (write price into their entries of --models).",
            style="dim",
        )
    elif any(map(is_llm, names)):
        console.print(
            "US dollars at the prices of --models. Cached tokens are estimated only from this run's own rows; without them, "
            "caching makes a run cheaper.",
            style="dim",
        )


def _describe_models(study: Study) -> str:
    return f"predecessors: {study.predecessors}, successors: {study.successors}"


def _sum_lines(plan: Plan) -> PlanLine:
    jobs, done = sum(line.jobs for line in plan.lines), sum(line.done for line in plan.lines)
    low = reduce(add_costs, (line.low for line in plan.lines))
    high = reduce(add_costs, (line.high for line in plan.lines))
    return PlanLine("all", jobs, done, low, high)


def _format_cells(line: PlanLine, workers: int) -> tuple[str, ...]:
    low, high = line.low, line.high
    hours = 3600 * workers
    return (
        line.stage,
        f"{line.jobs:,}",
        f"{line.done:,}",
        _format_range(low.calls, high.calls, ",.0f"),
        _format_range(low.prompt_tokens / 1e6, high.prompt_tokens / 1e6) + " M",
        _format_range(low.completion_tokens / 1e6, high.completion_tokens / 1e6) + " M",
        "–" if math.isnan(high.usd) else _format_range(low.usd, high.usd, ",.2f"),
        _format_range(low.seconds / hours, high.seconds / hours),
    )


def _format_range(low: float, high: float, form: str = ",.1f") -> str:
    ends = dict.fromkeys((f"{low:{form}}", f"{high:{form}}"))
    return "–".join(ends)
