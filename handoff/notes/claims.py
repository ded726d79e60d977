"""A model's statements, counted by what the record contradicts or does not show, and repetitions among them."""

from __future__ import annotations

from typing import NamedTuple

from langgraph_takeover.handoff.notes.contradictions import find_contradiction
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.statements import is_empty_claim
from langgraph_takeover.handoff.notes.support import list_unshown_results
from langgraph_takeover.handoff.records.record import Claim, Notes
from langgraph_takeover.handoff.text.note_fields import MODEL_FIELDS


class Soundness(NamedTuple):
    """Numbers of a model's statements: all, and those with each kind of problem."""

    claims: int
    contradicted: int
    unsupported: int
    """Statements of a result that the record does not show."""
    repeated: int
    """Statements that repeat an earlier field, word for word."""


def measure_soundness(notes: Notes, evidence: Evidence) -> Soundness:
    """Count the problems in a model's notes; each statement counts as one problem at most."""
    claims = [(name, claim) for name, field_claims in notes.structured.items() for claim in field_claims]
    rest = [(name, claim) for name, claim in claims if find_contradiction(name, claim, evidence) is None]
    fresh = [claim for name, claim in rest if find_repetition(name, claim, notes) is None]
    lacking = sum(bool(list_unshown_results(claim, evidence)) for claim in fresh)
    return Soundness(len(claims), len(claims) - len(rest), lacking, len(rest) - len(fresh))


def find_repetition(field: str, claim: Claim, notes: Notes | None) -> str | None:
    """Return the earlier field with the same statement, word for word; None if it is new."""
    if notes is None or is_empty_claim(claim):
        return None
    for name in MODEL_FIELDS[: MODEL_FIELDS.index(field)]:
        if any(
            earlier.text.casefold() == claim.text.casefold() for earlier in notes.structured.get(name, ())
        ):
            return name
    return None
