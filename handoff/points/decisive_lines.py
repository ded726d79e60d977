"""The lines of an output that determined the outcome of a validation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from langgraph_takeover.handoff.points.script_verdicts import TRACEBACK, find_failure_lines, has_crash_sign

_MAX_LINE_CHARS = 1_000
_FAILED_TEST = re.compile(
    r"^(?:FAILED|ERROR|FAIL|FAILURE)\b|(?<!\S)(?>\S*?::)\S+ (?:FAILED|ERROR)\b|\[FAIL\]$|^--- FAIL|\.\.\. (?:FAIL|ERROR|FAILED)$"
)
_DECISIVE_LINE = re.compile(
    r"^E  +(?![+?-] )\S|^[\w.]*(?:Error|Exception): "
    r"|: error: |^\S+:\d+:\d+: |\berror TS\d+"
)
_SUMMARY_LINE = re.compile(
    r"^=+ .* in [\d.]+ ?s|^\d+ (?:passed|failed|error|skipped).* in |^Ran \d+ tests? in|^OK(?:$| \()"
    r"|tests finished: |^FAILED \("
    r"|no tests ran|^Tests?:|test result:|^BUILD |^Found \d+ error|^Success: no issues|^All checks passed"
    r"|rated at|^Test Suites:"
)
_GROUP_PREFIX = re.compile(r"^ *[|+] ")
"""What Python prints before the lines of an exception group."""
_FRAME = re.compile(r'^(\s+)File ".+", line \d+')
_ENDING_LINES = 3


def extract_evidence(text: str, limit: int = 12, width: int = 200) -> tuple[str, ...]:
    """At most `limit` lines that determined an outcome, in order.

    The last two summary lines are chosen first, then the exceptions that end tracebacks, failed tests, and other decisive
    lines. Without a summary, the last lines of the output are evidence too.
    """
    lines = [line[:_MAX_LINE_CHARS].rstrip() for line in text.splitlines() if line.strip()]
    summaries = [number for number, line in enumerate(lines) if _SUMMARY_LINE.search(line)][-2:]
    exceptions = list(_find_exceptions(lines))
    failed = [number for number, line in enumerate(lines) if _FAILED_TEST.search(line)]
    decisive = [number for number, line in enumerate(lines) if _DECISIVE_LINE.search(line)]
    ending: list[int] = []
    if not summaries:
        # A script says itself what failed.
        decisive += [n for n, line in enumerate(lines) if TRACEBACK not in line and has_crash_sign(line)]
        decisive += find_failure_lines(lines)
        ending = list(range(max(len(lines) - _ENDING_LINES, 0), len(lines)))
    chosen: dict[str, int] = {}
    for numbers in (summaries, exceptions, failed[: limit // 2], decisive, failed, ending):
        texts = {lines[number][:width]: number for number in reversed(numbers)}
        fresh = sorted(number for shown, number in texts.items() if shown not in chosen)
        free = limit - len(chosen)
        fresh = fresh if len(fresh) <= free else [*fresh[: free - 1], fresh[-1]][:free]
        chosen |= {lines[number][:width]: number for number in fresh}
    return tuple(sorted(chosen, key=lambda shown: chosen[shown]))


def _find_exceptions(lines: Sequence[str]) -> Iterator[int]:
    """Find the last line of each traceback: the first line after its frames that is not indented more than they are."""
    indent: int | None = None
    for number, line in enumerate(lines):
        bare = _GROUP_PREFIX.sub("", line)
        depth = len(bare) - len(bare.lstrip())
        if TRACEBACK in bare:
            indent = depth
        elif (frame := _FRAME.match(bare)) and (indent is None or depth <= indent):
            # The start of the traceback was cut off.
            indent = len(frame[1]) - 1
        elif indent is not None and depth <= indent:
            indent = None
            yield number
