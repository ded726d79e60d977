"""Statements that nothing was fixed or changed.

Only a clause that consists of a denial counts. With any other word in it, it may be about a part of the change, another
time, or another author, and so it may be true.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from langgraph_takeover.handoff.notes.statements import PATH

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
