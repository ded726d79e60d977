"""Tables of handoff debt: repetition, extra effort, and the cost of notes."""

from __future__ import annotations

from statistics import median

from langgraph_takeover.evals.reports.collection import ReportData
from langgraph_takeover.evals.reports.estimates import (
    Pair,
    compute_break_even,
    count_rediscovery,
    pair_with_baseline,
    quantile,
    read_measure,
    read_paired_values,
    read_values,
)
from langgraph_takeover.evals.reports.tables import effect_tables
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.measures.rediscovery import REDISCOVERY_KINDS
from langgraph_takeover.evals.run.results import Results

NotesTokens = tuple[int, float | None, float | None]
_NOTES_BY_VIEW = {"summary": "summary", "structured": "structured", "cited": "structured"}
"""The kind of notes in each view."""
_REPEATED = {"read": "repeated reads", "search": "repeated searches", "command": "repeated commands"}


def build_debt_table(results: Results, data: ReportData) -> Table:
    notes = _count_notes_tokens(results)

    def debt_cells(rows: tuple[Row, ...], view: str) -> tuple[Cell, ...]:
        events = int(sum(read_values(rows, "events")))
        counts = count_rediscovery(rows)
        rediscovery = sum(counts[kind] for kind in REDISCOVERY_KINDS)
        of_successor = tuple(
            row for row in data.takeovers if rows and row["successor"] == rows[0]["successor"]
        )
        pairs = data.pair_with_reference(of_successor, view)
        cost = notes.get(_NOTES_BY_VIEW.get(view, ""))
        tokens = cost[1] + cost[2] if cost and cost[1] is not None and cost[2] is not None else None
        return (
            len(rows),
            *_text_cells(rows),
            *(events, *(counts[kind] for kind in REDISCOVERY_KINDS), rediscovery),
            100 * rediscovery / events if events else None,
            counts["verification"],
            *(_median_debt(pairs, measure) for measure in ("events", "prompt_tokens")),
            *(None, None, None),
            compute_break_even(tokens / cost[0], pair_with_baseline(of_successor, view))
            if cost and tokens is not None
            else None,
        )

    columns = (
        *(
            "successor",
            "view",
            "runs",
            "left out",
            "shown tokens",
            "re-shown tokens",
            "re-shown %",
            "verification tokens",
        ),
        *("events", *(_REPEATED[kind] for kind in REDISCOVERY_KINDS)),
        *("rediscovery", "rediscovery %", "verification", "debt in events", "debt in prompt tokens"),
        *("notes written", "prompt tokens of notes", "completion tokens of notes", "takeovers to break even"),
    )
    costs = tuple(
        ("", f"notes: {kind}", *(None for _ in columns[6:]), *cost, None) for kind, cost in notes.items()
    )
    rows = (*effect_tables.build_rows(data, debt_cells), *costs)
    return Table(9, "debt", "Sources of handoff debt", columns, rows, _debt_notes(data, notes))


def _text_cells(rows: tuple[Row, ...]) -> tuple[Cell, ...]:
    """Tokens shown, tokens shown again with their share in percent, and tokens of verification."""
    counted = [row for row in rows if read_measure(row, "shown_chars") is not None]
    shown, reshown, verification = (
        sum(read_values(counted, f"{name}_chars")) for name in ("shown", "reshown", "verification")
    )
    if not counted:
        return (None, None, None, None)
    share = 100 * reshown / shown if shown else None
    return round(shown / 4), round(reshown / 4), share, round(verification / 4)


def build_uninterrupted_table(data: ReportData) -> Table:
    def cells(rows: tuple[Row, ...], view: str) -> tuple[Cell, ...] | None:
        known = [row for row in rows if row["uninterrupted_events"] is not None]
        if not known:
            return None
        graded = [row for row in known if row["uninterrupted_resolved"] is not None]
        return (
            len(known),
            *(
                quantile(read_values(known, measure), 0.5)
                for measure in (
                    *("events", "uninterrupted_events", "debt_vs_uninterrupted"),
                    *("prompt_tokens", "uninterrupted_prompt_tokens", "token_debt_vs_uninterrupted"),
                )
            ),
            sum(bool(row["resolved"]) for row in known),
            sum(row["uninterrupted_resolved"] for row in graded) if graded else None,
        )

    columns = (
        *("successor", "view", "runs", "left out", "median events", "median uninterrupted events"),
        "median debt in events",
        *("median prompt tokens", "median uninterrupted prompt tokens", "median debt in prompt tokens"),
        *("solved", "solved without handoff"),
    )
    rows = effect_tables.build_rows(data, cells)
    notes: tuple[str, ...] = (
        "Uninterrupted: what the predecessor itself still needed after the point, where it ran to its end. Debt: the takeover "
        "minus that, at the same point; negative if the successor needed less.",
        "If predecessor and successor are different models, the difference includes that between the models. A replay only "
        "repeats its recorded actions, and builtin:oracle knows every fix: their remainders do not measure the effort of an LLM.",
        "Only takeovers at common points whose predecessor's remainder is known.",
        *data.describe_left_out(),
    )
    if not rows:
        notes = ("No predecessor with a known remainder: runs must have ended by themselves.",)
    return Table(10, "uninterrupted", "Debt against the uninterrupted run", columns, rows, notes)


def _debt_notes(data: ReportData, notes: dict[str, NotesTokens]) -> tuple[str, ...]:
    texts = [
        "Re-shown: text of the successors' observations that the predecessor had been shown before the point or had written, "
        "counted by lines, estimated at four characters per token. The re-run of the predecessor's latest validation has a "
        "column of its own.",
        "Rediscovery: events that repeat work whose result the predecessor knew. Verification, the first re-run of the "
        "predecessor's latest validation, is not debt.",
    ]
    if data.reference_view:
        texts.append(
            f"Debt: median extra effort compared with {data.reference_view}, the best-informed view available, at the same "
            "point, successor and repeat."
        )
    else:
        texts.append("Only the repository view was run: handoff debt cannot be computed.")
    if notes:
        texts.append(
            "Notes are written once per point, regardless of the number of readers. Break-even: mean tokens of a point's "
            "notes divided by the median tokens (prompt and completion) that a takeover saves compared with repository; "
            "empty if it saves none."
        )
    return (*texts, "All numbers are of takeovers at common points.", *data.describe_left_out())


def _median_debt(pairs: tuple[Pair, ...], measure: str) -> float | None:
    extra = [a - b for a, b in read_paired_values(pairs, measure)]
    return median(extra) if extra else None


def _count_notes_tokens(results: Results) -> dict[str, NotesTokens]:
    """By kind: number of notes, and their prompt and completion tokens; None if some were not counted."""
    costs: dict[str, NotesTokens] = {}
    for kind in ("summary", "structured"):
        usages = [row["usage"][kind] for row in results.notes if kind in row.get("usage", {})]
        both = [
            (read_measure(usage, "prompt_tokens"), read_measure(usage, "completion_tokens"))
            for usage in usages
        ]
        counted = [(prompt, reply) for prompt, reply in both if prompt is not None and reply is not None]
        if counted and len(counted) == len(usages):
            costs[kind] = (
                len(counted),
                sum(prompt for prompt, _ in counted),
                sum(reply for _, reply in counted),
            )
        elif usages:
            costs[kind] = (len(usages), None, None)
    return costs
