"""The printed plan of a run: its points, and a table of remaining jobs with estimated costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from rich.console import Console
from rich.table import Table

from langgraph_takeover.evals.models import is_llm
from langgraph_takeover.evals.run.plan import Plan, PlanLine, add_costs
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.run.settings.study import Study, load_studies
from langgraph_takeover.evals.tasks import Task


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
        f"views: {', '.join(config.views)}; repeats: {config.repeats}; prompt: {config.prompt}; sandbox: {config.sandbox}, "
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
