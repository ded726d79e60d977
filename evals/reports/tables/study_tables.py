"""The nine tables of results: the study, what views change, and what a handoff costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from statistics import median

from langgraph_takeover.evals.reports.collection import ReportData, collect_report_data, display_names
from langgraph_takeover.evals.reports.statistics import (
    REDISCOVERY_KINDS,
    Pair,
    compute_break_even,
    count_rediscovery,
    pair_with_baseline,
    quantile,
    read_measure,
    read_paired_values,
    read_values,
)
from langgraph_takeover.evals.reports.summary import list_result_caveats
from langgraph_takeover.evals.reports.tables import effect_tables
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.journal import INFRASTRUCTURE_FAILURE, Row
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.settings.config import STAGES

__all__ = ["Table", "build_tables"]
_NOTES_BY_VIEW = {"summary": "summary", "structured": "structured", "cited": "structured"}
"""The notes that each view shows."""


def build_tables(results: Results) -> tuple[Table, ...]:
    """All nine, whatever views, successors and points there are; what cannot be told is empty, and a note says why."""
    found = collect_report_data(results)
    made = (
        _build_study_table(results, found),
        effect_tables.build_effects_table(found),
        effect_tables.build_matched_table(found),
        _build_first_prompts_table(found),
        effect_tables.build_point_table(found),
        effect_tables.build_state_table(found),
        _build_repeats_table(found),
        effect_tables.build_predecessor_table(found),
        _build_debt_table(results, found),
    )
    said = (*list_result_caveats(results), *results.warnings)
    return tuple(table._replace(notes=table.notes + said) for table in made)


def _build_study_table(results: Results, data: ReportData) -> Table:
    begun = [row for row in results.predecessors if row["outcome"] != INFRASTRUCTURE_FAILURE]
    kinds = {record: record.rpartition(".")[2] for row in begun for record in row.get("records", ())}
    kinds |= {row["record_id"]: row["point"] for row in data.takeovers if row.get("point")}
    without = sum(not row.get("records") for row in begun)
    tasks = {row["task_id"] for row in (*results.predecessors, *results.takeovers) if row.get("task_id")}
    called = display_names([*data.successors, *(row["predecessor"] for row in begun)])
    states = Counter(row["handoff_state"] for row in results.labels if row.get("handoff_state"))
    stopped = Counter((called[row["successor"]], row["stop_reason"]) for row in data.takeovers)
    rows: list[tuple[Cell, ...]] = [
        ("tasks", "", len(tasks)),
        *(
            ("predecessor runs", name, n)
            for name, n in _count_sorted(called[row["predecessor"]] for row in begun)
        ),
        ("predecessor runs", "without a handoff point", without),
        *(("predecessor stopped", name, n) for name, n in _count_sorted(row["stop_reason"] for row in begun)),
        ("handoff points", "all", len(kinds)),
        *(("handoff points", name, n) for name, n in _count_sorted(kinds.values())),
        *(("handoff states", name, n) for name, n in sorted(states.items())),
        ("takeovers", "graded", len(data.takeovers)),
        *((f"takeovers of {name}", reason, n) for (name, reason), n in sorted(stopped.items())),
    ]
    for stage in STAGES:
        failed = sum(row["outcome"] == INFRASTRUCTURE_FAILURE for row in getattr(results, stage))
        rows.append(("infrastructure failures", stage, failed))
    note = "Infrastructure failures are in no other number of any table."
    return Table(1, "study", "The study", ("what", "which", "number"), tuple(rows), (note,))


def _count_sorted(keys: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(Counter(keys).items())


def _build_first_prompts_table(data: ReportData) -> Table:
    def size_cells(rows: tuple[Row, ...], measure: str) -> tuple[Cell, ...]:
        sizes = read_values(rows, measure)
        return quantile(sizes, 0.5), quantile(sizes, 0.9), max(sizes, default=None)

    return Table(
        4,
        "first_prompts",
        "Size of a successor's first prompt",
        (
            *("successor", "view", "runs", "median characters", "P90 characters", "max characters"),
            *("median tokens", "P90 tokens", "max tokens"),
        ),
        effect_tables.build_rows(
            data,
            lambda rows, view: (
                len(rows),
                *size_cells(rows, "first_prompt_chars"),
                *size_cells(rows, "first_prompt_tokens"),
            ),
        ),
        ("Tokens of first prompts are estimated at four characters each.",),
    )


def _build_repeats_table(data: ReportData) -> Table:
    def repeat_cells(rows: tuple[Row, ...], view: str) -> tuple[Cell, ...] | None:
        ordered = sorted(rows, key=lambda row: str(row["record_id"]))
        by_point = [tuple(group) for _, group in groupby(ordered, key=lambda row: str(row["record_id"]))]
        points = [group for group in by_point if len(group) > 1]
        if not points:
            return None
        solved = [sum(row["resolved"] for row in group) for group in points]
        all_of = sum(number == len(group) for number, group in zip(solved, points, strict=True))
        none_of = solved.count(0)
        return (
            *(len(points), sum(map(len, points)), all_of, len(points) - all_of - none_of, none_of),
            100 * (all_of + none_of) / len(points),
            *(_median_range(points, measure) for measure in ("events", "prompt_tokens")),
        )

    rows = effect_tables.build_rows(data, repeat_cells)
    notes: tuple[str, ...] = (
        "Points with several graded repeats. Range: largest less smallest at one point.",
    )
    if not rows:
        notes = ("No point was taken over more than once under one view by one successor.",)
    return Table(
        7,
        "repeats",
        "How far repeats of one takeover agree",
        (
            *("successor", "view", "points", "runs", "solved in all", "in some", "in none", "agreeing %"),
            *("median range of events", "median range of prompt tokens"),
        ),
        rows,
        notes,
    )


def _median_range(points: list[tuple[Row, ...]], measure: str) -> float | None:
    known_ones = [found for group in points if len(found := read_values(group, measure)) > 1]
    return median(max(found) - min(found) for found in known_ones) if known_ones else None


def _build_debt_table(results: Results, data: ReportData) -> Table:
    notes = _count_notes_tokens(results)

    def debt_cells(rows: tuple[Row, ...], view: str) -> tuple[Cell, ...]:
        events = int(sum(read_values(rows, "events")))
        kinds = count_rediscovery(rows)
        again = sum(kinds[kind] for kind in REDISCOVERY_KINDS)
        of = tuple(row for row in data.takeovers if rows and row["successor"] == rows[0]["successor"])
        behind = data.pair_with_reference(of, view)
        paid = notes.get(_NOTES_BY_VIEW.get(view, ""))
        return (
            *(len(rows), events, *(kinds[kind] for kind in REDISCOVERY_KINDS), again),
            100 * again / events if events else None,
            kinds["verification"],
            *(_median_debt(behind, measure) for measure in ("events", "prompt_tokens")),
            *(None, None, None),
            compute_break_even(sum(paid[1:]) / paid[0], pair_with_baseline(of, view)) if paid else None,
        )

    columns = (
        *("successor", "view", "runs", "events", *(f"{kind} again" for kind in REDISCOVERY_KINDS)),
        *("rediscovery", "rediscovery %", "verification", "debt in events", "debt in prompt tokens"),
        *("notes", "notes' prompt tokens", "notes' completion tokens", "takeovers to break even"),
    )
    costs = tuple(
        ("", f"notes: {kind}", *(None for _ in columns[6:]), *paid, None) for kind, paid in notes.items()
    )
    rows = (*effect_tables.build_rows(data, debt_cells), *costs)
    title = "Handoff debt and where it comes from"
    return Table(9, "debt", title, columns, rows, _debt_notes(data, notes))


def _debt_notes(data: ReportData, notes: dict[str, tuple[int, float, float]]) -> tuple[str, ...]:
    said = [
        "Rediscovery: events that find out again what the predecessor knew. Verification, the first re-run of its "
        "latest validation, is no debt."
    ]
    if data.reference_view:
        said.append(
            f"Debt: median of what a takeover needs more than the one under {data.reference_view}, the best-informed view "
            "here, at the same point, by the same successor and repeat."
        )
    else:
        said.append("No view but repository was run, so that no debt can be told.")
    if notes:
        said.append(
            "Notes are written once a point, whoever reads them; break even: mean tokens of a point's notes over the "
            "median of prompt and completion tokens that one takeover saves against repository. Empty where none are."
        )
    return tuple(said)


def _median_debt(pairs: tuple[Pair, ...], measure: str) -> float | None:
    extra = [a - b for a, b in read_paired_values(pairs, measure)]
    return median(extra) if extra else None


def _count_notes_tokens(results: Results) -> dict[str, tuple[int, float, float]]:
    """By kind: how many were written and counted, and their prompt and completion tokens."""
    found = {}
    for kind in ("summary", "structured"):
        usages = [row["usage"][kind] for row in results.notes if kind in row.get("usage", {})]
        both = [
            (read_measure(usage, "prompt_tokens"), read_measure(usage, "completion_tokens"))
            for usage in usages
        ]
        counted = [(prompt, reply) for prompt, reply in both if prompt is not None and reply is not None]
        if counted:
            found[kind] = (len(counted), sum(one for one, _ in counted), sum(one for _, one in counted))
    return found
