"""The words that are searched before a slow pattern: without one of them, the pattern cannot match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.points import detectors, environment_failures, script_verdicts
from langgraph_takeover.handoff.readers import openhands, swe_agent


def _has_any(words: tuple[str, ...], *, lower: bool = False) -> Callable[[str], bool]:
    return lambda text: any(word in (text.lower() if lower else text) for word in words)


_CASES = {
    "assertions": (detectors._ASSERTION, _has_any(detectors._ASSERTION_STEMS)),
    "settings": (
        environment_failures._MISSING_SETTINGS,
        _has_any(environment_failures._MISSING_SETTINGS_WORDS),
    ),
    "collection": (
        environment_failures._COLLECTION_ERROR,
        _has_any(environment_failures._COLLECTION_ERROR_WORDS),
    ),
    "setup": (environment_failures._SETUP_ERROR, _has_any(environment_failures._SETUP_ERROR_WORDS)),
    "failures": (script_verdicts._REPORTED_FAILURE, _has_any(script_verdicts._FAILURE_STEMS, lower=True)),
    "denials, negative": (
        script_verdicts._DENIED_SUCCESS,
        _has_any(script_verdicts._NEGATIVE_STEMS, lower=True),
    ),
    "denials, positive": (
        script_verdicts._DENIED_SUCCESS,
        _has_any(script_verdicts._POSITIVE_STEMS, lower=True),
    ),
    "successes": (script_verdicts._SUCCESS, _has_any(script_verdicts._SUCCESS_STEMS, lower=True)),
    "notices of the runtime": (
        openhands._RUNTIME_SUFFIX,
        _has_any(openhands._SUFFIX_STARTS, lower=True),
    ),
    "time-outs": (swe_agent._TIMEOUT_NOTICE, _has_any(swe_agent._TIMEOUT_STEMS, lower=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _CASES)
def test_no_match_without_a_stem(name: str) -> None:
    pattern, has_stem = _CASES[name]

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: Any) -> None:
        text = data.draw(st.from_regex(pattern))
        assert has_stem(text), text

    check()
