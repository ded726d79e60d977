"""Summary of runs: the table at their end, caveats, and `summary.json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as ConsoleTable

from langgraph_takeover.evals.reports.caveats import list_result_caveats, list_waiting_points
from langgraph_takeover.evals.reports.collection import (
    OVERFLOW,
    ReportData,
    collect_report_data,
    format_usd,
    sum_costs,
)
from langgraph_takeover.evals.reports.common_points import count_by_view, describe_left_out
from langgraph_takeover.evals.reports.estimates import (
    compute_median_change,
    pair_with_baseline,
    read_values,
)
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import NotesRow, Row, Takeover, UncountedTakeover
from langgraph_takeover.evals.run.settings.config import BASELINE
from langgraph_takeover.handoff.records.record import write_durably
from langgraph_takeover.handoff.text.redaction import redact

SUMMARY_FILE = "summary.json"
_RUN_FIELDS = ("task_id", "stop_reason", "events", "divergence", "divergence_step", "missed_points")
_LEFT_OUT_FIELDS = ("record_id", "view", "successor", "repeat", "reason")
_FAILURE_FIELDS = ("task_id", "record_id", "view", "repeat", "detail")


def summarize(results: Results) -> dict[str, Any]:
    """Counts and medians by view, at common points, of the successors with every view; deltas are those of all successors,
    matched by point, successor and repeat.
    """
    predecessors, rows, data = results.predecessors, results.takeovers, collect_report_data(results)
    common = data.restrict_to_common_points()
    pooled = common.restrict_to_pooled_successors()
    left_out = count_by_view(pooled.left_out, data.views)
    return {
        "run_id": "+".join(source.config.run_id for source in results.sources),
        "caveats": list(list_result_caveats(results)),
        "warnings": list(results.warnings),
        "predecessors": dict(Counter(row.outcome for row in predecessors)),
        "without_points": [
            _select_fields(row, _RUN_FIELDS)
            for row in predecessors
            if row.outcome == "run" and not row.records
        ],
        "points": dict(
            Counter(record.rpartition(".")[2] for row in predecessors for record in row.records or ())
        ),
        "handoff_states": dict(Counter(row.handoff_state or row.outcome for row in results.labels)),
        "notes": _summarize_notes(results.notes),
        "costs": {
            name: sum_costs(rows)._asdict()
            for name, rows in (
                ("predecessors", predecessors),
                ("notes", results.notes),
                ("takeovers", rows),
                ("all", (*predecessors, *results.notes, *rows)),
            )
        },
        "successors": list(data.successors),
        "views": {
            view: _summarize_levels(view, pooled)
            | _summarize_changes(view, common)
            | _summarize_trust(view, pooled)
            | _summarize_ends(view, data)
            | {"left_out": left_out[view], "infrastructure_failures": _count_failures(view, rows)}
            for view in data.views
        },
        "left_out": [{name: getattr(row, name) for name in _LEFT_OUT_FIELDS} for row in pooled.left_out],
        "waiting_points": list_waiting_points(results),
        "excluded_points": {
            "notes missing": sorted(data.excluded.without_notes),
            "record missing": sorted(data.excluded.without_record),
        },
        "infrastructure_failures": [
            _select_fields(row, _FAILURE_FIELDS)
            for row in (*predecessors, *results.labels, *results.notes, *rows)
            if row.is_failure
        ],
    }


def write_summary(out: Path, summary: dict[str, Any]) -> None:
    write_durably(out / SUMMARY_FILE, json.dumps(redact(summary), indent=1) + "\n")


def _count_failures(view: str, rows: Iterable[Takeover]) -> int:
    return sum(row.view == view and row.is_failure for row in rows)


def _summarize_levels(view: str, data: ReportData) -> dict[str, Any]:
    graded = data.select(view=view)
    events = sum(read_values(graded, "events"))
    return {
        "runs": len(graded),
        "solved": sum(row.is_solved for row in graded),
        "median_events": _median_or_none(read_values(graded, "events")),
        "median_prompt_tokens": _median_or_none(read_values(graded, "prompt_tokens")),
        "median_first_prompt_chars": _median_or_none(read_values(graded, "first_prompt_chars")),
        "rediscovery_share": sum(read_values(graded, "rediscovery_events")) / events if events else None,
    }


def _summarize_changes(view: str, data: ReportData) -> dict[str, Any]:
    pairs = () if view == BASELINE else pair_with_baseline(data.takeovers, view)
    return {
        "matched": len(pairs),
        "median_event_delta": compute_median_change(pairs, "events"),
        "median_prompt_token_delta": compute_median_change(pairs, "prompt_tokens"),
        "solved_delta": sum(a.is_solved - b.is_solved for a, b in pairs) if pairs else None,
    }


def _summarize_ends(view: str, data: ReportData) -> dict[str, Any]:
    """Outcomes and costs of all graded takeovers under the view."""
    graded = data.select(view=view)
    return {
        "graded": len(graded),
        "stopped": dict(Counter(row.stop_reason for row in graded if row.stop_reason != "finished")),
        "stop_reasons": dict(Counter(row.stop_reason for row in graded)),
        "context_overflows": sum(row.stop_reason == OVERFLOW for row in graded),
        "condensed": sum(bool(row.condensed) for row in graded),
        **{name: value for name, value in sum_costs(graded)._asdict().items() if name != "runs"},
    }


def _summarize_trust(view: str, data: ReportData) -> dict[str, Any]:
    """What the view's successors were shown again, kept, checked and broke."""
    rows = data.select(view=view)
    text = [row for row in rows if row.reshown_share is not None]
    shown = sum(row.shown_chars or 0 for row in text)
    answers = (
        "reexamined",
        "verified_before_finish",
        "harm",
        "rescue",
        "preserved",
        "uninterrupted_resolved",
    )
    return {
        "reshown_share": sum(row.reshown_chars or 0 for row in text) / shown if shown else None,
        "reshown_tokens": sum(row.reshown_tokens or 0 for row in text) if text else None,
        "median_kept": _median_or_none(read_values(rows, "kept")),
        "median_debt_vs_uninterrupted": _median_or_none(read_values(rows, "debt_vs_uninterrupted")),
        **{name: _count_answers(getattr(row, name) for row in rows) for name in answers},
    }


def _count_answers(answers: Iterable[bool | None]) -> dict[str, int] | None:
    """How many are true, of how many; None without any."""
    known = [answer for answer in answers if answer is not None]
    return {"true": sum(known), "of": len(known)} if known else None


def _summarize_notes(notes: Sequence[NotesRow]) -> dict[str, Any]:
    """Cost of the notes, which are written once per point, regardless of the number of readers."""
    written = [row.usage for row in notes if row.usage is not None]
    return {
        "records": len(written),
        **{
            f"{kind}_{name}": _sum_known([usage[kind].get(name) for usage in written])
            for kind in ("summary", "structured")
            for name in ("prompt_tokens", "completion_tokens")
        },
    }


def _sum_known(counts: Sequence[int | None]) -> int | None:
    """The sum; None without any count, or if one is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _select_fields(row: Row, names: Sequence[str]) -> dict[str, Any]:
    """These fields of a row as JSON values."""
    values = row.to_dict()
    return {name: values.get(name) for name in names}


def _median_or_none(sample: Sequence[float]) -> float | None:
    return median(sample) if sample else None


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
