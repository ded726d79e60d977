"""The table of the notes' quality, by the model that wrote them."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_takeover.evals.reports.collection import display_names, sum_costs
from langgraph_takeover.evals.reports.estimates import read_values
from langgraph_takeover.evals.reports.tables.table_files import Cell, Table
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import NotesRow

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
