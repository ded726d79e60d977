"""The structured note as text, within its budget."""

from __future__ import annotations

from handoff.fence import OBSERVED, TOLD, entry, ticked
from handoff.notes.claims import contradiction, said_before, unsupported
from handoff.notes.evidence import Evidence
from handoff.notes.fields import MODEL_FIELDS, UNKNOWN, Field, titled
from handoff.notes.observed import observed
from handoff.record import Claim, HandoffRecord

BUDGET_TOKENS = 2000
"""Of the whole note, counted at four characters a token."""
_CHARS_A_TOKEN = 4
_LONGEST_CLAIM = 600
SHRINK_ORDER = (
    "Files already read",
    "Commands already tried",
    "Non-source artifacts",
    *map(
        titled,
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
"""Which fields give way, the first first, each down to its least before the next; the others never do."""


def structured_note(record: HandoffRecord, *, pointers: bool = False) -> str:
    """The whole note as Markdown; fields without evidence say UNKNOWN or NONE OBSERVED.

    With `pointers`, whatever rests on events names them, as in `[e12]`.
    """
    evidence = Evidence(record)
    proven = observed(evidence, pointers=pointers)
    told = tuple(_told(name, evidence, pointers) for name in MODEL_FIELDS)
    proven, told = _within_budget(proven, told)
    return (
        f"{OBSERVED}\nFrom file changes and results, not from a model.\n\n{_text(proven)}\n\n"
        f"{TOLD}\nIts own account. What the record denies is struck out; what no event bears out says so. "
        f"Verify before use.\n\n{_text(told)}\n"
    )


def _told(name: str, evidence: Evidence, pointers: bool) -> Field:
    notes = evidence.record.notes
    claims = notes.structured.get(name, ()) if notes else ()
    return Field(
        titled(name), tuple(_shown(name, claim, evidence, pointers) for claim in claims), empty=UNKNOWN
    )


def _shown(name: str, claim: Claim, evidence: Evidence, pointers: bool) -> str:
    text = entry(claim.text)
    text = text if len(text) <= _LONGEST_CLAIM else f"{text[:_LONGEST_CLAIM]}…"
    cited = ", ".join(f"e{index}" for index in claim.events[:8])
    pointer = f" [{cited}]" if pointers and cited else ""
    if (against := contradiction(name, claim, evidence)) is not None:
        return f"~~{text}~~ (contradicted: {entry(against)}){pointer}"
    if (said := said_before(name, claim, evidence.record.notes)) is not None:
        return f"(only repeats what stands under {titled(said)})"
    if (lacking := unsupported(claim, evidence)) is not None:
        return f"{text} (unsupported: {entry(lacking)}){pointer}"
    return text + pointer


def _within_budget(
    proven: tuple[Field, ...], told: tuple[Field, ...]
) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    fields = {field.title: field for field in (*proven, *told)}
    sizes = {title: len(_one(field)) for title, field in fields.items()}

    def is_too_long() -> bool:
        return sum(sizes.values()) > BUDGET_TOKENS * _CHARS_A_TOKEN

    def replace(title: str, field: Field) -> None:
        fields[title], sizes[title] = field, len(_one(field))

    for title in SHRINK_ORDER:
        while is_too_long() and len(fields[title].entries) > fields[title].least:
            replace(title, _shrunk(fields[title], oldest=title in {field.title for field in proven}))
    for title in SHRINK_ORDER:
        if is_too_long():
            replace(title, _clipped(fields[title]))
    return tuple(fields[f.title] for f in proven), tuple(fields[f.title] for f in told)


def _shrunk(field: Field, *, oldest: bool) -> Field:
    """A quarter of the entries less: the oldest of what was observed, the last of what was told."""
    drop = min(-(-len(field.entries) // 4), len(field.entries) - field.least)
    kept = field.entries[drop:] if oldest else field.entries[: len(field.entries) - drop]
    return field._replace(entries=kept, left_out=field.left_out + drop)


def _clipped(field: Field) -> Field:
    """Its entries cut to a short line, a block of code to a line of code."""
    limit = _LONGEST_CLAIM // 4
    return field._replace(
        entries=tuple(
            entry if len(entry) <= limit else f"{ticked(' '.join(entry.replace('`', ' ').split())[:limit])} …"
            for entry in field.entries
        )
    )


def _text(fields: tuple[Field, ...]) -> str:
    return "\n".join(map(_one, fields))


def _one(field: Field) -> str:
    return f"**{field.title}:**{'' if field.text.startswith(chr(10)) else ' '}{field.text}"
