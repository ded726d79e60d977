"""Parsers of the summaries that runners print: single lines, and those of Python's test runners."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache, lru_cache
from typing import Literal

from langgraph_takeover.handoff.text.word_search import contains_any

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
    if not contains_any(text, _PYTEST_HINTS):
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
    if "KeyboardInterrupt" in text and re.search(r"^!+ (?>.*?KeyboardInterrupt).* !+$", text, re.M):
        return "environment_error"
    ran = re.search(r"\b[1-9]\d* (?:passed|skipped|xfailed|xpassed)\b", last)
    return "passed" if ran else "environment_error"


def unittest(text: str) -> ValidationOutcome | None:
    """Parse summaries of unittest, nose, trial and Django's `runtests.py`."""
    if not contains_any(text, _UNITTEST_HINTS):
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
    return unittest(text) if "Ran " in text and _RAN_COUNT.search(text) else None


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


@dataclass(frozen=True)
class LineSummary:
    """A parser of single lines. Its patterns match the start of a line without its indentation.

    A failure outweighs a pass, and a pass outweighs an empty run.
    """

    passed: str = ""
    failed: str = ""
    empty: str = ""
    """Nothing was collected."""
    not_run: str = ""
    """The run could not start or collect anything, whatever other lines say."""

    def __call__(self, text: str) -> ValidationOutcome | None:
        lines = split_lines(text)
        if matches_any(self.not_run, lines):
            return "environment_error"
        if matches_any(self.failed, lines):
            return "failed"
        if matches_any(self.passed, lines):
            return "passed"
        return "environment_error" if matches_any(self.empty, lines) else None


_MAX_LINE_CHARS = 500


@lru_cache(maxsize=2)
def split_lines(text: str) -> tuple[str, ...]:
    """The different lines of a text, shortened and without indentation, so that every pattern is fast on them."""
    return tuple(dict.fromkeys(s for line in text.split("\n") if (s := line.strip()[:_MAX_LINE_CHARS])))


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def matches_any(pattern: str, lines: Sequence[str]) -> bool:
    """Whether a line starts with a match of the pattern; an empty pattern matches none."""
    return bool(pattern) and any(map(_compile(pattern).match, lines))


def combine(*parsers: SummaryParser) -> SummaryParser:
    """A parser that returns the first outcome of several parsers."""

    def parse(text: str) -> ValidationOutcome | None:
        return next((o for o in (r(text) for r in parsers) if o is not None), None)

    return parse


def merge(*parsers: SummaryParser) -> SummaryParser:
    """A parser for the output of several unknown programs: one failure outweighs all passes, one pass all empty runs."""
    joined = [each for each in parsers if isinstance(each, LineSummary) and not each.not_run]
    lines = LineSummary(
        *("|".join(filter(None, column)) for column in zip(*map(astuple, joined), strict=True))
    )
    distinct: list[SummaryParser] = [lines, *(each for each in parsers if each not in joined)]

    def parse(text: str) -> ValidationOutcome | None:
        outcomes = [each(text) for each in distinct]
        decisive: tuple[ValidationOutcome, ...] = ("failed", "passed", "environment_error")
        return next((outcome for outcome in decisive if outcome in outcomes), None)

    return parse
