"""Tables of handoff debt: repetition, extra effort, the cost and the quality of notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from langgraph_takeover.evals.reports.collection import ReportData, display_names, sum_costs
from langgraph_takeover.evals.reports.estimates import (
    compute_break_even,
    count_rediscovery,
    pair_with_baseline,
    read_paired_values,
    read_values,
)
from langgraph_takeover.evals.reports.tables.selections import (
    Columns,
    Selection,
    build_view_table,
    count_solved,
    count_true,
    median_of,
)
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.measures.rediscovery import REDISCOVERY_KINDS
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import CountedTakeover, NotesRow
from langgraph_takeover.handoff.views import NOTE_BY_VIEW

NotesTokens = tuple[int, float | None, float | None]
_REPEATED = {"read": "repeated reads", "search": "repeated searches", "command": "repeated commands"}


def _sum_tokens(name: str) -> Callable[[Selection], Cell]:
    """The column with a sum of characters as tokens; None if no row states them."""

    def compute(each: Selection) -> Cell:
        counted = [row for row in each.rows if row.shown_chars is not None]
        return round(sum(read_values(counted, f"{name}_chars")) / 4) if counted else None

    return compute


def _percent_reshown(each: Selection) -> Cell:
    counted = [row for row in each.rows if row.shown_chars is not None]
    shown, reshown = (sum(read_values(counted, f"{name}_chars")) for name in ("shown", "reshown"))
    return 100 * reshown / shown if shown else None


def _count_events(*kinds: str) -> Callable[[Selection], int]:
    """The column with the number of events of these kinds of repetition."""
    return lambda each: sum(count_rediscovery(each.rows)[kind] for kind in kinds)


def _sum_events(each: Selection) -> int:
    return int(sum(read_values(each.rows, "events")))


_count_rediscovered = _count_events(*REDISCOVERY_KINDS)


def _percent_rediscovered(each: Selection) -> Cell:
    events = _sum_events(each)
    return 100 * _count_rediscovered(each) / events if events else None


def _measure_debt(measure: str) -> Callable[[Selection], Cell]:
    """The column with the median of a measure beyond that under the best-informed view."""

    def compute(each: Selection) -> Cell:
        pairs = each.data.pair_with_reference(_list_of_successor(each), each.view)
        extra = [a - b for a, b in read_paired_values(pairs, measure)]
        return median(extra) if extra else None

    return compute


def _list_of_successor(each: Selection) -> tuple[CountedTakeover, ...]:
    """All takeovers of the row's successor; none for a row without any."""
    return each.data.select(**each.fields) if each.rows else ()


_DEBT: Columns = {
    "shown tokens": _sum_tokens("shown"),
    "re-shown tokens": _sum_tokens("reshown"),
    "re-shown %": _percent_reshown,
    "verification tokens": _sum_tokens("verification"),
    "events": _sum_events,
    **{_REPEATED[kind]: _count_events(kind) for kind in REDISCOVERY_KINDS},
    "rediscovery": _count_rediscovered,
    "rediscovery %": _percent_rediscovered,
    "verification": _count_events("verification"),
    "debt in events": _measure_debt("events"),
    "debt in prompt tokens": _measure_debt("prompt_tokens"),
    "notes written": lambda _: None,
    "prompt tokens of notes": lambda _: None,
    "completion tokens of notes": lambda _: None,
}


def build_debt_table(results: Results, data: ReportData) -> Table:
    """The debt of each view, and below it the cost of the notes by kind."""
    notes = _count_notes_tokens(results)

    def find_break_even(each: Selection) -> Cell:
        number, prompt, completion = notes.get(NOTE_BY_VIEW.get(each.view, ""), (0, None, None))
        if prompt is None or completion is None:
            return None
        pairs = pair_with_baseline(_list_of_successor(each), each.view)
        return compute_break_even((prompt + completion) / number, pairs)

    columns = {**_DEBT, "takeovers to break even": find_break_even}
    texts = _debt_notes(data, notes)
    table = build_view_table((9, "debt", "Sources of handoff debt"), data, columns, texts)
    blank = (None,) * (len(table.columns) - 6)
    costs = tuple(("", f"notes: {kind}", *blank, *cost, None) for kind, cost in notes.items())
    return table._replace(rows=(*table.rows, *costs))


_UNINTERRUPTED: Columns = {
    "median events": median_of("events"),
    "median uninterrupted events": median_of("uninterrupted_events"),
    "median debt in events": median_of("debt_vs_uninterrupted"),
    "median prompt tokens": median_of("prompt_tokens"),
    "median uninterrupted prompt tokens": median_of("uninterrupted_prompt_tokens"),
    "median debt in prompt tokens": median_of("token_debt_vs_uninterrupted"),
    "solved": count_solved,
    "solved without handoff": count_true("uninterrupted_resolved"),
}


def build_uninterrupted_table(data: ReportData) -> Table:
    notes = (
        "Uninterrupted: what the predecessor itself still needed after the point, where it ran to its end. Debt: the takeover "
        "minus that, at the same point; negative if the successor needed less.",
        "If predecessor and successor are different models, the difference includes that between the models. A replay only "
        "repeats its recorded actions, and builtin:oracle knows every fix: their remainders do not measure the effort of an LLM.",
        "Only takeovers at common points whose predecessor's remainder is known.",
        *data.describe_left_out(),
    )
    return build_view_table(
        (10, "uninterrupted", "Debt against the uninterrupted run"),
        data,
        _UNINTERRUPTED,
        notes,
        narrow=lambda rows: tuple(row for row in rows if row.uninterrupted_events is not None),
        if_empty="No predecessor with a known remainder: runs must have ended by themselves.",
    )


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


def _count_notes_tokens(results: Results) -> dict[str, NotesTokens]:
    """By kind: number of notes, and their prompt and completion tokens; None if some were not counted."""
    costs: dict[str, NotesTokens] = {}
    for kind in ("summary", "structured"):
        usages = [row.usage[kind] for row in results.notes if row.usage and kind in row.usage]
        both = [(usage.get("prompt_tokens"), usage.get("completion_tokens")) for usage in usages]
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


_KINDS = ("summary", "structured")
_COLUMNS = (
    *("notes model", "predecessor", "written", "malformed", "retried", "without text"),
    *(f"cut off: {kind}" for kind in _KINDS),
    *("failed", "with a contradiction", "stated fields", "contradicted", "statements", "missing paths"),
    *("prompt tokens", "completion tokens", "cost, USD"),
)
_SOUNDNESS = ("stated", "contradicted", "claims", "missing_paths")
"""The fields of the columns from `stated fields` on."""


def build_notes_table(results: Results) -> Table:
    predecessors = {record: row.predecessor for row in results.predecessors for record in row.records or ()}
    groups: dict[tuple[str, str], list[NotesRow]] = {}
    for row in results.notes:
        key = (row.model or "unknown", predecessors.get(row.record_id, "unknown"))
        groups.setdefault(key, []).append(row)
    names = display_names(name for key in groups for name in key)
    notes: tuple[str, ...] = (
        "Written: points with notes, each with a summary and the fields of the structured note. Malformed: the fields could not be "
        "read. Retried: the fields were requested twice, because they were malformed or contradicted the record. Without text: "
        "a reply had none. Cut off: the reply ended at the limit of output tokens. "
        "Failed: infrastructure failures; their points are excluded.",
        "Stated fields: changed files, whether the latest validation passes, whether the work is done; those with a value. "
        "Contradicted: those that differ from the record. Missing paths: statements that name a path that does not exist.",
    )
    if not groups:
        notes = ("No row of notes: no view of the run shows notes, or they were not exported.",)
    rows = tuple((*(names[name] for name in key), *_quality_cells(groups[key])) for key in sorted(groups))
    return Table(14, "notes", "Quality of the notes", _COLUMNS, rows, notes)


def _quality_cells(rows: Sequence[NotesRow]) -> tuple[Cell, ...]:
    written, cost = [row for row in rows if not row.is_failure], sum_costs(rows)
    return (
        len(written),
        *(sum(bool(getattr(row, name)) for row in written) for name in ("malformed", "retried", "detail")),
        *(sum(kind in (row.truncated or ()) for row in written) for kind in _KINDS),
        len(rows) - len(written),
        sum(value > 0 for value in read_values(written, "contradicted")),
        *(_sum_known([getattr(row, name) for row in written]) for name in _SOUNDNESS),
        *(cost.prompt_tokens, cost.completion_tokens, cost.cost_usd),
    )


def _sum_known(values: Sequence[object]) -> int | None:
    """The sum of counts; None if one is unknown."""
    counts = [value for value in values if isinstance(value, int)]
    return sum(counts) if len(counts) == len(values) else None
