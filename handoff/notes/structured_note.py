"""Render the structured note as text, within its budget."""

from __future__ import annotations

from langgraph_takeover.handoff.notes.claims import find_contradiction, find_repetition, find_support_gap
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.observed_fields import build_observed_fields
from langgraph_takeover.handoff.records.record import Claim, HandoffRecord
from langgraph_takeover.handoff.text.fence import OBSERVED, REPORTED, format_entry, format_inline_code
from langgraph_takeover.handoff.text.note_fields import MODEL_FIELDS, UNKNOWN, NoteField, format_title

BUDGET_TOKENS = 2000
"""For the whole note, at four characters per token."""
_CHARS_PER_TOKEN = 4
_MAX_CLAIM_CHARS = 600
SHRINK_ORDER = (
    "Files already read",
    "Commands already tried",
    "Non-source artifacts",
    *map(
        format_title,
        (
            "evidence_observed",
            "problem_understanding",
            "rollback_notes",
            "work_completed",
            "observed_failures",
            "remaining_uncertainty",
            "recommended_next_action",
        ),
    ),
    "Changed source files",
    "Latest validation evidence",
)
"""Fields to shorten, in this order, each down to its minimum before the next; the others are never shortened."""


def render_structured_note(record: HandoffRecord, *, pointers: bool = False) -> str:
    """Render the whole note as Markdown; fields without evidence say UNKNOWN or NONE OBSERVED.

    With `pointers`, everything based on events names them, as in `[e12]`.
    """
    evidence = Evidence(record)
    proven = build_observed_fields(evidence, pointers=pointers)
    claimed = tuple(_build_model_field(name, evidence, pointers) for name in MODEL_FIELDS)
    proven, claimed = _fit_budget(proven, claimed)
    return (
        f"{OBSERVED}\nFrom file changes and results, not from a model.\n\n{_render_fields(proven)}\n\n"
        f"{REPORTED}\nIts own account. Statements that the record contradicts are struck out; unsupported ones are marked. "
        f"Verify before use.\n\n{_render_fields(claimed)}\n"
    )


def _build_model_field(name: str, evidence: Evidence, pointers: bool) -> NoteField:
    notes = evidence.record.notes
    claims = notes.structured.get(name, ()) if notes else ()
    return NoteField(
        format_title(name),
        tuple(_render_claim(name, claim, evidence, pointers) for claim in claims),
        empty=UNKNOWN,
    )


def _render_claim(name: str, claim: Claim, evidence: Evidence, pointers: bool) -> str:
    text = format_entry(claim.text)
    text = text if len(text) <= _MAX_CLAIM_CHARS else f"{text[:_MAX_CLAIM_CHARS]}…"
    cited = ", ".join(f"e{index}" for index in claim.events[:8])
    pointer = f" [{cited}]" if pointers and cited else ""
    if (against := find_contradiction(name, claim, evidence)) is not None:
        return f"~~{text}~~ (contradicted: {format_entry(against)}){pointer}"
    if (repeated := find_repetition(name, claim, evidence.record.notes)) is not None:
        return f"(repeats a statement under {format_title(repeated)})"
    if (lacking := find_support_gap(claim, evidence)) is not None:
        return f"{text} (unsupported: {format_entry(lacking)}){pointer}"
    return text + pointer


def _fit_budget(
    observed_fields: tuple[NoteField, ...], model_fields: tuple[NoteField, ...]
) -> tuple[tuple[NoteField, ...], tuple[NoteField, ...]]:
    fields = {field.title: field for field in (*observed_fields, *model_fields)}
    sizes = {title: len(_render_field(field)) for title, field in fields.items()}

    def is_too_long() -> bool:
        return sum(sizes.values()) > BUDGET_TOKENS * _CHARS_PER_TOKEN

    def replace(title: str, field: NoteField) -> None:
        fields[title], sizes[title] = field, len(_render_field(field))

    for title in SHRINK_ORDER:
        while is_too_long() and len(fields[title].entries) > fields[title].min_entries:
            replace(
                title, _shrink(fields[title], drop_oldest=title in {field.title for field in observed_fields})
            )
    for title in SHRINK_ORDER:
        if is_too_long():
            replace(title, _clip(fields[title]))
    return tuple(fields[f.title] for f in observed_fields), tuple(fields[f.title] for f in model_fields)


def _shrink(field: NoteField, *, drop_oldest: bool) -> NoteField:
    """Remove a quarter of the entries: the oldest observations, or the last statements."""
    drop = min(-(-len(field.entries) // 4), len(field.entries) - field.min_entries)
    kept = field.entries[drop:] if drop_oldest else field.entries[: len(field.entries) - drop]
    return field._replace(entries=kept, omitted=field.omitted + drop)


def _clip(field: NoteField) -> NoteField:
    """Cut an entry to a short line, a code block to one line of code."""
    limit = _MAX_CLAIM_CHARS // 4
    return field._replace(
        entries=tuple(
            entry
            if len(entry) <= limit
            else f"{format_inline_code(' '.join(entry.replace('`', ' ').split())[:limit])} …"
            for entry in field.entries
        )
    )


def _render_fields(fields: tuple[NoteField, ...]) -> str:
    return "\n".join(map(_render_field, fields))


def _render_field(field: NoteField) -> str:
    return f"**{field.title}:**{'' if field.text.startswith(chr(10)) else ' '}{field.text}"
