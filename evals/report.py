"""What a run came to: the table at its end, and `summary.json`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from evals.config import BASELINE, RunConfig
from evals.journal import Row
from evals.models import read_name
from handoff.record import write_durably
from handoff.redaction import redacted

SUMMARY_FILE = "summary.json"


def summarise(
    config: RunConfig, predecessors: list[Row], labels: list[Row], notes: list[Row], rows: list[Row]
) -> dict[str, Any]:
    """Counts and medians of a run, by view; deltas are matched per point, successor and repeat."""
    graded = [row for row in rows if row["outcome"] == "graded"]
    baseline = {_matched(row): row for row in graded if row["view"] == BASELINE}
    return {
        "run_id": config.run_id,
        "caveats": caveats(config),
        "predecessors": dict(Counter(row["outcome"] for row in predecessors)),
        "without_points": [
            {name: row[name] for name in ("task_id", "stop_reason", "events")}
            for row in predecessors
            if row["outcome"] == "run" and not row["records"]
        ],
        "points": dict(
            Counter(record.rpartition(".")[2] for row in predecessors for record in row.get("records", ()))
        ),
        "handoff_states": dict(Counter(row.get("handoff_state", row["outcome"]) for row in labels)),
        "notes": _notes(notes),
        "views": {view: _view(view, rows, baseline) for view in config.views},
        "infrastructure_failures": [
            {key: row.get(key) for key in ("task_id", "record_id", "view", "repeat", "detail")}
            for row in (*predecessors, *labels, *notes, *rows)
            if row["outcome"] == "infrastructure_failure"
        ],
    }


def write_summary(out: Path, summary: dict[str, Any]) -> None:
    write_durably(out / SUMMARY_FILE, json.dumps(redacted(summary), indent=1) + "\n")


def show(console: Console, summary: dict[str, Any], out: Path) -> None:
    """Print the table, what must be said about it, and where the files are."""
    table = Table(title="Takeovers by view; deltas matched to the repository view at the same point")
    for name in (
        "view",
        "runs",
        "solved",
        "events",
        "prompt tokens",
        "first prompt",
        "rediscovery",
        "Δ events",
        "Δ solved",
    ):
        table.add_column(name, justify="left" if name == "view" else "right")
    for view, figures in summary["views"].items():
        table.add_row(
            view,
            f"{figures['runs']}",
            f"{figures['solved']}",
            _number(figures["median_events"]),
            _number(figures["median_prompt_tokens"]),
            _number(figures["median_first_prompt_chars"]) + " ch",
            _percent(figures["rediscovery_share"], sign=False),
            _percent(figures["median_event_delta"]),
            "–" if figures["solved_delta"] is None else f"{figures['solved_delta']:+d}",
        )
    console.print(table)
    console.print("Medians over takeovers; rediscovery: share of all events.", style="dim")
    for caveat in summary["caveats"]:
        console.print(caveat)
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
        console.print(f"… and {len(failures) - 10} more in {out / SUMMARY_FILE}", style="red")
    console.print(
        f"Rows: {out / 'takeovers.jsonl'}   records: {out / 'records'}   summary: {out / SUMMARY_FILE}",
        markup=False,
        soft_wrap=True,
    )


def _view(view: str, rows: list[Row], baseline: dict[tuple[Any, ...], Row]) -> dict[str, Any]:
    mine = [row for row in rows if row["view"] == view]
    graded = [row for row in mine if row["outcome"] == "graded"]
    pairs = [(row, baseline[_matched(row)]) for row in graded if _matched(row) in baseline]
    events = sum(row["events"] for row in graded)
    return {
        "runs": len(graded),
        "solved": sum(row["resolved"] for row in graded),
        "infrastructure_failures": len(mine) - len(graded),
        "median_events": _median([row["events"] for row in graded]),
        "median_prompt_tokens": _median([row["prompt_tokens"] for row in graded]),
        "median_first_prompt_chars": _median([row["first_prompt_chars"] for row in graded]),
        "rediscovery_share": sum(row["rediscovery_events"] for row in graded) / events if events else None,
        "matched": len(pairs),
        "median_event_delta": None
        if view == BASELINE
        else _median([a["events"] / b["events"] - 1 for a, b in pairs]),
        "median_prompt_token_delta": None
        if view == BASELINE
        else _median(
            [
                a["prompt_tokens"] / b["prompt_tokens"] - 1
                for a, b in pairs
                if a["prompt_tokens"] and b["prompt_tokens"]
            ]
        ),
        "solved_delta": None if view == BASELINE else sum(a["resolved"] - b["resolved"] for a, b in pairs),
        "stop_reasons": dict(Counter(row["stop_reason"] for row in graded)),
    }


def _notes(notes: list[Row]) -> dict[str, Any]:
    """What the notes cost; they are paid once a point, whoever reads them."""
    written = [row["usage"] for row in notes if row["outcome"] == "written"]
    return {
        "records": len(written),
        **{
            f"{kind}_{name}": _sum([usage[kind][name] for usage in written])
            for kind in ("summary", "structured")
            for name in ("prompt_tokens", "completion_tokens")
        },
    }


def caveats(config: RunConfig) -> list[str]:
    """What must be said of a run's models before its figures are believed."""
    used = {*config.predecessors, *config.successors, *map(config.writer, config.predecessors)}
    scripted = sorted(name for name in used if not read_name(name).is_llm)
    if not scripted:
        return []
    names = [name.rsplit("/", 1)[-1] if name.startswith("replay:") else name for name in scripted]
    return [
        f"No LLM: {', '.join(names)}. Its tokens are estimated at four characters each"
        + (
            "; builtin:oracle knows every bundled fix and pays only for what its view does not tell: a lower bound."
            if any(name.startswith("builtin:oracle") for name in scripted)
            else "."
        )
    ]


def _matched(row: Row) -> tuple[Any, ...]:
    return (row["record_id"], row["successor"], row["repeat"])


def _median(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _percent(value: float | None, *, sign: bool = True) -> str:
    return "–" if value is None else f"{100 * value:+.0f} %" if sign else f"{100 * value:.0f} %"
