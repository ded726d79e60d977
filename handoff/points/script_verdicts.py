"""The verdicts that scripts print about themselves: failures although they exit 0, and successes."""

from __future__ import annotations

import re
from collections.abc import Iterator

TRACEBACK = "Traceback (most recent call last)"
_MAX_LINE_CHARS = 1_000
_ZERO = (
    r"(?:0(?: ?(?:/|of|out of) ?\d+)?(?: (?:tests?|cases?|checks?|errors?|failures?))?|[Nn]one|False|\[\])"
    r"(?=[ \t]*+(?:$|[,;)\r]))"
)
_NOT_ZERO = rf"(?! ?[:=]? ?{_ZERO})"
"""`failed: 0` is no failure, `failed: 0 != 1` is one."""
_FAILURE_LINE = re.compile(
    rf"^(?:FAIL|FAILED|FAILURE|ERROR)\b(?![ \t]*+[:=]?+[ \t]*+{_ZERO}|[ \t]\w+[ \t]*+[:=][ \t]*+{_ZERO})",
    re.M,
)
_SYNTAX_ERROR = re.compile(r'^ +File ".+", line \d+\n(?:.*\n){0,3}?(?:Syntax|Indentation|Tab)Error: ', re.M)
_REPORTED_FAILURE = re.compile(
    # A caught exception that the script reports: `Error: …`, `KeyError: …`, `Error defining B: …`.
    r"^(?:[\w.]*(?:Error|Exception)|ERROR)"
    r"(?: (?!message|handling|code|count|type|output|log|level)\w+){0,4}(?=: )" + _NOT_ZERO + "|"
    r"^(?:An? )?(?:unexpected )?(?:error|exception)s? (?:occurred|was raised|raised|caught)\b|"
    r"^Caught (?:an? )?(?:unexpected )?(?:[\w.]*(?:Error|Exception)|error|exception)\b|"
    # A verdict: `Test 3 failed`, `sum failed: …`, `X: FAILED - …`, `✗ …`, `BUG …`.
    r"\b(?:[Ff]ailed|FAILED)(?: with [\w.]+)?(?=: )" + _NOT_ZERO + "|"
    r"^(?:Failed|FAIL)(?=: )" + _NOT_ZERO + r"|: FAIL(?:ED|URE)?\b|"
    r"\b(?:[Tt]ests?|[Cc]ase|[Cc]heck|TEST)(?: \w+)? (?:[Ff]ailed|FAILED)\b(?! \w+: )" + _NOT_ZERO + "|"
    rf"^[✗✘❌](?!\W*\w+: {_ZERO})|"
    r"^BUG\b|^(?:Bug|ISSUE|Issue) (?:is |IS )?(?:still |STILL )?"
    r"(?:reproduced|REPRODUCED|confirmed|CONFIRMED|present|PRESENT)\b|"
    r"\b(?:do|does|did) (?:not|NOT) match\b|\([Uu]nexpected\)$"
)
_EXPECTATION = re.compile(r"\b(?:should|expecting|correctly|properly)\b|\b[Ee]xpected\b.*(?:Error|Exception)")
"""What makes a line a heading or an expected value, if it stands before the verdict."""
_DENIAL = re.compile(
    r"(?<!\bnot )\b(?:as|when|(?:which|this|that|error|exception|failure) (?:is|was)) expected\b|\(expected\)"
    r"|\b(?:not|NOT|no longer|cannot be) (?:be )?(?:reproduced|REPRODUCED|present|PRESENT|failed)\b"
    r"|\b(?:0|no|No|without|[Nn]one of(?: the| \d+)?)(?: tests?| errors?| checks?)? (?:failed|failures?)\b"
    r"|\b0 ?(?:/|of|out of) ?\d+ (?:\w+ )?(?:[Ff]ailed|FAILED|[Ff]ailures?|[Ee]rrors?)\b|: (?:OK|PASS(?:ED)?)$"
    r"|(?<!\bnot )(?<!\bNOT )(?<!\bbe )(?<!\bnot been )(?<!n't )(?<!n't been )"
    r"\b(?:fixed|FIXED|resolved|solved)\b(?! (?:version|code)\b)"
)
"""What denies such a verdict, wherever it stands in the line."""
_SUCCESS_WORD = r"(?:[Pp]assed|PASSED|PASS|OK|match(?:es)?(?: \w+)?|as expected|correct(?:ly)?)"
_DENIED_SUCCESS = re.compile(rf"\b{_SUCCESS_WORD} ?[:=?] ?(?:False|[Nn]o|NO)\W*$")
"""`Test passed: False`."""
_SUCCESS_START = r"^\W*(?:SUCCESS|PASS|PASSED|OK|CORRECT|FIXED|Success)\b"
_SUCCESS = re.compile(
    rf"{_SUCCESS_START}|: (?:PASS(?:ED)?|OK)\b|[✓✔✅]"
    r"|(?:[Tt]est|[Cc]heck|[Cc]ase|[Aa]ssert|[Aa]ll\b|\d).{0,80}\b[Pp]assed\b|\b[Pp]assed\W*$"
    r"|completed successfully|\b(?:not|NOT) (?:reproduced|REPRODUCED)\b|\bas expected\b|\bCaught expected\b"
    r"|\b(?:[Vv]alues?|[Rr]esults?|[Oo]utputs?|[Cc]ounts?) match(?:es)?\b|\b(?:matches|match) expected\b"
    r"|\bworks? (?:correctly|as expected)\b|\b(?:is|are) correct\b"
)
_NO_SUCCESS = re.compile(
    rf"(?!{_SUCCESS_START}|^[✓✔✅])^.*\b(?:[Nn]ot?|NOT|0|[Nn]one|should(?:n't)?)\b"
    r"(?! (?:tests? |checks? )?(?:[Ff]ail\w*|[Ee]rrors?|[Ee]xceptions?|[Ii]ssues?|[Pp]roblems?|longer|reproduced)\b)"
    rf"[^,;:.]{{0,80}}\b{_SUCCESS_WORD}\b"
    rf"|\b{_SUCCESS_WORD} ?[:=?] ?(?:False|[Nn]o|NO|0|None)\b|\bshould(?: not|n't) happen\b"
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
    return has_crash_sign(text) or any(map(_reports_failure, _list_lines(text)))


def states_success(text: str) -> bool:
    """Whether a script's output contains a positive verdict of its own."""
    return any(_SUCCESS.search(line) and not _NO_SUCCESS.search(line) for line in _list_lines(text))


def _list_lines(text: str) -> Iterator[str]:
    return (line.strip()[:_MAX_LINE_CHARS] for line in text.splitlines() if line and not line.isspace())


def _reports_failure(line: str) -> bool:
    denied = _DENIED_SUCCESS.search(line)
    if denied is not None:
        return _EXPECTATION.search(line, 0, denied.start()) is None
    found = _REPORTED_FAILURE.search(line)
    return (
        found is not None
        and _EXPECTATION.search(line, 0, found.end()) is None
        and _DENIAL.search(line) is None
    )
