"""Parsers for the summaries that test runners, linters and build tools print."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

ValidationOutcome = Literal["passed", "failed", "environment_error", "unknown"]
SummaryParser = Callable[[str], ValidationOutcome | None]
"""Parses a complete output without colors; returns None if it contains no summary of the runner."""

_PYTEST_SUMMARY = re.compile(
    r"^=*[ ]?(?P<counts>(?:\d+ (?:subtests )?[a-z]+(?:, )?)+) in [\d.]+ ?s(?:econds)?\b.*$|^=*[ ]?no tests ran\b.*$",
    re.M,
)
_PYTEST_WORDS = {
    "failed", "passed", "error", "errors", "skipped", "xfailed", "xpassed", "deselected", "warning",
    "warnings", "rerun", "pytest", "subtests",
}  # fmt: skip
_PYTEST_FAILURE = re.compile(
    r"^(?:FAILED|ERROR) \S+\.py\b|^(?>\S+?::)\S.* (?:FAILED|ERROR)\b"
    r"|^\S+\.py [.sxX]*[FE][.sxXFE]*(?: +\[ *\d+%\])?$",
    re.M,
)
_PYTEST_DOTS = re.compile(
    r"\A\s*(?:^(?:\S+\.py )?[.sxX]+ +\[ *\d+%\]\n)*^(?:\S+\.py )?[.sxX]+ +\[100%\]$", re.M
)
_UNITTEST_SUMMARY = re.compile(
    r"^(?P<ok>OK|PASSED)(?: \([\w ]+=\d.*\))?$"
    r"|^(?P<bad>FAILED) \((?:failures|errors|unexpected successes|skipped|expected failures|successes)=.*\)$"
    r"|^(?P<none>NO TESTS RAN)\b.*$",
    re.M,
)
_RAN_COUNT = re.compile(r"^Ran (\d+) tests? in ", re.M)
_UNITTEST_FAILURE = re.compile(
    r"^(?:FAIL|ERROR): \w+ \([\w.]+\)|^\w+ \([\w.]+\).* \.\.\. (?:FAIL|ERROR)$", re.M
)
_SYMPY_SUMMARY = re.compile(r"tests finished: ((?:.*\n)??.*in [\d.]+ seconds|.*)")
_SYMPY_FAILURE = re.compile(r"^\S+\[\d+\] .*\[FAIL\]$|^ *\[FAIL\]$|^DO \*NOT\* COMMIT!", re.M)
_COUNT = re.compile(r"(?<!\d)(\d+) (failed|passed|exceptions?|errors?|xpassed|xfailed|skipped)")

_PYTEST_HINTS = (" passed", " failed", " error", " skipped", " xfailed", " xpassed", " deselected", " warning",
                 "no tests ran", "FAILED", "ERROR", ".py ", "[100%]")  # fmt: skip
_UNITTEST_HINTS = ("OK", "PASSED", "FAIL", "NO TESTS RAN", "ERROR", "Ran ")
"""An output without any of these words cannot match; searching words is much faster than patterns."""


def pytest(text: str) -> ValidationOutcome | None:
    if not any(hint in text for hint in _PYTEST_HINTS):
        return None
    verdicts = []
    for match in _PYTEST_SUMMARY.finditer(text):
        counts = match["counts"]
        if counts is None:
            verdicts.append("interrupted" if "Interrupted" in text else "none")
        elif set(re.findall(r"[a-z]+", counts)) <= _PYTEST_WORDS:
            verdicts.append(counts)
    if not verdicts:
        return "failed" if _PYTEST_FAILURE.search(text) else "passed" if _PYTEST_DOTS.search(text) else None
    last = verdicts[-1]
    if re.search(r"\b[1-9]\d* (?:failed|errors?)\b", last) or last == "interrupted":
        return "failed"
    if re.search(r"^!+ .*KeyboardInterrupt.* !+$", text, re.M):
        return "environment_error"
    ran = re.search(r"\b[1-9]\d* (?:passed|skipped|xfailed|xpassed)\b", last)
    return "passed" if ran else "environment_error"


def unittest(text: str) -> ValidationOutcome | None:
    """Parse summaries of unittest, nose, trial and Django's `runtests.py`."""
    if not any(hint in text for hint in _UNITTEST_HINTS):
        return None
    ran = _RAN_COUNT.findall(text)
    matches = list(_UNITTEST_SUMMARY.finditer(text))
    if not matches:
        return "failed" if _UNITTEST_FAILURE.search(text) else None
    if matches[-1]["bad"]:
        return "failed"
    return "environment_error" if matches[-1]["none"] or (ran and ran[-1] == "0") else "passed"


def unittest_in_script(text: str) -> ValidationOutcome | None:
    """Parse a unittest summary only after `Ran 3 tests`, since any script may print OK."""
    return unittest(text) if _RAN_COUNT.search(text) else None


def sympy(text: str) -> ValidationOutcome | None:
    if "tests finished" not in text and "[FAIL]" not in text and "DO *NOT*" not in text:
        return None
    finished = _SYMPY_SUMMARY.findall(text)
    if not finished:
        return "failed" if _SYMPY_FAILURE.search(text) else None
    counts = {word.rstrip("s"): int(number) for number, word in _COUNT.findall(finished[-1])}
    if counts.get("failed") or counts.get("exception") or counts.get("error"):
        return "failed"
    return "passed" if any(counts.values()) else "environment_error"


def match_lines(
    passed: str = "", failed: str = "", no_tests: str = "", *, no_tests_first: bool = False
) -> SummaryParser:
    """A parser that matches single lines; failure wins, unless `no_tests_first` is set and no tests ran."""
    good, bad, empty = (re.compile(p, re.M) if p else None for p in (passed, failed, no_tests))

    def parse(text: str) -> ValidationOutcome | None:
        if no_tests_first and empty is not None and empty.search(text):
            return "environment_error"
        if bad is not None and bad.search(text):
            return "failed"
        if good is not None and good.search(text):
            return "passed"
        return "environment_error" if empty is not None and empty.search(text) else None

    return parse


def combine(*parsers: SummaryParser) -> SummaryParser:
    """A parser that returns the first outcome of several parsers."""

    def parse(text: str) -> ValidationOutcome | None:
        return next((o for o in (r(text) for r in parsers) if o is not None), None)

    return parse


tox = combine(
    match_lines(
        "", "", r"could not find python interpreter|^\S+: install_deps> .*|: skipped because could not find"
    ),
    match_lines(
        r"congratulations :\)", r"evaluation failed :\(|^ERROR: +\S+: commands failed|: FAIL (?:code|✖)"
    ),
    pytest,
    unittest,
)
nose = unittest
go = match_lines(
    r"^ok\s+\S+\s+(?:\(cached\)|[\d.]+s)(?!.*\[no tests to run\])",
    r"^(?:--- )?FAIL\b(?!.*\[setup failed\])|\[build failed\]|^\S+\.go:\d+:\d+: ",
    r"^no Go files|no packages to test|\[no tests to run\]|\[no test files\]|\[setup failed\]",
)
cargo = match_lines(
    r"^test result: ok\. [1-9]\d* passed|^ +Summary .*\b[1-9]\d* passed|^ +Finished (?!`test)",
    r"^test result: FAILED|^error(?:\[E\d+\])?: (?:could not compile|test failed|test run failed|aborting)|^error\[E\d+\]",
    r"^test result: ok\. 0 passed",
)
javascript = match_lines(
    r"^[ \t]*Tests:?[ \t].*\d passed|^[ \t]*[1-9]\d* passing\b|^# fail 0$|^\u2139 fail 0$|^[ \t]*\d+ tests? passed"
    r"|^[ \t]*[1-9]\d* passed \(|^[ \t]*[1-9]\d* pass$|^ok \| ",
    r"^[ \t]*Tests:?[ \t].*\b[1-9]\d* failed|^[ \t]*[1-9]\d* failing\b|^[ \t]*Test Files[ \t].*\b[1-9]\d* failed"
    r"|^[ \t]*Errors[ \t]+[1-9]|^[ \t]*[1-9]\d* tests? failed|^(?:#|\u2139) fail [1-9]|^Test Suites: .*\b[1-9]\d* failed"
    r"|^[ \t]*[1-9]\d* failed$|^[ \t]*[1-9]\d* fail$|^FAILED \| ",
    r"^No tests found|^No test files found|issing script:|^[ \t]*0 passing\b|^(?:#|\u2139) tests 0$"
    r"|: not found$|could not determine executable|Could not read package\.json|Script not found",
    no_tests_first=True,
)
maven = match_lines(
    r"BUILD SUCCESS",
    r"BUILD FAIL|^\[ERROR\] Tests run:.*(?:Failures|Errors): [1-9]",
    r"Could not resolve dependencies|No tests were executed|there is no POM|No tests found for given includes"
    r"|^Task '\S+' not found|Could not resolve all",
    no_tests_first=True,
)
ctest = match_lines(
    r"^100% tests passed",
    r"tests passed, [1-9]\d* tests? failed out of",
    r"^No tests were found|Could not find executable",
    no_tests_first=True,
)
rspec = match_lines(
    r"\b[1-9]\d* examples?, 0 failures\b(?!, [1-9]\d* error)|^(?>.*?\b[1-9]\d* runs, ).* 0 failures, 0 errors",
    r"\b\d+ examples?, (?:[1-9]\d* failure|0 failures, [1-9]\d* error)|^(?>.*?\d runs, ).*\b[1-9]\d* (?:failures|errors)",
    r"^0 examples, 0 failures$|^0 runs, |Could not find gem",
)
phpunit = match_lines(
    r"^OK \(\d+ tests?|^OK, but |^[ \t]*Tests:[ \t](?!.*failed).*\d passed",
    r"^(?:FAILURES|ERRORS)!$|^Tests: .*(?:Failures|Errors): [1-9]|^[ \t]*Tests:[ \t].*\b[1-9]\d* failed",
    r"^No tests executed!",
)
doctest = match_lines(r"^Test passed\.$", r"^\*\*\*Test Failed\*\*\* [1-9]")
syntax_errors = match_lines("", r"^(?:Sorry: )?(?:Syntax|Indentation|Tab)Error: ")
error_lines = match_lines("", r"^\S+\.\w+:\d+(?::\d+)?:? (?:[A-Z]+\d+\b|error:|[A-Z]+ ).*")
ruff = match_lines(
    r"^All checks passed!|already formatted$|would be left unchanged\.$",
    r"^Found [1-9]\d* errors?|would be reformatted",
)
mypy = match_lines(r"^Success: no issues found", r"^Found [1-9]\d* errors? in |^\S+:\d+(?::\d+)?: error: ")
pyright = match_lines(r"^0 errors\b", r"^[1-9]\d* errors?,")
eslint = match_lines(r"^✖ [1-9]\d* problems? \(0 errors", r"^✖ [1-9]\d* problems? \([1-9]")
tsc = match_lines("", r"\berror TS\d+")
make = match_lines("", r"^g?make(?:\[\d+\])?: \*\*\* .*\bError \d+")
sphinx = match_lines(
    r"^build succeeded\b", r"^(?:build finished with problems|Sphinx error:|Extension error)"
)
compiler = match_lines(
    "",
    r"^\S+:\d+:(?:\d+:)? (?:fatal )?error: |^error: (?!unexpected argument|no such command)|^error: command '.*' failed",
)
