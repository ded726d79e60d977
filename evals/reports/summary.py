"""Summary of runs: the table at their end, caveats, and `summary.json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from langgraph_takeover.evals.models import is_builtin, parse_model_name
from langgraph_takeover.evals.reports.collection import ReportData, collect_report_data
from langgraph_takeover.evals.reports.costs import OVERFLOW, format_usd, sum_costs
from langgraph_takeover.evals.reports.estimates import (
    compute_savings,
    pair_with_baseline,
    read_values,
    select_graded,
)
from langgraph_takeover.evals.reports.model_caveats import list_model_caveats
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.settings.config import BASELINE, RunConfig
from langgraph_takeover.handoff.records.record import write_durably
from langgraph_takeover.handoff.text.redaction import redact

SUMMARY_FILE = "summary.json"
_COMPARED_SETTINGS = (
    *("points", "notes_model", "protocol", "max_steps", "max_tokens", "max_reply_tokens", "max_seconds"),
    *("window_tokens", "condense", "command_timeout_s", "sandbox"),
)
"""Settings that affect the result of a takeover."""


def summarize(results: Results) -> dict[str, Any]:
    """Counts and medians by view; deltas are matched by point, successor and repeat."""
    predecessors, rows, data = results.predecessors, results.takeovers, collect_report_data(results)
    return {
        "run_id": "+".join(source.config.run_id for source in results.sources),
        "caveats": list(list_result_caveats(results)),
        "warnings": list(results.warnings),
        "predecessors": dict(Counter(row["outcome"] for row in predecessors)),
        "without_points": [
            {name: row[name] for name in ("task_id", "stop_reason", "events")}
            for row in predecessors
            if row["outcome"] == "run" and not row["records"]
        ],
        "points": dict(
            Counter(record.rpartition(".")[2] for row in predecessors for record in row.get("records", ()))
        ),
        "handoff_states": dict(Counter(row.get("handoff_state", row["outcome"]) for row in results.labels)),
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
        "views": {view: _summarize_view(view, rows) | _summarize_trust(view, data) for view in data.views},
        "infrastructure_failures": [
            {key: row.get(key) for key in ("task_id", "record_id", "view", "repeat", "detail")}
            for row in (*predecessors, *results.labels, *results.notes, *rows)
            if row["outcome"] == "infrastructure_failure"
        ],
    }


def write_summary(out: Path, summary: dict[str, Any]) -> None:
    write_durably(out / SUMMARY_FILE, json.dumps(redact(summary), indent=1) + "\n")


def print_summary(console: Console, summary: dict[str, Any]) -> None:
    """Print the table, its caveats and the failures."""
    if summary["without_points"] and not summary["points"]:
        console.print("Nothing to compare: no predecessor reached a handoff point.", style="yellow")
    table = Table(title="Takeovers by view; deltas matched to the repository view at the same point")
    costs = _choose_cost_columns(summary)
    for name in (
        "view",
        "runs",
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
    pooled = "" if len(summary["successors"]) < 2 else f" of all {len(summary['successors'])} successors"
    console.print(
        f"Medians over takeovers{pooled}; re-shown: share of the shown text that the predecessor had seen; rediscovery: "
        "share of all events.",
        style="dim",
    )
    _print_costs(console, summary["costs"])
    stopped = sum((Counter(figures["stopped"]) for figures in summary["views"].values()), Counter[str]())
    if stopped:
        reasons = ", ".join(f"{count} by {reason}" for reason, count in stopped.most_common())
        total = sum(figures["runs"] for figures in summary["views"].values())
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


def _summarize_view(view: str, rows: Sequence[Row]) -> dict[str, Any]:
    in_view = [row for row in rows if row["view"] == view]
    graded = select_graded(in_view)
    pairs = pair_with_baseline(rows, view)
    events = sum(read_values(graded, "events"))
    is_baseline = view == BASELINE
    return {
        "runs": len(graded),
        "solved": sum(row["resolved"] for row in graded),
        "infrastructure_failures": len(in_view) - len(graded),
        "median_events": _median_or_none(read_values(graded, "events")),
        "median_prompt_tokens": _median_or_none(read_values(graded, "prompt_tokens")),
        "median_first_prompt_chars": _median_or_none(read_values(graded, "first_prompt_chars")),
        "rediscovery_share": sum(read_values(graded, "rediscovery_events")) / events if events else None,
        "stopped": dict(Counter(row["stop_reason"] for row in graded if row["stop_reason"] != "finished")),
        "matched": len(pairs),
        "median_event_delta": None
        if is_baseline
        else _median_or_none([0 - saving for saving in compute_savings(pairs, "events")]),
        "median_prompt_token_delta": None
        if is_baseline
        else _median_or_none([0 - saving for saving in compute_savings(pairs, "prompt_tokens")]),
        "solved_delta": None if is_baseline else sum(a["resolved"] - b["resolved"] for a, b in pairs),
        "stop_reasons": dict(Counter(row["stop_reason"] for row in graded)),
        "context_overflows": sum(row["stop_reason"] == OVERFLOW for row in graded),
        "condensed": sum(bool(row.get("condensed")) for row in graded),
        **sum_costs(graded)._asdict(),
    }


def _summarize_trust(view: str, data: ReportData) -> dict[str, Any]:
    """What the view's successors were shown again, kept, checked and broke."""
    rows = data.select(view=view)
    text = [row for row in rows if row["reshown_share"] is not None]
    shown = sum(row["shown_chars"] for row in text)
    answers = (
        "reexamined",
        "verified_before_finish",
        "harm",
        "rescue",
        "preserved",
        "uninterrupted_resolved",
    )
    return {
        "reshown_share": sum(row["reshown_chars"] for row in text) / shown if shown else None,
        "reshown_tokens": sum(row["reshown_tokens"] for row in text) if text else None,
        "median_kept": _median_or_none(read_values(rows, "kept")),
        "median_debt_vs_uninterrupted": _median_or_none(read_values(rows, "debt_vs_uninterrupted")),
        **{name: _count_answers(row.get(name) for row in rows) for name in answers},
    }


def _count_answers(answers: Iterable[bool | None]) -> dict[str, int] | None:
    """How many are true, of how many; None without any."""
    known = [answer for answer in answers if answer is not None]
    return {"true": sum(known), "of": len(known)} if known else None


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


def _summarize_notes(notes: Sequence[Row]) -> dict[str, Any]:
    """Cost of the notes, which are written once per point, regardless of the number of readers."""
    written = [row["usage"] for row in notes if row["outcome"] == "written"]
    return {
        "records": len(written),
        **{
            f"{kind}_{name}": sum(counts)
            if written
            and len(counts := read_values([usage[kind] for usage in written], name)) == len(written)
            else None
            for kind in ("summary", "structured")
            for name in ("prompt_tokens", "completion_tokens")
        },
    }


def list_caveats(*configs: RunConfig) -> list[str]:
    """Caveats about models that are not LLMs."""
    roles: dict[str, set[str]] = {"predecessor": set(), "successor": set(), "notes writer": set()}
    for config in configs:
        roles["predecessor"] |= set(config.predecessors)
        roles["successor"] |= set(config.successors)
        roles["notes writer"] |= set(map(config.choose_writer, config.predecessors))
    scripted = sorted(name for name in set().union(*roles.values()) if not parse_model_name(name).is_llm)
    if not scripted:
        return []
    descriptions = []
    for name in scripted:
        own_roles = [role for role, names in roles.items() if name in names]
        short_name = name.rsplit("/", 1)[-1] if name.startswith("replay:") else name
        descriptions.append(
            short_name if len(own_roles) == len(roles) else f"{short_name} (as {' and '.join(own_roles)})"
        )
    bound = (
        "; builtin:oracle knows every bundled fix and spends events only on information missing from its view: "
        "a lower bound."
    )
    succeeds = any(is_builtin(name) for name in roles["successor"])
    return [
        f"No LLM: {', '.join(descriptions)}. Its tokens are estimated at four characters each{bound if succeeds else '.'}"
    ]


def list_result_caveats(results: Results) -> tuple[str, ...]:
    """Caveats about models, and about differences between combined runs."""
    configs = [source.config for source in results.sources]
    caveats = list_caveats(*configs)
    settings = [config.model_dump() for config in configs]
    differ = [name for name in _COMPARED_SETTINGS if any(one[name] != settings[0][name] for one in settings)]
    if differ:
        caveats.append(f"The combined runs differ in these settings: {', '.join(differ)}.")
    caveats += list_model_caveats(results)
    versions = sorted({row["prompts"] for row in results.takeovers if row.get("prompts")})
    if len(versions) > 1:
        caveats.append(f"The takeovers used different prompt versions: {', '.join(versions)}.")
    return tuple(caveats)


def _median_or_none(sample: Sequence[float]) -> float | None:
    return median(sample) if sample else None


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _format_percent(value: float | None, *, with_sign: bool = True) -> str:
    return "–" if value is None else f"{100 * value:+.0f} %" if with_sign else f"{100 * value:.0f} %"
