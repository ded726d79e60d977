"""The table at the end of a run, with its caveats and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as ConsoleTable

from langgraph_takeover.evals.reports.collection import format_usd
from langgraph_takeover.evals.reports.common_points import describe_left_out
from langgraph_takeover.evals.reports.summary import SUMMARY_FILE
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.rows import UncountedTakeover


def print_summary(console: Console, summary: dict[str, Any]) -> None:
    """Print the table, its caveats and the failures."""
    if summary["without_points"] and not summary["points"]:
        console.print(_explain_missing_points(summary["without_points"]), style="yellow", markup=False)
    if summary["views"] and not any(
        each["graded"] or each["infrastructure_failures"] for each in summary["views"].values()
    ):
        _print_counts(console, summary)
        return
    table = ConsoleTable(title="Takeovers by view; deltas matched to the repository view at the same point")
    costs = _choose_cost_columns(summary)
    for name in (
        "view",
        "runs",
        "left out",
        "solved",
        "events",
        "prompt tokens",
        "first prompt",
        "re-shown",
        "rediscovery",
        "Δ events",
        "Δ solved",
        *costs,
    ):
        table.add_column(name, justify="left" if name == "view" else "right")
    for view, figures in summary["views"].items():
        table.add_row(
            view,
            f"{figures['runs']}",
            f"{sum(figures['left_out'].values())}",
            f"{figures['solved']}",
            _format_number(figures["median_events"]),
            _format_number(figures["median_prompt_tokens"]),
            _format_number(figures["median_first_prompt_chars"]) + " ch",
            _format_percent(figures["reshown_share"], with_sign=False),
            _format_percent(figures["rediscovery_share"], with_sign=False),
            _format_percent(figures["median_event_delta"]),
            "–" if figures["solved_delta"] is None else f"{figures['solved_delta']:+d}",
            *(
                format_usd(figures[field]) if field == "cost_usd" else f"{figures[field]}"
                for field in costs.values()
            ),
        )
    console.print(table)
    pooled, every = "", ""
    if (number := len(summary["successors"])) > 1:
        pooled, every = " of the successors with every view", f" of all {number} successors"
    console.print(
        f"Takeovers at common points, with a graded takeover under every view. Medians over takeovers{pooled}; Δ events: change "
        f"of medians over all pairs{every}, as in table 2; "
        "re-shown: share of all text shown to them that the predecessor had seen; rediscovery: share of all their events.",
        style="dim",
    )
    if left_out := describe_left_out(
        [UncountedTakeover(**each) for each in summary["left_out"]], list(summary["views"])
    ):
        console.print(left_out, style="yellow", markup=False)
    _print_costs(console, summary["costs"])
    _print_caveats(console, summary)


def _print_counts(console: Console, summary: dict[str, Any]) -> None:
    """Print what a run without takeovers has, and its caveats and failures."""
    for name in ("predecessors", "points", "handoff_states"):
        counts = ", ".join(f"{number} {kind}" for kind, number in summary[name].items())
        console.print(f"{name.replace('_', ' ')}: {counts or 'none'}", markup=False)
    if summary["points"]:
        console.print("No takeover yet.")
    _print_costs(console, summary["costs"])
    _print_caveats(console, summary)


def _explain_missing_points(rows: Sequence[dict[str, Any]]) -> str:
    """Why there is nothing to compare."""
    differ = [row for row in rows if row["divergence"] and row["missed_points"]]
    if not differ:
        return "Nothing to compare: no predecessor reached a handoff point."
    first = differ[0]
    return (
        f"Nothing to compare: the recording of {first['task_id']} reaches {', '.join(first['missed_points'])}; its replay reaches "
        f"none, and its observations differ from action {first['divergence_step']} on ({first['divergence']:.0%} of its steps). "
        "Replay it in the image in which it was recorded."
    )


def _print_caveats(console: Console, summary: dict[str, Any]) -> None:
    """Print early ends, caveats, warnings and failures."""
    stopped = sum((Counter(figures["stopped"]) for figures in summary["views"].values()), Counter[str]())
    if stopped:
        reasons = ", ".join(f"{count} by {reason}" for reason, count in stopped.most_common())
        total = sum(figures["graded"] for figures in summary["views"].values())
        console.print(f"Stopped before finishing: {reasons}, of {total} takeovers.", style="yellow")
    for caveat in summary["caveats"]:
        console.print(caveat, markup=False)
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", style="yellow", markup=False)
    for row in summary["without_points"]:
        console.print(
            f"no handoff point in {row['task_id']} ({row['stop_reason']} after {row['events']} events)",
            style="yellow",
        )
    failures = summary["infrastructure_failures"]
    for failure in failures[:10]:
        where = " ".join(str(failure[key]) for key in ("task_id", "record_id", "view") if failure[key])
        console.print(f"infrastructure failure: {where}: {failure['detail']}", style="red", markup=False)
    if len(failures) > 10:
        console.print(f"… and {len(failures) - 10} more in {SUMMARY_FILE}", style="red")


_COMPARED = {
    "Δ events": "Δ median events %",
    "Δ tokens": "Δ median prompt tokens %",
    "Δ solved": "Δ solved pp",
}
"""The columns of the console's comparison with the paper, and their measures."""


def print_paper_comparison(console: Console, paper: Table) -> None:
    """Print the paper's effect sizes beside ours, from the table that compares them."""
    found: dict[tuple[Cell, ...], dict[Cell, tuple[str, str]]] = {}
    for number, successor, category, view, measure, _, low, high, ours, _ in paper.rows:
        if number in (2, 4, 5) and measure in _COMPARED.values():
            published = f"{low:+g}" if low == high else f"{low:+g} to {high:+g}"
            own = f"{ours:+.1f}" if isinstance(ours, int | float) else "–"
            found.setdefault((successor, category, view), {})[measure] = (published, own)
    if not found:
        return
    table = ConsoleTable(
        title=f"{paper.title}, changes over all takeovers in % and percentage points (paper: range of its model combinations)"
    )
    names = [name for name, measure in _COMPARED.items() if any(measure in each for each in found.values())]
    by_predecessor = any(category for _, category, _ in found)
    for name in ("successor", *(("predecessor",) if by_predecessor else ()), "view"):
        table.add_column(name)
    for name in names:
        table.add_column(f"{name}, paper", justify="right")
        table.add_column("ours", justify="right")
    for (successor, predecessor, view), cells in found.items():
        values = (cells.get(_COMPARED[name], ("–", "–")) for name in names)
        models = (successor, predecessor) if by_predecessor else (successor,)
        names_of_row = (escape(str(name)) for name in (*models, view))
        table.add_row(*names_of_row, *(text for both in values for text in both))
    console.print(table)


def _choose_cost_columns(summary: dict[str, Any]) -> dict[str, str]:
    """The columns that have something to say, with their fields."""
    views = summary["views"].values()
    return {
        name: field
        for name, field in (
            ("overflow", "context_overflows"),
            ("uncounted", "uncounted_calls"),
            ("US $", "cost_usd"),
        )
        if any(each[field] for each in views)
    }


def _print_costs(console: Console, costs: dict[str, dict[str, Any]]) -> None:
    if any(each["cost_usd"] for each in costs.values()):
        parts = ", ".join(f"{name} {format_usd(each['cost_usd'])}" for name, each in costs.items())
        console.print(f"US dollars: {parts}. Cached tokens have their own price.", style="dim")
    if uncounted := costs["all"]["uncounted_calls"]:
        console.print(
            f"Uncounted calls: {uncounted}. The endpoint reported no usage for them, so sums that include them are "
            "unknown (–).",
            style="yellow",
        )


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _format_percent(value: float | None, *, with_sign: bool = True) -> str:
    return "–" if value is None else f"{100 * value:+.0f} %" if with_sign else f"{100 * value:.0f} %"
