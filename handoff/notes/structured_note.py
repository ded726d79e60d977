"""Render the structured note as text, within its budget."""

from __future__ import annotations

from langgraph_takeover.handoff.notes.claims import find_repetition, list_unshown_results
from langgraph_takeover.handoff.notes.contradictions import find_contradiction
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.observed_fields import build_observed_fields
from langgraph_takeover.handoff.records.record import Claim, HandoffRecord
from langgraph_takeover.handoff.text.fence import OBSERVED, REPORTED, format_entry, format_inline_code
from langgraph_takeover.handoff.text.note_fields import MODEL_FIELDS, UNKNOWN, NoteField, format_title

BUDGET_TOKENS = 2000
"""For the whole note, at four characters per token."""
_CHARS_PER_TOKEN = 4
_MAX_CLAIM_CHARS = 600
_MAX_POINTERS = 8
_MAX_PARTS, _MAX_PART_CHARS = 5, 60
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
        f"{_render_observed_half(proven)}\n\n{REPORTED}\nIts own account; verify it before use. Struck-out statements "
        "contradict the record. Results that the record does not show are named after the field's title.\n\n"
        f"{_render_fields(claimed)}\n"
    )


def render_observed_half(evidence: Evidence, *, max_chars: int = BUDGET_TOKENS * _CHARS_PER_TOKEN) -> str:
    """Render the fields that need no model, with pointers to events."""
    proven, _ = _fit_budget(build_observed_fields(evidence, pointers=True), (), max_chars)
    return _render_observed_half(proven)


def _render_observed_half(fields: tuple[NoteField, ...]) -> str:
    return f"{OBSERVED}\nFrom file changes and results, not from a model.\n\n{_render_fields(fields)}"


def _build_model_field(name: str, evidence: Evidence, pointers: bool) -> NoteField:
    notes = evidence.record.notes
    claims = notes.structured.get(name, ()) if notes else ()
    unshown: list[str] = []
    entries = []
    for claim in claims:
        against, repeated = find_contradiction(name, claim, evidence), find_repetition(name, claim, notes)
        entries.append(
            _render_claim(claim, against, repeated, _format_pointer(claim, evidence) if pointers else "")
        )
        if against is None and repeated is None:
            unshown += list_unshown_results(claim, evidence)
    return NoteField(format_title(name), tuple(entries), empty=UNKNOWN, remark=_format_unshown(unshown))


def _render_claim(claim: Claim, against: str | None, repeated: str | None, pointer: str) -> str:
    text = format_entry(claim.text)
    text = text if len(text) <= _MAX_CLAIM_CHARS else f"{text[:_MAX_CLAIM_CHARS]}…"
    if against is not None:
        return f"~~{text}~~ (contradicted: {format_entry(against)}){pointer}"
    if repeated is not None:
        return f"(repeats a statement under {format_title(repeated)})"
    return text + pointer


def _format_pointer(claim: Claim, evidence: Evidence) -> str:
    """Name the events that a statement cites, as far as they exist."""
    cited = [f"e{index}" for index in claim.events if index < len(evidence.record.trace)]
    return f" [{', '.join(cited[:_MAX_POINTERS])}]" if cited else ""


def _format_unshown(parts: list[str]) -> str:
    """Name the results in a field that the record does not show."""
    shown = [format_entry(part)[:_MAX_PART_CHARS] for part in dict.fromkeys(parts)]
    more = f" and {len(shown) - _MAX_PARTS} more" if len(shown) > _MAX_PARTS else ""
    return f"not shown by the record: {', '.join(map(repr, shown[:_MAX_PARTS]))}{more}" if shown else ""


def _fit_budget(
    observed_fields: tuple[NoteField, ...],
    model_fields: tuple[NoteField, ...],
    max_chars: int = BUDGET_TOKENS * _CHARS_PER_TOKEN,
) -> tuple[tuple[NoteField, ...], tuple[NoteField, ...]]:
    fields = {field.title: field for field in (*observed_fields, *model_fields)}
    sizes = {title: len(_render_field(field)) for title, field in fields.items()}

    def is_too_long() -> bool:
        return sum(sizes.values()) > max_chars

    def replace(title: str, field: NoteField) -> None:
        fields[title], sizes[title] = field, len(_render_field(field))

    titles = [title for title in SHRINK_ORDER if title in fields]
    for title in titles:
        while is_too_long() and len(fields[title].entries) > fields[title].min_entries:
            replace(
                title, _shrink(fields[title], drop_oldest=title in {field.title for field in observed_fields})
            )
    for title in titles:
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
