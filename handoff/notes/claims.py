"""A model's statements, counted by what the record contradicts, supports or does not show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from langgraph_takeover.handoff.notes.contradictions import find_contradiction
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.statements import is_empty_claim, is_inference, split_sentences
from langgraph_takeover.handoff.records.record import Claim, Notes
from langgraph_takeover.handoff.text.note_fields import MODEL_FIELDS

_RESULT = re.compile(
    r"\b(?:pass(?:es|ed|ing)?|fail(?:s|ed|ing|ures?)?|errors?|skipped|exit(?:s|ed)?|return code|rais(?:es|ed)|traceback|"
    r"crash(?:es|ed)?|ran|prints?|printed|outputs?|reports?|reported|shows?|showed)\b|\b\w+(?:Error|Exception)\b",
    re.IGNORECASE,
)
_NO_RESULT = re.compile(
    r"\b(?:should|would|will|may|might|could|must|if|whether|unless|until|verify|confirm|ensure|expect(?:s|ed)?)\b",
    re.IGNORECASE,
)
_TEST_ID = re.compile(
    r"(?<![\w./-])[\w./-]+::\w[\w:\[\]-]*|\btest_\w+|(?<!\w)(?<!\w\.)(?:\w+\.)*Test\w+\.\w+"
)
_ERROR_NAME = re.compile(r"\b(?<!\w\.)(?:\w++\.)*[A-Z]\w*(?:Error|Exception|DoesNotExist)\b")
_ERROR_TEXT = re.compile(
    r"\b(?:errors?|messages?|exception|says?|prints?|printed|outputs?|rais(?:es|ed)|reports?|reported|fail(?:s|ed) with|\w+Error)"
    r"[:,]? (?:is |was |that |the |an? |error |message |text )*(?:`([^`]{3,200})`|\"([^\"]{3,200})\"|“([^”]{3,200})”)"
)
_EXIT_CODE = re.compile(
    r"\b(?:exit(?:s|ed)?(?: with)?(?: (?:code|status))?|return(?:s|ed)?(?: with)? (?:code|status)) (-?\d+)\b",
    re.IGNORECASE,
)
_COUNT = re.compile(
    r"\b(\d+) (?:of \d+ |out of \d+ )?(?:\w+ ){0,2}?"
    r"(?:tests?|failures?|errors?|failed|passed|skipped|xfailed|warnings?|subtests?)\b"
)


def list_unshown_results(claim: Claim, evidence: Evidence) -> tuple[str, ...]:
    """List the results in a statement that no event shows: counts, exit codes, test ids, errors and their texts.

    An inference that is marked as such claims no result.
    """
    if is_empty_claim(claim) or is_inference(claim):
        return ()
    found = [
        part
        for sentence in split_sentences(claim.text)
        if _RESULT.search(sentence) and not _NO_RESULT.search(sentence)
        for part in _list_unshown_parts(sentence, claim, evidence)
    ]
    return tuple(dict.fromkeys(found))


def _list_unshown_parts(sentence: str, claim: Claim, evidence: Evidence) -> Iterator[str]:
    for pattern in (_ERROR_TEXT, _TEST_ID, _ERROR_NAME):
        for found in pattern.finditer(sentence):
            part = " ".join(next(filter(None, (*found.groups(), found[0]))).split())
            if part not in evidence.shown_text:
                yield part
        sentence = pattern.sub(" ", sentence)
    for found in _EXIT_CODE.finditer(sentence):
        if int(found[1][:9]) not in evidence.exit_codes:
            yield f"exit code {found[1]}"
    for found in _COUNT.finditer(_EXIT_CODE.sub(" ", sentence)):
        if int(found[1][:9]) not in evidence.result_counts and not _cites_number(found[1], claim, evidence):
            yield found[0]


def _cites_number(number: str, claim: Claim, evidence: Evidence) -> bool:
    """Whether an event that the statement cites shows the number in any place."""
    shown = evidence.collect_text(claim.events)
    return re.search(rf"(?<![\w.]){re.escape(number)}(?!\w|\.\d)", shown) is not None


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
