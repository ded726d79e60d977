"""Summary of runs: the table at their end, caveats, and `summary.json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from langgraph_takeover.evals.reports.caveats import list_result_caveats, list_waiting_points
from langgraph_takeover.evals.reports.collection import OVERFLOW, ReportData, collect_report_data, sum_costs
from langgraph_takeover.evals.reports.common_points import count_by_view
from langgraph_takeover.evals.reports.estimates import (
    compute_median_change,
    pair_with_baseline,
    read_values,
)
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import NotesRow, Row, Takeover
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
