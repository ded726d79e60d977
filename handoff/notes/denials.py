"""Statements that nothing was fixed or changed.

A denial about something else than the change is no denial here: of tests, of one file or one case, of an earlier time,
or under a condition.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from langgraph_takeover.handoff.notes.statements import PATH

DenialKind = Literal["source", "any"]
"""The files that a statement calls unchanged: the source, or all of them."""

_QUALITY = (
    r"(?:(?:actual|real|bug|code|source|functional|product|production|proposed|planned|intended|required|necessary|core)"
    r"[ -])*"
)
_FIX = (
    r"(?:bug ?fix|fix|solution|patch|correction|implementation|"
    r"(?:code|source|source[- ]code|product|production) (?:change|edit|modification))(?:es|s)?"
)
_CHANGE = r"(?:change|edit|modification|file|line)s?"
_OBJECT = r"(?: (?:for|to|in|of|on) (?:[^.;:,]|\.(?=\w)){1,80}?)?"
_DONE = (
    r"(?:made|implemented|applied|written|coded|attempted|started|begun|added|performed|created|introduced|"
    r"put in place|carried out)"
)
_CHANGED = r"(?:changed|edited|modified|touched|altered)"
_NOW = r"(?: (?:yet|still|so far|actually|currently|been))*"
_HAS = r"(?:has|have|is|are|was|were)"
_HAS_NOT = rf"(?:{_HAS}{_NOW} not|hasn't|haven't|isn't|aren't|wasn't|weren't|{_HAS} never|not){_NOW}"
_REMAINS = (
    r"(?:(?:still )?(?:needs?|has|have|remains?)(?: still)?|(?:is|are|has|have) (?:still )?yet|must still|"
    r"is still|are still)"
)
_THE = r"(?:^\W*|[,:(] ?|\b(?:inferred|the|this|that|a|an|any|its|my|our|only|and|but|so) )"
_AGENT = r"(?:^\W*|\b(?:I|we|agent|predecessor|session|run) )"
_DID_NOT = r"(?:did not|didn't|(?:have|has)(?: not|n't)|never)(?: yet)?"
_SOURCE = (
    r"(?:source(?: code| files?)?|code ?base|(?:product(?:ion)?|original) code|code|repository|working tree)"
)

_SOURCE_DENIALS = (
    rf"\bno {_QUALITY}{_FIX}{_OBJECT}(?: {_HAS}{_NOW} {_DONE}| {_DONE}| yet| so far| exists? yet)\b",
    rf"{_THE}{_QUALITY}{_FIX}{_OBJECT} {_HAS_NOT} {_DONE}\b",
    rf"{_THE}{_QUALITY}{_FIX}{_OBJECT} {_REMAINS} to be (?:implemented|applied|written|made|coded|started)\b",
    rf"{_THE}{_QUALITY}{_FIX}{_OBJECT} (?:is|remains|stays|are) (?:still )?(?:unimplemented|unapplied|unwritten)\b",
    rf"{_THE}implementation(?: work)?{_OBJECT} (?:still )?remains(?: to be (?:done|written|started))?(?=\s*(?:$|[.,;:!)]))",
    rf"{_THE}implementation(?: work)?{_OBJECT} (?:is|remains)(?: still)? (?:pending|outstanding|to be done|not started)\b",
    rf"{_THE}implementation(?: work)?{_OBJECT} {_HAS_NOT} (?:begun|started|done)\b",
    r"^\W*(?:it|this|that) (?:still )?(?:needs|has) (?:still )?to be implemented\b",
    rf"{_AGENT}{_DID_NOT} (?:implement(?:ed)?|appl(?:y|ied)|make|made|write|written) (?:the|a|any) {_QUALITY}{_FIX}\b",
    rf"{_THE}{_SOURCE}{_OBJECT} {_HAS_NOT} {_CHANGED}\b",
    rf"{_THE}{_SOURCE}{_OBJECT} (?:is|was|remains|stays|has been left)(?: still)? (?:unchanged|unmodified|untouched)\b",
    rf"\bno {_SOURCE}{_OBJECT} {_HAS}{_NOW} {_CHANGED}\b",
    r"\bnothing (?:has been|was|is)(?: yet)? (?:implemented|fixed)\b",
)
_ANY_DENIALS = (
    rf"\bno {_CHANGE}{_OBJECT} {_HAS}{_NOW} (?:{_DONE}|{_CHANGED})\b",
    rf"\bno {_CHANGE} (?:yet|so far|made)\b",
    rf"^\W*no {_CHANGE}[.!]?$",
    rf"\bnothing (?:has been|was|is)(?: yet)? (?:{_CHANGED}|done)\b",
    rf"{_AGENT}(?:did not|didn't)(?: yet)? (?:change|edit|modify|touch|make) (?:anything|any (?:{_CHANGE}|code|source))",
    rf"{_AGENT}(?:have|has)(?: not|n't)(?: yet)? (?:{_CHANGED}|made) (?:anything|any (?:{_CHANGE}|code|source))",
)


def _compile(kind: DenialKind, patterns: tuple[str, ...]) -> list[tuple[DenialKind, re.Pattern[str]]]:
    return [(kind, re.compile(pattern, re.IGNORECASE)) for pattern in patterns]


_DENIALS = (*_compile("source", _SOURCE_DENIALS), *_compile("any", _ANY_DENIALS))
_OTHER_TIME = re.compile(
    r"\b(?:if|unless|whether|when|until|once|in case|had|at (?:that|this) (?:point|time|stage)|at the time|at first|"
    r"initially|originally|earlier|previously|prior to|by then|before (?!(?:the |this )?(?:hand-?off|interruption|handover)))",
    re.IGNORECASE,
)
_NO_FIX = re.compile(
    r"\b(?:debug\w*|print(?:s|ing)?|instrument\w*|logging|temporary|experiment\w*|revert\w*|restored|undone|rolled back)\b",
    re.IGNORECASE,
)
"""Words that explain a source change that is no fix."""
_REST = re.compile(
    r"\b(?:rest|remaining|other|another|second|else|further|additional|otherwise|apart|except|besides|beyond|outside)\b",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(
    r"[,:()]|\s[–—-]\s|\s(?:so|because|but|and|although|though|while|since|as)\s", re.IGNORECASE
)
_WHOLE = re.compile(
    r"\b(?:for|to|in|of|on|within|at|by|from) (?:(?:the|this|that|these|those|its|my|our|any|all|reported|actual|underlying|"
    r"described|original|root|main) )*(?:issues?|bugs?|problems?|defects?|failures?|errors?|regression|tasks?|cause|"
    rf"{_SOURCE}|repo|project|fix|change|agent|predecessor|hand-?off|record|runs?|trace|session|workspace|now|date|be|all)\b"
    r"(?! (?:of|in|for|on|with)\b)",
    re.IGNORECASE,
)
_PART = re.compile(r"\b(?:for|to|in|of|on|within|inside|at|by|with) \S", re.IGNORECASE)


def find_denial(sentence: str, changed_paths: Collection[str], statement: str = "") -> DenialKind | None:
    """Return the files that a sentence calls unchanged; None without a denial, or if it concerns only a part.

    `changed_paths` are the changed source files: a denial about one of them is about the change. `statement` is the
    whole of which the sentence is a part: it may explain that a change is no fix.
    """
    if _OTHER_TIME.search(sentence) or _REST.search(sentence) or _NO_FIX.search(statement or sentence):
        return None
    for kind, pattern in _DENIALS:
        for found in pattern.finditer(sentence):
            if not _is_about_part(_extract_clause(sentence, found), changed_paths):
                return kind
    return None


def _extract_clause(sentence: str, denial: re.Match[str]) -> str:
    """Return the clause of a denial; a restriction before it, such as `In a.py,`, belongs to it."""
    before = sentence[: denial.start()]
    ends = [end.end() for end in _CLAUSE_END.finditer(before.rstrip(" ,"))]
    after = _CLAUSE_END.search(sentence, denial.end())
    return sentence[ends[-1] if ends else 0 : after.start() if after else len(sentence)]


def _is_about_part(clause: str, changed_paths: Collection[str]) -> bool:
    names = {path.strip("`./") for path in PATH.findall(clause)}
    if names:
        return not any(path == name or path.endswith(f"/{name}") for name in names for path in changed_paths)
    return _PART.search(_WHOLE.sub(" ", clause)) is not None
