"""What the record contradicts in a model's statements."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from langgraph_takeover.handoff.notes.denials import find_denial
from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.statements import PATH, is_empty_claim, split_sentences
from langgraph_takeover.handoff.records.record import Claim

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
    r"\b(?:not|no|none|never|n't|fail\w*|should|would|will|may|might|could|must|if|whether|until|once|after|before|verify|"
    r"confirm|ensure|check that|make|unless|unknown|unclear|expected? to|need\w*|to pass)\b|n't\b",
    re.IGNORECASE,
)
_ABSENCE_WORDS = re.compile(
    r"\b(?:delet|remov|missing|absent|not? (?:\w+ )?exist|no such|creat|new file|add|writ|renam|mov)", re.I
)
_CURRENT_VALIDATION = re.compile(
    r"\b(?P<no>no )?last validation of (?:the )?current code\W+(?:(?:is|was)\W+)?"
    r"(?P<none>(?:none|nothing|(?:not|never) run)(?! \w))?",
    re.IGNORECASE,
)
_NO_RESULT = re.compile(
    r"\b(?:none|nothing|never|unknown|unclear|could not|couldn't|cannot|not (?:be )?(?:run|found|started|installed|available)|"
    r"no module|environment error|12[67])\b",
    re.IGNORECASE,
)
_MISSING_TOOL = re.compile(
    r"(?:`([\w.+-]++)`|(?<!\bthe )(?<!\ba )(?<!\ban )(?<![\w.+`-])([\w.+-]++))(?: command| program| module| package| tool)? "
    r"(?:is|was) (?:(?:not|never) (?:installed|available)|unavailable)\b",
    re.IGNORECASE,
)
_BY_NAME = re.compile(r"\b(?:PATH|directly|by (?:that|this|its) name|as a command|executable)\b")
_CHANGE_FIELDS = ("work_completed", "rollback_notes")


def find_contradiction(field: str, claim: Claim, evidence: Evidence) -> str | None:
    """Return what contradicts a statement in the record; None if nothing does."""
    if is_empty_claim(claim):
        return None
    for sentence in split_sentences(claim.text):
        if (against := _find_sentence_contradiction(field, sentence, claim, evidence)) is not None:
            return against
    return None


def _find_sentence_contradiction(field: str, sentence: str, claim: Claim, evidence: Evidence) -> str | None:
    if (denied := _find_denied_changes(field, sentence, claim, evidence)) is not None:
        return denied
    if (against := _find_current_validation(sentence, evidence)) is not None:
        return against
    if (against := _find_running_tool(sentence, evidence)) is not None:
        return against
    certain = not _HEDGE_WORDS.search(sentence)
    if (
        field == "work_completed"
        and certain
        and not evidence.unknown_calls
        and not evidence.changed_paths
        and _CHANGE_WORDS.search(sentence)
    ):
        return "no file was changed"
    is_unknown = bool(evidence.unknown_calls) and evidence.outcome is None
    if (
        field != "recommended_next_action"
        and certain
        and not is_unknown
        and _is_false_success_claim(sentence, claim, evidence)
    ):
        return _describe_validation(evidence)
    missing = next(_find_missing_files(sentence, evidence), None)
    return f"the snapshot has no file {missing}" if missing else None


def _find_denied_changes(field: str, sentence: str, claim: Claim, evidence: Evidence) -> str | None:
    sources = evidence.current_sources
    kind = find_denial(sentence, sources, claim.text, evidence.record.files or ())
    if kind is None or not (sources or (kind == "any" and field in _CHANGE_FIELDS)):
        return None
    if kind == "source" and evidence.has_only_debugging:
        return None
    number = (
        len(sources) if kind == "source" else len({*evidence.changed, *sources} - set(evidence.only_in_trace))
    )
    which = "source file" if kind == "source" else "file"
    return (
        f"{number} {which}{' differs' if number == 1 else 's differ'} from the base commit"
        if number
        else None
    )


def _find_current_validation(sentence: str, evidence: Evidence) -> str | None:
    """Check the validation that a statement names as the last one of the current code."""
    named = _CURRENT_VALIDATION.search(sentence)
    if named is None:
        return None
    if named["no"] or named["none"]:
        return "a validation of the current code was run" if evidence.has_current_validation else None
    if evidence.has_current_validation or evidence.unknown_calls or _NO_RESULT.search(sentence):
        return None
    return _describe_validation(evidence)


def _find_running_tool(sentence: str, evidence: Evidence) -> str | None:
    """Return how a tool was run that a statement calls missing."""
    for found in _MISSING_TOOL.finditer(sentence):
        spelling = evidence.running_tools.get(found[1] or found[2])
        if spelling is not None and not _BY_NAME.search(sentence):
            return f"{spelling} ran"
    return None


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
        run.has_passed for run in evidence.runs if {run.event_index, run.event_index - 1} & set(claim.events)
    }
    return _TOTALITY_WORDS.search(sentence) is not None or True not in cited


def _describe_validation(evidence: Evidence) -> str:
    latest = evidence.latest_run
    if latest is None:
        return "no validation was run"
    if latest.verdict == "exit_code_only":
        return f"the latest validation {latest.result}"
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
    for found in PATH.findall(sentence):
        if "://" in sentence or found.startswith(("~", "../")):
            continue
        if found.startswith("/") and not (len(workspace) > 1 and found.startswith(workspace)):
            continue
        path = posixpath.normpath(found.removeprefix(workspace))
        is_file = "." in path.rpartition("/")[2]
        known = path in names or path in evidence.changed_paths or any(p.endswith(f"/{path}") for p in names)
        if is_file and not known and path.rpartition("/")[2] not in evidence.basenames:
            yield path
