from __future__ import annotations

from langgraph_takeover.evals.run.measures.final_patch import measure_remainder
from langgraph_takeover.handoff.trace.events import Usage

from .test_costs import calls, usage


def test_the_rest_of_a_run_after_a_point() -> None:
    events = calls(usage(10, 1), usage(20, 2), usage(30, 3))
    assert measure_remainder(events, 1, "finished") == {
        "events": 4,
        "prompt_tokens": 50,
        "completion_tokens": 5,
    }
    assert measure_remainder(events, 1, "max_steps") is None


def test_uncounted_calls_make_the_tokens_unknown() -> None:
    rest = {"events": 2, "prompt_tokens": None, "completion_tokens": None}
    assert measure_remainder(calls(usage(10, 1), Usage()), 1, "finished") == rest
    # A failed attempt may have been before the point or after it.
    assert measure_remainder(calls(usage(10, 1), usage(20, 2)), 1, "finished", uncounted_calls=1) == rest
    # An uncounted call before the point changes nothing after it.
    known = measure_remainder(calls(Usage(), usage(20, 2)), 1, "finished", uncounted_calls=1)
    assert known == {"events": 2, "prompt_tokens": 20, "completion_tokens": 2}
