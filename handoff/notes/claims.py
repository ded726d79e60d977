"""Check a model's statements: what the record contradicts, and what the cited events do not support."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.records.record import Claim, Notes
from langgraph_takeover.handoff.text.note_fields import MODEL_FIELDS, NONE_OBSERVED, UNKNOWN

_SENTENCE = re.compile(r"(?<=[.;!?])\s+")
_INLINE_CODE = re.compile(r"`+([^`]+)`+")
_PATH = re.compile(
    r"(?<![\w/.@-])(?:~?/|\./|\.\./)?(?:[\w.+-]+/)+[\w.+-]*\w|"
    r"(?<![\w/.@-])[\w-]+\.(?:py|pyi|pyx|js|jsx|ts|tsx|go|rs|java|kt|c|h|cc|cpp|hpp|rb|php|cs|swift|sh|md|rst|txt|"
    r"toml|cfg|ini|ya?ml|json|html|css|sql)\b(?!\()"
)
_TEST_ID = re.compile(r"\b[\w./-]+::\w[\w:\[\]-]*|\btest_\w+|\b(?:\w+\.)*Test\w+\.\w+")
_NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-]|\.\d)")
_NOTHING_CHANGED = re.compile(
    r"\b(?:no|without(?: any)?|not any) (?:\w+ )?(?:changes?|edits?|modifications?|files?)\b(?! to (?:tests?|other))"
    r"|\bnothing (?:was|has been|is) (?:changed|edited|modified|done)\b"
    r"|\b(?:did not|didn't|have not|haven't|has not|was not|were not) (?:yet )?(?:change|edit|modif|touch)",
    re.IGNORECASE,
)
_CHANGE_WORDS = re.compile(
    r"\b(?:edited|changed|modified|updated|patched|fixed|rewrote|added|created)\b", re.I
)
_SUCCESS_WORDS = re.compile(
    r"\b(?:tests?|suite|checks?|validation|reproduction|build)\b[^.;]{0,60}?\b(?:pass(?:es|ed|ing)?|succeed(?:s|ed)?|"
    r"(?:is|are) (?:now )?green)\b|\ball (?:pass|green)",
    re.IGNORECASE,
)
_TOTALITY_WORDS = re.compile(r"\b(?:all|every|whole|full|entire|now|currently|everything)\b", re.IGNORECASE)
_HEDGE_WORDS = re.compile(
    r"\b(?:not|no|never|n't|fail\w*|should|would|will|may|might|could|must|if|whether|until|once|after|before|verify|"
    r"confirm|ensure|check that|make|unless|unknown|unclear|expected? to|need\w*|to pass)\b|n't\b",
    re.IGNORECASE,
)
_ABSENCE_WORDS = re.compile(
    r"\b(?:delet|remov|missing|absent|not? (?:\w+ )?exist|no such|creat|new file|add|writ|renam|mov)", re.I
)
_CHANGE_FIELDS = ("work_completed", "rollback_notes")
_EMPTY_CLAIM = re.compile(rf"^\W*(?:{UNKNOWN}|{NONE_OBSERVED}|none|n/?a)\W*$", re.IGNORECASE)


class Soundness(NamedTuple):
    """Numbers of a model's statements: all, and those that the record does not support."""

    claims: int
    contradicted: int
    unsupported: int
    repeated: int
    """Statements that repeat an earlier field, word for word."""


def measure_soundness(notes: Notes, evidence: Evidence) -> Soundness:
    """Count the problems in a model's notes; each statement counts as one problem at most."""
    claims = [(name, claim) for name, field_claims in notes.structured.items() for claim in field_claims]
    rest = [(name, claim) for name, claim in claims if find_contradiction(name, claim, evidence) is None]
    fresh = [claim for name, claim in rest if find_repetition(name, claim, notes) is None]
    lacking = sum(find_support_gap(claim, evidence) is not None for claim in fresh)
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


def is_empty_claim(claim: Claim) -> bool:
    """Whether it only says that there is nothing to say."""
    return bool(_EMPTY_CLAIM.match(claim.text))


def find_contradiction(field: str, claim: Claim, evidence: Evidence) -> str | None:
    """Return what contradicts a statement in the record; None if nothing does."""
    if is_empty_claim(claim):
        return None
    for sentence in _SENTENCE.split(claim.text):
        if (against := _find_sentence_contradiction(field, sentence, claim, evidence)) is not None:
            return against
    return None


def _find_sentence_contradiction(field: str, sentence: str, claim: Claim, evidence: Evidence) -> str | None:
    changed = len(evidence.changed)
    of_all = not _PATH.search(sentence)  # of one file, it may well be true that nothing was done to it
    if field in _CHANGE_FIELDS and changed and of_all and _NOTHING_CHANGED.search(sentence):
        return f"{changed} file{'s differ' if changed > 1 else ' differs'} from the base commit"
    certain = not _HEDGE_WORDS.search(sentence)
    if (
        field == "work_completed"
        and certain
        and not evidence.changed_paths
        and _CHANGE_WORDS.search(sentence)
    ):
        return "no file was changed"
    if field != "recommended_next_action" and certain and _is_false_success_claim(sentence, claim, evidence):
        return _describe_validation(evidence)
    missing = next(_find_missing_files(sentence, evidence), None)
    return f"the snapshot has no file {missing}" if missing else None


def _is_false_success_claim(sentence: str, claim: Claim, evidence: Evidence) -> bool:
    if not _SUCCESS_WORDS.search(sentence):
        return False
    before_any_edit = (
        evidence.latest_run.outcome if evidence.latest_run and not evidence.state.edited_files else None
    )
    if "passed" in (evidence.outcome, before_any_edit) and evidence.has_verdict:
        return False
    # It may refer to an earlier run that passed, unless it claims that all pass.
    cited = {
        run.outcome for run in evidence.runs if {run.event_index, run.event_index - 1} & set(claim.events)
    }
    return _TOTALITY_WORDS.search(sentence) is not None or "passed" not in cited


def _describe_validation(evidence: Evidence) -> str:
    latest = evidence.latest_run
    if latest is None:
        return "no validation was run"
    if latest.verdict == "exit_code_only":
        return "the latest validation exited 0, but its output states no verdict"
    if evidence.state.edited_files and evidence.outcome is None:
        return "nothing was validated after the latest source change"
    return f"the latest validation {_OUTCOME_TEXTS.get(latest.outcome, 'has no readable result')}"


_OUTCOME_TEXTS = {"failed": "failed", "environment_error": "could not run", "passed": "passed"}


def _find_missing_files(sentence: str, evidence: Evidence) -> Iterator[str]:
    """Yield the files that a sentence names and the snapshot does not have."""
    names = evidence.file_names
    if names is None or _ABSENCE_WORDS.search(sentence):
        return
    workspace = evidence.record.task.workspace.rstrip("/") + "/"
    for found in _PATH.findall(sentence):
        if "://" in sentence or found.startswith(("~", "../")):
            continue
        if found.startswith("/") and not (len(workspace) > 1 and found.startswith(workspace)):
            continue
        path = posixpath.normpath(found.removeprefix(workspace))
        is_file = "." in path.rpartition("/")[2]
        known = path in names or path in evidence.changed_paths or any(p.endswith(f"/{path}") for p in names)
        if is_file and not known and path.rpartition("/")[2] not in evidence.basenames:
            yield path


def find_support_gap(claim: Claim, evidence: Evidence) -> str | None:
    """Return why a statement is not supported by the events that it cites; None if it is."""
    if is_empty_claim(claim):
        return None
    if not claim.events:
        return "cites no event"
    last = len(evidence.record.trace) - 1
    if strange := [index for index in claim.events if not 0 <= index <= last]:
        return f"event e{strange[0]} does not exist"
    shown = evidence.collect_text(claim.events)
    for part in _list_checkable_parts(claim.text):
        if not _contains(shown, part):
            which = ", ".join(f"e{index}" for index in claim.events[:4])
            return f"{which} {'does' if len(claim.events) == 1 else 'do'} not show {part[:60]!r}"
    return None


def _list_checkable_parts(text: str) -> Iterator[str]:
    """Yield the commands, paths, test ids and numbers in a statement."""
    for pattern in (_INLINE_CODE, _TEST_ID, _PATH, _NUMBER):
        for found in pattern.finditer(text):
            yield " ".join((found[1] if pattern is _INLINE_CODE else found[0]).split())
        text = pattern.sub(" ", text)


def _contains(shown: str, part: str) -> bool:
    if re.fullmatch(r"[\d.]+", part):
        return re.search(rf"(?<![\w.]){re.escape(part)}(?!\w|\.\d)", shown) is not None
    return part in shown or part.removeprefix("./") in shown
