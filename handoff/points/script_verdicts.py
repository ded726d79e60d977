"""The verdicts that scripts print about themselves: failures although they exit 0, and successes."""

from __future__ import annotations

import re

TRACEBACK = "Traceback (most recent call last)"
_FAILURE_LINE = re.compile(r"^(?:FAIL|FAILED|FAILURE|ERROR)\b(?!\w*\s*[:=]?\s*0\b)", re.M)
_SYNTAX_ERROR = re.compile(r'^ +File ".+", line \d+\n(?:.*\n){0,3}?(?:Syntax|Indentation|Tab)Error: ', re.M)
_REPORTED_FAILURE = re.compile(
    # A caught exception that the script reports: `Error: …`, `KeyError: …`, `Error defining B: …`.
    r"^(?:[\w.]*(?:Error|Exception)|ERROR)"
    r"(?: (?!message|handling|code|count|type|output|log|level)\w+){0,4}: (?!0\b|None\b|\[\]).*"
    r"|^(?:An? )?(?:unexpected )?(?:error|exception)s? (?:occurred|was raised|raised|caught)\b.*"
    r"|^Caught (?:an? )?(?:unexpected )?(?:[\w.]*(?:Error|Exception)|error|exception)\b.*"
    # A verdict: `Test 3 failed`, `sum failed: …`, `X: FAILED - …`, `✗ …`, `BUG …`.
    r"|^.*\b(?:[Ff]ailed|FAILED)(?: with [\w.]+)?: (?!0\b).*|^(?:Failed|FAIL): .*|^.*: FAIL(?:ED|URE)?\b.*"
    r"|^.*\b(?:[Tt]ests?|[Cc]ase|[Cc]heck|TEST)(?: \w+)? (?:[Ff]ailed|FAILED)\b.*|^[✗✘❌].*"
    r"|^BUG\b.*|^(?:Bug|ISSUE|Issue) (?:is |IS )?(?:still |STILL )?"
    r"(?:reproduced|REPRODUCED|confirmed|CONFIRMED|present|PRESENT)\b.*"
    r"|^.*\b(?:do|does|did) (?:not|NOT) match\b.*|^.*\([Uu]nexpected\)$",
    re.M,
)
_DENIAL = re.compile(
    r"\b(?:as|is|was|when|which|than) expected\b|\b[Ee]xpected\b.*(?:Error|Exception)|\(expected\)"
    r"|\b(?:should|expecting|correctly|properly)\b"
    r"|\b(?:not|NOT|no longer|cannot be) (?:be )?(?:reproduced|REPRODUCED|present|PRESENT|failed)\b"
    r"|\b(?:0|no|No|without) (?:tests? |errors? )?(?:failed|failures?)\b|\b(?:fixed|FIXED|resolved|solved)\b"
)
"""What makes such a line a heading, an expected value or a denial."""
_MAX_LINE_CHARS = 1_000
_SUCCESS_LINE = re.compile(
    r"^\W*(?:SUCCESS|PASS|PASSED|OK|CORRECT|FIXED|Success)\b|: (?:PASS(?:ED)?|OK)\b|[✓✔✅]|\b[Pp]assed\b"
    r"|completed successfully|\b(?:not|NOT) (?:reproduced|REPRODUCED)\b|\bas expected\b|\bCaught expected\b"
    r"|\b(?:[Vv]alues?|[Rr]esults?|[Oo]utputs?|[Cc]ounts?) match(?:es)?\b|\b(?:matches|match) expected\b"
    r"|\bworks? (?:correctly|as expected)\b|\b(?:is|are) correct\b",
    re.M,
)


def has_crash_sign(text: str) -> bool:
    """Whether any program's output has a traceback, or a line that starts with FAIL or ERROR."""
    if TRACEBACK in text:
        return True
    if ("FAIL" in text or "ERROR" in text) and _FAILURE_LINE.search(text):
        return True
    return "Error: " in text and '  File "' in text and _SYNTAX_ERROR.search(text) is not None


def has_failure_sign(text: str) -> bool:
    """Whether a script's output reports a failure, in the words of Python or in its own."""
    if has_crash_sign(text):
        return True
    lines = "\n".join(line.strip()[:_MAX_LINE_CHARS] for line in text.splitlines())
    return any(_DENIAL.search(line[0]) is None for line in _REPORTED_FAILURE.finditer(lines))


def states_success(text: str) -> bool:
    """Whether a script's output contains a positive verdict of its own."""
    return _SUCCESS_LINE.search(text) is not None
