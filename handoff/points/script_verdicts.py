"""The verdicts that scripts print about themselves: failures although they exit 0, and successes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from langgraph_takeover.handoff.text.word_search import contains_any

TRACEBACK = "Traceback (most recent call last)"
_MAX_LINE_CHARS = 1_000
_MAX_VALUE_CHARS = 400
_ZERO = (
    r"(?:0(?:\.0{1,20})?%?(?: ?(?:/|of|out of) ?\d+)?(?: (?:tests?|cases?|checks?|errors?|failures?))?|[Nn]one|False|[Nn]o|NO"
    r"|\[\]|\{\}|(?:set)?\(\))"
    r"(?=[ \t]*+(?:$|[,;)\r]))"
)
_NOT_ZERO = rf"(?! ?[:=]? ?{_ZERO})"
"""`failed: 0` is not a failure; `failed: 0 != 1` is."""
_NOT_ZERO_COUNT = rf"(?!(?: \w{{1,30}}){{0,2}} ?[:=]? ?{_ZERO})"
"""`Mismatch ratio: 0.0` is not a failure."""
_FAILURE_LINE = re.compile(
    rf"^(?:FAIL|FAILED|FAILURE|ERROR)\b(?![ \t]*+[:=]?+[ \t]*+{_ZERO}|[ \t]\w+[ \t]*+[:=][ \t]*+{_ZERO})",
    re.M,
)
_SYNTAX_ERROR = re.compile(r'^ +File ".+", line \d+\n(?:.*\n){0,3}?(?:Syntax|Indentation|Tab)Error: ', re.M)
_REPORTED_FAILURE = re.compile(
    # At the start of the line a caught exception: `Error: …`, `KeyError: …`, `Error defining B: …`; or a verdict.
    r"^(?:(?:[\w.]*(?:Error|Exception)|ERROR)"
    r"(?: (?!message|handling|code|count|type|output|log|level)\w+){0,4}(?=: )" + _NOT_ZERO + "|"
    r"(?:An? )?(?:unexpected )?(?:error|exception)s? (?:occurred|was raised|raised|caught)\b|"
    r"Caught (?:an? )?(?:unexpected )?(?:[\w.]*(?:Error|Exception)|error|exception)\b|"
    r"(?:Failed|FAIL)(?=: )" + _NOT_ZERO + rf"|[✗✘❌](?!\W*\w+: {_ZERO})|"
    r"(?:Got (?:an? )?)?(?:[Uu]nexpected|UNEXPECTED) (?:results?|outputs?|values?|errors?|exceptions?|behaviou?r|success)\b"
    + _NOT_ZERO
    + r"|AssertionError$|Got (?:an? )?(?:[\w.]{0,60}(?:Error|Exception)|error|exception)(?=: )"
    + _NOT_ZERO
    + r"|\S+\.rb:\d{1,6}:in .{0,300}\([\w:]{1,60}(?:Error|Exception)\)$|"
    r"(?:Still|STILL) (?:broken|BROKEN|fail(?:s|ing)|FAIL(?:S|ING))\b|(?:Not|NOT) (?:fixed|FIXED)\b|"
    r"(?:Successfully )?[Rr]eproduced (?:the )?(?:issue|bug|problem|error)\b|(?:Reproduced|REPRODUCED)\W*$|"
    r"Failed to \w{1,40}[^:]{0,80}(?=: )|"
    r"(?:Incorrect|Wrong) (?:results?|outputs?|values?|answers?|types?|order)\b(?! \w)"
    + _NOT_ZERO
    + r"|(?:Incorrect|Wrong)[!.]*$|NOT EQUAL\b|BUG\b|(?:Bug|ISSUE|Issue) (?:is |IS )?(?:still |STILL )?"
    r"(?:reproduced|REPRODUCED|confirmed|CONFIRMED|present|PRESENT|exists|EXISTS)\b" + _NOT_ZERO + ")|"
    # At any word a verdict: `Test 3 failed`, `sum failed: …`, `X: FAILED - …`, `x failed with: …`, `Order is INCORRECT`.
    r"\b(?:(?:[Ff]ailed|FAILED)(?: with [\w.]+)?(?=: )" + _NOT_ZERO + "|"
    r"(?:[Tt]ests?|[Cc]ase|[Cc]heck|TEST)(?: \w+)? (?:[Ff]ailed|FAILED)\b(?! \w+: )" + _NOT_ZERO + "|"
    # Counts: `passed=2 failed=1`, `2 of 3 tests passed`, `3 mismatches`.
    r"(?<!xpected )(?:FAIL(?:ED|URES?)?|[Ff]ail(?:ed|ures?)) ?[=:] ?[1-9]\d{0,9}(?![\d.:])|"
    r"(?<![./-])[1-9]\d{0,9} (?:(?:tests?|cases?|checks?|assertions?) )?(?:failed|FAILED|failures?|mismatch(?:es)?)"
    r"(?: found)?(?=\W*$|[,;.!)]| (?:out|of|in|and)\b)|"
    r"(?<![./-])(?P<good>\d{1,9})(?:/| of | out of )(?!(?P=good)\b)\d{1,9} (?:\w{1,30} )?[Pp]assed\b|"
    r"[Pp]assed: (?P<passed>\d{1,9})(?:/| of | out of )(?!(?P=passed)\b)\d|[Nn]ot all (?:\w{1,30} )?(?:passed|match(?:ed)?)\b|"
    r"Segmentation fault\b|(?:[Aa]ssertion|[Vv]erification) failed\b|"
    r"(?:[Rr]esults?|[Oo]utputs?|[Vv]alues?) (?:differ\b|(?:are )?not equal\b)|"
    r"(?:do|does|did)(?: not| NOT|n't) match\b|"
    r"(?:[Ff]ailed|FAILED) with\b(?! (?:0|no|an? expected|the expected|expected|(?:exit )?(?:code|status):? 0)\b)"
    + _NOT_ZERO
    + r"|FAIL(?:ED|URE)?(?=: )"
    + _NOT_ZERO
    + r"|FAILED[!. ]*$|(?:INCORRECT|WRONG)\b"
    + _NOT_ZERO
    + "|"
    r"(?:[Rr]esults?|[Oo]utputs?|[Vv]alues?|[Oo]rder(?:ing)?|[Ss]tate|repr) (?:is|are) (?:still )?(?:incorrect|wrong)\b|"
    rf"[Mm]ismatch(?:es)?!|(?<![/.-])(?:[Mm]ismatch(?:es|ed)?(?: values?)?|MISMATCH(?:ES)?)(?=:){_NOT_ZERO}|"
    r"(?<![/.-])(?:Mismatch(?:ed)?|MISMATCH)\b(?! (?:cases?|tests?|handling|checks?|detection|errors?|scenarios?)\b)"
    + _NOT_ZERO_COUNT
    # After a mark: `… : FAILED`, `✗ …`, `[FAIL]`, `(unexpected)`.
    + rf")|(?:\[ ?|\.\.\. |[-=]> | - | \| )FAIL(?:ED|URE)?\b{_NOT_ZERO}|: (?:FAIL(?:ED|URE)?\b|mismatch$)|"
    rf"(?:(?<!\S)|(?<=\[))[✗✘❌×](?!\W{{0,5}}(?:\w{{1,30}}: )?{_ZERO})(?:(?=\])|(?!\S))|\([Uu]nexpected\)$"
    # Last, because it ends later than others that match there: what follows a failure is no expectation.
    r"|^(?:[Tt]est|[Cc]heck|[Cc]ase)\b[^:]{0,60}: failed\W*$"
)
_FAILURE_STEMS = (
    "fail", "error", "exception", "match", "passed", "caught", "unexpected", "fixed", "reproduced", "equal", "issue", "bug",
    "incorrect", "wrong", "differ", "broken", "segmentation", "✗", "✘", "❌", "×",
)  # fmt: skip
"""A line without any of these stems, in lower case, cannot match; searching stems is much faster than the pattern."""
_EXPECTATION = re.compile(
    r"\b(?:should|expecting|correctly|properly)\b|\b[Ee]xpected\b.{0,200}(?:Error|Exception)"
    r"|^\W*(?:[Ee]xpected\b[^,;]{0,40}[:=]|(?:[Tt]esting|[Cc]hecking|[Tt]rying|[Rr]unning)\b.*(?:[Mm]ismatch|WRONG|INCORRECT))"
)
"""What makes a line a heading or an expected value, if it stands before the verdict."""
_DENIAL = re.compile(
    r"(?<!\bnot )\b(?:as|when|(?:which|this|that|error|exception|failure) (?:is|was)) expected\b|\(expected\)"
    r"|\b(?:not|NOT|no longer|cannot be) (?:be )?(?:reproduced|REPRODUCED|present|PRESENT|failed)\b"
    r"|\b(?:0|no|No|without|[Nn]one of(?: the| \d+)?)(?: tests?| errors?| checks?)? (?:failed|failures?)\b"
    r"|\b0 ?(?:/|of|out of) ?\d+ (?:\w+ )?(?:[Ff]ailed|FAILED|[Ff]ailures?|[Ee]rrors?)\b|: (?:OK|ok|PASS(?:ED)?|[Pp]assed|[✓✔✅])$"
    r"|\b(?:no|No|NO|0|zero|without(?: any)?) (?:\w{1,30} )?mismatch(?:es)?\b"
    r"|(?<!\bnot )(?<!\bNOT )(?<!\bNot )(?<!\bbe )(?<!\bnot been )(?<!n't )(?<!n't been )"
    r"\b(?:fixed|FIXED|resolved|solved)\b(?! (?:version|code)\b)"
)
"""What denies such a verdict, wherever it stands in the line."""
_SUCCESS_WORD = r"(?:[Pp]assed|PASSED|PASS|OK|match(?:es)?(?: \w+)?|as expected|correct(?:ly)?)"
_DENIED_SUCCESS = re.compile(
    rf"\b(?:{_SUCCESS_WORD}|Match|[Ss]uccess|SUCCESS|Fixed|FIXED) ?[:=?] ?(?:False|[Nn]o|NO)\W*$"
    r"|^\W*(?:Expected (?:an? )?[\w.]{1,60} but (?:got none|got nothing|nothing|none|no|it did(?:n't| not))\b"
    r"|[Ss]hould have (?:raised|failed|thrown)\b|DID NOT RAISE\b)"
)
"""`Test passed: False`, `Expected ValueError but nothing was raised`."""
_NEGATIVE_STEMS = ("no", "false", "it did", "should have")
_POSITIVE_STEMS = (
    "pass",
    "ok",
    "match",
    "expected",
    "correct",
    "success",
    "fixed",
    "should have",
    "did not raise",
)
"""A line without a stem of each kind, in lower case, cannot match."""
_SUCCESS_START = r"^\W*(?:SUCCESS|PASS|PASSED|OK|CORRECT|FIXED|Success)\b"
_SUCCESS = re.compile(
    rf"{_SUCCESS_START}|: (?:PASS(?:ED)?|OK)\b|[✓✔✅]"
    r"|(?:[Tt]est|[Cc]heck|[Cc]ase|[Aa]ssert|[Aa]ll\b|\d).{0,80}\b[Pp]assed\b|\b[Pp]assed\W*$"
    r"|completed successfully|\b(?:not|NOT) (?:reproduced|REPRODUCED)\b|\bas expected\b|\bCaught expected\b"
    r"|\b(?:[Vv]alues?|[Rr]esults?|[Oo]utputs?|[Cc]ounts?) match(?:es)?\b|\b(?:matches|match) expected\b"
    r"|\bworks? (?:correctly|as expected)\b|\b(?:is|are) correct\b"
)
_SUCCESS_STEMS = (
    "pass",
    "ok",
    "success",
    "correct",
    "match",
    "expected",
    "fixed",
    "reproduced",
    "✓",
    "✔",
    "✅",
)
"""A line without any of these stems, in lower case, cannot match."""
_NO_SUCCESS = re.compile(
    rf"(?!{_SUCCESS_START}|^[✓✔✅])^.*\b(?:[Nn]ot?|NOT|0|[Nn]one|should(?:n't)?)\b"
    r"(?! (?:tests? |checks? )?(?:[Ff]ail\w*|[Ee]rrors?|[Ee]xceptions?|[Ii]ssues?|[Pp]roblems?|longer|reproduced)\b)"
    rf"[^,;:.]{{0,80}}\b{_SUCCESS_WORD}\b"
    rf"|\b{_SUCCESS_WORD} ?[:=?] ?(?:False|[Nn]o|NO|0|None)\b|\bshould(?: not|n't) happen\b"
)


_VALUE_LABEL = re.compile(
    r"\b(?:(?P<expected>Expected|EXPECTED|expected)|(?P<actual>[Gg]ot|GOT|[Aa]ctual|ACTUAL|[Ff]ound|[Rr]eceived|[Rr]eturned"
    r"|[Oo]btained))(?:(?: (?!(?:and|or|vs|as|to|\w*[Ee]rror|\w*[Ee]xception|failure)\b)[A-Za-z_]\w{0,39}){0,3}(?: '[^' ]{1,40}')?"
    r"(?P<colon> ?[:=]| ?->)|(?= |$))"
)
"""The label of a printed value: `Expected:`, `Got output =`; without a colon `Expected 3`."""
_JOINT_WORDS = ("but", "and", "instead of", "instead", "->", "vs", "vs.")
_DESCRIPTION = re.compile(
    r"^\W*(?:an? \w+$|(?:any|some)\b)|^[~<>]=? ?\d|\b(?:should|not|no|or|errors?|exceptions?|raises?|nothing|something|about"
    r"|approx\w*|equivalent|least|most)\b"
)
"""A value in words, which cannot be compared."""
_LITERAL = re.compile(r"[-+]?\d|['\"\[({]|True\b|False\b|None\b|nan\b|inf\b|array\(|<class ")
_NUMBER = re.compile(r"[-+]?(?:\d{1,30}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_TOKEN = re.compile(rf"{_NUMBER.pattern}|" r"\w+|[^\w\s'\",]")


_SUCCESS_LINE = re.compile(
    rf"{_SUCCESS_START}|^[✓✔✅]|^Caught\b|(?:(?<!not )(?<!NOT )\b(?:OK|PASS(?:ED)?)|[✓✔✅])\W?$"
)
_RESULT_LABEL = re.compile(r"\b(?:[Rr]esult|RESULT|[Oo]utput|OUTPUT|[Cc]omputed) ?[:=]")
"""The label of an actual value, if an expected one stands beside it."""


def has_crash_sign(text: str) -> bool:
    """Whether any program's output has a traceback, or a line that starts with FAIL or ERROR."""
    if TRACEBACK in text:
        return True
    if ("FAIL" in text or "ERROR" in text) and _FAILURE_LINE.search(text):
        return True
    return "Error: " in text and '  File "' in text and _SYNTAX_ERROR.search(text) is not None


def has_failure_sign(text: str) -> bool:
    """Whether a script's output reports a failure, in the words of Python or in its own."""
    return has_crash_sign(text) or next(find_failure_lines(text.splitlines()), None) is not None


def find_failure_lines(lines: Iterable[str]) -> Iterator[int]:
    """Numbers of the lines that report a failure: in words, or by a value that differs from the expected one."""
    previous, followed_label = "", False
    for number, raw in enumerate(lines):
        line = raw.strip()[:_MAX_LINE_CHARS]
        if not line:
            continue
        has_label = "xpected" in line or "EXPECTED" in line
        shows_values = has_label or followed_label
        if _reports_failure(line) or (shows_values and _differs_from_expected(previous, line)):
            yield number
        previous, followed_label = line, has_label


def states_success(text: str) -> bool:
    """Whether a script's output contains a positive verdict of its own."""
    if not contains_any(text.lower(), _SUCCESS_STEMS):
        return False
    return any(
        contains_any(line.lower(), _SUCCESS_STEMS) and _SUCCESS.search(line) and not _NO_SUCCESS.search(line)
        for line in _list_lines(text)
    )


def _list_lines(text: str) -> Iterator[str]:
    return (line.strip()[:_MAX_LINE_CHARS] for line in text.splitlines() if line and not line.isspace())


def _differs_from_expected(previous: str, line: str) -> bool:
    """Whether a line, with the one before it, shows an expected and another actual value."""
    if _DENIAL.search(line) or _SUCCESS_LINE.search(line):
        return False
    labels = list(_VALUE_LABEL.finditer(line))
    first = {name: next((n for n in labels if n[name]), None) for name in ("expected", "actual")}
    expected, actual = first["expected"], first["actual"]
    if expected is not None and actual is not None:
        one, other = sorted((expected, actual), key=lambda label: label.start())
        is_message = not one["colon"] and line[one.start()].islower()
        if is_message and line[: one.start()].rstrip()[-1:] not in ("", ":"):
            return False  # such as `not enough values to unpack (expected 2, got 0)`
        values = (_strip_joint(line[one.end() : other.start()]), _strip_joint(line[other.end() :]))
        return _is_unequal(*(values if one is expected else reversed(values)))
    if expected is not None and (expected["colon"] or line[: expected.start()].endswith((", ", "("))):
        start = max(line.rfind(sign, 0, expected.start()) for sign in ":=>") + 1
        before = _strip_joint(line[start : expected.start()]) if start else ""
        value = _strip_joint(line[expected.end() :])
        result = None if before else _RESULT_LABEL.search(line, expected.end())
        if result is not None:
            before = _strip_joint(line[result.end() :])
            value = _strip_joint(line[expected.end() : result.start()])
        if before:
            return (
                _LITERAL.match(before) is not None
                and _LITERAL.match(value) is not None
                and _is_unequal(value, before)
            )
    return _follows_other_value(previous, line)


def _follows_other_value(previous: str, line: str) -> bool:
    """Whether two lines show an expected and an actual value, in any order, that differ."""
    one, other = (_VALUE_LABEL.search(each) for each in (previous, line))
    if one is None or other is None:
        result = _RESULT_LABEL.match(previous if one is None else line)
        value = other or one
        if result is None or value is None or not value["expected"] or not value["colon"]:
            return False
        texts = (value.string[value.end() :].strip(), result.string[result.end() :].strip())
        is_first = not value.string[: value.start()].strip(" -*#>")
        return is_first and all(map(_LITERAL.match, texts)) and _is_unequal(*texts)
    if not one["colon"] or not other["colon"]:
        return False
    if bool(one["expected"]) == bool(other["expected"]):
        return False
    if previous[: one.start()].strip(" -*#>") or line[: other.start()].strip(" -*#>"):
        return False
    return _is_unequal(previous[one.end() :], line[other.end() :])


def _strip_joint(text: str) -> str:
    """A value without the punctuation and the words that join it to the next label."""
    text = text.strip(" ,;|")
    text = text[1:] if text.startswith("(") and ")" not in text else text
    text = text.removesuffix("(").rstrip(" ,;|.")
    text = text.removesuffix(")") if "(" not in text else text
    for word in _JOINT_WORDS:
        text = text.removesuffix(f" {word}")
    return text.rstrip(" ,;|")


def _is_unequal(expected: str, actual: str) -> bool:
    """Whether two printed values differ; false if words describe one of them."""
    texts = [text.strip()[:_MAX_VALUE_CHARS] for text in (expected, actual)]
    one, other = (_TOKEN.findall(_strip_remark(text)) for text in texts)
    if not one or not other or one == other:
        return False
    if not all(map(_LITERAL.match, texts)):
        if any(map(_DESCRIPTION.search, texts)):
            return False
        shorter, longer = sorted((one, other), key=len)
        if longer[: len(shorter)] == shorter:
            return False
    words = [
        [t for t in tokens if t not in "[](){}.;:" and not _NUMBER.fullmatch(t)] for tokens in (one, other)
    ]
    numbers = [[token for token in tokens if _NUMBER.fullmatch(token)] for tokens in (one, other)]
    is_same = len(numbers[0]) == len(numbers[1]) and all(map(_is_close, *numbers))
    return words[0] != words[1] or not is_same


def _is_close(one: str, other: str) -> bool:
    """Whether two numbers are equal; a fraction needs not be exact."""
    if one.lstrip("+-").isdigit() and other.lstrip("+-").isdigit():
        return int(one) == int(other)
    return math.isclose(float(one), float(other), rel_tol=1e-6, abs_tol=1e-9)


def _strip_remark(value: str) -> str:
    """A value without a remark in parentheses after it: `3 (OK)`."""
    value = value.rstrip(" .,;!")
    start = value.rfind(" (")
    return (
        value[:start].rstrip()
        if start > 0 and value.endswith(")") and value.count(")", start) == 1
        else value
    )


def _reports_failure(line: str) -> bool:
    lowered = line.lower()
    may_be_denied = contains_any(lowered, _NEGATIVE_STEMS) and contains_any(lowered, _POSITIVE_STEMS)
    denied = _DENIED_SUCCESS.search(line) if may_be_denied else None
    if denied is not None:
        return _EXPECTATION.search(line, 0, denied.start()) is None and _DENIAL.search(line) is None
    found = _REPORTED_FAILURE.search(line) if contains_any(lowered, _FAILURE_STEMS) else None
    return (
        found is not None
        and _EXPECTATION.search(line, 0, found.end()) is None
        and _DENIAL.search(line) is None
    )
