"""Render the structured note as text, within its budget."""

from __future__ import annotations

from langgraph_takeover.handoff.notes.contradictions import find_missing_path, list_contradictions
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.observed_fields import build_observed_fields
from langgraph_takeover.handoff.records.record import Claim, HandoffRecord, Notes, StatedFields
from langgraph_takeover.handoff.text.fence import OBSERVED, REPORTED, format_entry, format_inline_code
from langgraph_takeover.handoff.text.note_fields import (
    MODEL_FIELDS,
    NONE_OBSERVED,
    STATED_FIELDS,
    UNKNOWN,
    NoteField,
    format_title,
)

BUDGET_TOKENS = 2000
"""For the whole note, at four characters per token."""
_CHARS_PER_TOKEN = 4
_MAX_CLAIM_CHARS = 600
_MAX_POINTERS = 8
_MAX_PATH_CHARS = 300
SHRINK_ORDER = (
    "Files already read",
    "Commands already tried",
    "Non-source artifacts",
    "Background processes",
    *map(
        format_title,
        (
            "changed_files",
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
    stated = record.notes.stated if record.notes else StatedFields()
    claimed = (
        *(_build_stated_field(name, stated, evidence) for name in STATED_FIELDS),
        *(_build_model_field(name, evidence, pointers) for name in MODEL_FIELDS),
    )
    proven, claimed = _fit_budget(proven, claimed)
    return (
        f"{_render_observed_half(proven)}\n\n{REPORTED}\nIts own account; verify it before use. The record contradicts what "
        "is struck out.\n\n"
        f"{_render_fields(claimed)}\n"
    )


def render_observed_half(evidence: Evidence, *, max_chars: int = BUDGET_TOKENS * _CHARS_PER_TOKEN) -> str:
    """Render the fields that need no model, with pointers to events."""
    proven, _ = _fit_budget(build_observed_fields(evidence, pointers=True), (), max_chars)
    return _render_observed_half(proven)


def _render_observed_half(fields: tuple[NoteField, ...]) -> str:
    return f"{OBSERVED}\nFrom file changes and results, not from a model.\n\n{_render_fields(fields)}"


def _build_stated_field(name: str, stated: StatedFields, evidence: Evidence) -> NoteField:
    """Show the stated value, and beside it what the record shows instead."""
    found = [each for each in list_contradictions(stated, evidence) if each.field == name]
    against = {each.stated: each.observed for each in found if each.stated}
    remark = _cut(
        "; ".join(format_entry(each.observed) for each in found if not each.stated), _MAX_CLAIM_CHARS
    )
    value: str | tuple[str, ...] | None = getattr(stated, name)
    values = (value,) if isinstance(value, str) else value or ()
    entries = tuple(
        _strike_out(_cut(format_entry(each), _MAX_PATH_CHARS), against.get(each))
        for each in values
        if each != "unknown" or name == "changed_files"
    )
    return NoteField(
        format_title(name),
        entries,
        is_list=isinstance(value, tuple),
        empty=NONE_OBSERVED if value == () else UNKNOWN,
        min_entries=5,
        remark=f"contradicted: {remark}" if remark else "",
    )


def _build_model_field(name: str, evidence: Evidence, pointers: bool) -> NoteField:
    notes = evidence.record.notes
    entries = []
    for claim in notes.structured.get(name, ()) if notes else ():
        missing = find_missing_path(claim, evidence)
        entry = _strike_out(
            _cut(format_entry(claim.text), _MAX_CLAIM_CHARS),
            f"the snapshot has no file {missing}" if missing else None,
        )
        if notes and missing is None and (earlier := _find_repetition(name, claim, notes)):
            entries.append(f"(repeats a statement under {format_title(earlier)})")
        else:
            entries.append(entry + (_format_pointer(claim, evidence) if pointers else ""))
    return NoteField(format_title(name), tuple(entries), empty=UNKNOWN)


def _find_repetition(field: str, claim: Claim, notes: Notes) -> str | None:
    """Return the earlier field with the same statement, word for word; None if it is new."""
    if claim.text in (UNKNOWN, NONE_OBSERVED):
        return None
    for name in MODEL_FIELDS[: MODEL_FIELDS.index(field)]:
        if claim.text.casefold() in {each.text.casefold() for each in notes.structured.get(name, ())}:
            return name
    return None


def _strike_out(text: str, against: str | None) -> str:
    return text if against is None else f"~~{text}~~ (contradicted: {format_entry(against)})"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def _format_pointer(claim: Claim, evidence: Evidence) -> str:
    """Name the events that a statement cites, as far as they exist."""
    cited = [f"e{index}" for index in claim.events if index < len(evidence.record.trace)]
    return f" [{', '.join(cited[:_MAX_POINTERS])}]" if cited else ""


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
