"""What the record contradicts in a model's statements, denials included."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator
from typing import Literal

from langgraph_takeover.handoff.notes.evidence import Evidence
from langgraph_takeover.handoff.notes.statements import PATH, is_empty_claim, split_sentences
from langgraph_takeover.handoff.records.record import Claim

DenialKind = Literal["source", "any"]
"""The files that a statement calls unchanged: the source, or all of them."""

_THE = r"(?:(?:the|a|an|any|all|this|that|these|those|its|my|our) )?"
_QUALITY = (
    r"(?:(?:actual|real|bug|code|source|functional|product|production|proposed|planned|intended|required|necessary|core|"
    r"original|reported|existing)[ -])*"
)
_SOURCE = rf"{_THE}{_QUALITY}(?:source(?: files?)?|code ?base|code|repository|working tree)"
_FIX = (
    rf"{_THE}{_QUALITY}(?:bug ?fix|fix|solution|implementation(?: work)?|"
    r"(?:code|source|product|production)[ -](?:change|edit|modification))(?:es|s)?"
)
_CHANGE = r"(?:change|edit|modification)s?"
_WHOLE = rf"(?: (?:for|to|in|of|on) (?:{_SOURCE}|{_THE}{_QUALITY}(?:fix|issues?|bugs?|problems?|defects?|regression|task)))?"
"""A place or a purpose that is no part of the whole."""
_NOW = r"(?: (?:yet|still|so far|to date|actually|currently|been|at this point|at all))*+"
_END = (
    rf"{_NOW}{_WHOLE}{_NOW}(?: before (?:the )?(?:hand-?off|handover|interruption))?"
    r"(?=\W*$|,|\s[(–—-]|\s(?:but|so|because|although|though|while)\b)"
)
_START = (
    r"^\W*(?:(?:inferred|none observed|unknown)\W+)?(?:(?:so far|to date|at this point|currently|as of now),? )?"
    r"(?:there (?:is|are) )?"
)
_DONE = (
    r"(?:made|implemented|applied|written|coded|attempted|started|begun|added|performed|introduced|put in place|"
    r"carried out)"
)
_CHANGED = r"(?:changed|edited|modified|touched|altered)"
_HAS = r"(?:has|have|is|are|was|were)"
_HAS_NOT = rf"(?:{_HAS}{_NOW} not|hasn't|haven't|isn't|aren't|wasn't|weren't|{_HAS} never|not){_NOW}"
_REMAINS = r"(?:(?:still )?(?:needs?|has|have|remains?)(?: still)?|(?:is|are|has|have) (?:still )?yet|(?:is|are) still)"
_IS = r"(?:is|are|was|were|remains?|stays?|has been left)(?: still)?"
_AGENT = r"(?:I|we|(?:the |this )?(?:agent|predecessor|session|run))"
_DID_NOT = r"(?:did not|didn't|(?:have|has)(?: not|n't)|never)(?: yet)?"

_NO_FIX_DONE = rf"no {_FIX}{_WHOLE}(?:(?: {_HAS}{_NOW})? (?:{_DONE}|done)| yet| so far| exists? yet)"
_FIX_DENIALS = (
    _NO_FIX_DONE,
    rf"{_FIX}{_WHOLE}:? {_HAS_NOT} {_DONE}",
    rf"{_FIX}{_WHOLE} {_REMAINS} to be (?:{_DONE}|done)",
    rf"{_FIX}{_WHOLE}(?::| {_IS}) (?:pending|outstanding|unimplemented|unapplied|unwritten)",
    rf"{_THE}implementation(?: work)?{_WHOLE} (?:still )?remains(?: to be (?:done|written|started))?",
    rf"{_AGENT} {_DID_NOT} (?:implement(?:ed)?|appl(?:y|ied)|make|made|write|written) {_FIX}",
    r"nothing (?:has been|was|is)(?: yet)? (?:implemented|fixed)",
)
_SOURCE_DENIALS = (
    rf"no {_QUALITY}(?:code|source)[ -]{_CHANGE}",
    rf"no {_SOURCE}{_WHOLE}(?: {_HAS}{_NOW})? (?:{_CHANGED}|written)",
    rf"{_SOURCE}{_WHOLE} {_HAS_NOT} {_CHANGED}",
    rf"{_SOURCE}{_WHOLE} {_IS} (?:unchanged|unmodified|untouched)",
)
_ANY_DENIALS = (
    rf"no {_CHANGE}{_WHOLE}(?: {_HAS}{_NOW})?(?: (?:{_DONE}|{_CHANGED}))?",
    rf"no (?:file|line)s?{_WHOLE} {_HAS}{_NOW} {_CHANGED}",
    rf"nothing (?:has been|was|is)(?: yet)? (?:{_CHANGED}|done)",
    rf"{_AGENT} {_DID_NOT} (?:change|edit|modify|touch|make|made|{_CHANGED}) "
    rf"(?:anything|any (?:{_CHANGE}|(?:source )?files?|code|source))",
    rf"{_AGENT} (?:(?:has|have) )?made no {_CHANGE}",
)


def _compile(start: str, patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"{start}(?:{'|'.join(patterns)}){_END}", re.IGNORECASE)


_CLAUSE_DENIAL = _compile(r"\b(?:and|but) ", (_NO_FIX_DONE,))
_FIX_DENIAL = _compile(_START, _FIX_DENIALS)
_SOURCE_DENIAL = _compile(_START, _SOURCE_DENIALS)
_ANY_DENIAL = _compile(_START, _ANY_DENIALS)
_OTHER_TIME_OR_PART = re.compile(
    r"\b(?:if|unless|whether|when|until|once|in case|had|at that (?:point|time|stage)|at the time|at first|initially|"
    r"originally|earlier|previously|prior to|by then|before (?!(?:the )?(?:hand-?off|interruption|handover))|says?|said|"
    r"rest|remaining|other|another|second|else|further|additional|otherwise|instead|apart|except|besides|beyond|outside)\b",
    re.IGNORECASE,
)
_NO_FIX = re.compile(
    r"\b(?:debug\w*|prints?|instrument\w*|logging|temporary|workarounds?|experiment\w*|revert\w*|restored|undone|rolled back)\b",
    re.IGNORECASE,
)
"""Words that explain a source change that is no fix."""
_PAST = re.compile(r"\b(?:was|were|did|wasn't|weren't|didn't)\b", re.IGNORECASE)
_NAMED_FILE = re.compile(rf"(?:(?:the )?(?:source )?file )?`?({PATH.pattern})`?", re.IGNORECASE)


def find_denial(
    sentence: str, changed_paths: Collection[str], statement: str = "", files: Collection[str] = ()
) -> DenialKind | None:
    """Return the files that a sentence calls unchanged; None without a denial, or if it concerns only a part.

    `changed_paths` are the changed source files: a denial about one of them is about the change, unless its name also fits
    an unchanged one of `files`, the snapshot's. `statement` is the whole of which the sentence is a part: it may explain
    that a change is no fix, and a later sentence of it in the past tense may be about the command that an earlier one
    names.
    """
    if _OTHER_TIME_OR_PART.search(sentence) or _NO_FIX.search(statement or sentence):
        return None

    def replace(file: re.Match[str]) -> str:
        name = file[1].removeprefix("./")
        named = {path for path in changed_paths if f"/{path}".endswith(f"/{name}")}
        others = (path for path in files if f"/{path}".endswith(f"/{name}") and path not in changed_paths)
        return "the source" if named and next(others, None) is None else file[0]

    text = _NAMED_FILE.sub(replace, sentence)
    is_first = statement.startswith(sentence) or not statement
    found = _FIX_DENIAL.search(text) or _CLAUSE_DENIAL.search(text)
    if found and (is_first or not _PAST.search(found[0])):
        return "source"
    if not is_first:
        return None
    if _SOURCE_DENIAL.search(text):
        return "source"
    return "any" if _ANY_DENIAL.search(text) else None


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
