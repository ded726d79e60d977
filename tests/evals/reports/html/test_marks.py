"""The marks of events on the page."""

from __future__ import annotations

from langgraph_takeover.evals.reports.html.chunks import TextPool
from langgraph_takeover.evals.reports.html.timelines import mark_event
from langgraph_takeover.evals.run.execution.row_parts import count_model_calls
from langgraph_takeover.evals.run.measures.replies import count_tokens
from langgraph_takeover.handoff.trace.events import NO_MODEL_CALL, Event, Usage


def make_action(index: int, usage: Usage | None) -> Event:
    return Event(index=index, kind="action", tool="shell", text="", arguments={"command": "ls"}, usage=usage)


def test_a_parallel_call_is_marked_and_costs_nothing() -> None:
    first, second = make_action(0, Usage(prompt_tokens=9, completion_tokens=2)), make_action(2, NO_MODEL_CALL)
    marks = [mark_event(TextPool(), event) for event in (first, second)]
    assert "parallel" not in marks[0]
    assert marks[0]["usage"] == [9, None, 2, False]
    assert marks[1]["parallel"] is True
    assert "usage" not in marks[1]
    assert count_model_calls([first, second]) == 1
    totals = count_tokens([first, second])
    assert (totals.prompt, totals.completion, totals.uncounted_calls) == (9, 2, 0)
    # A call whose tokens the endpoint did not report is no parallel call.
    for usage in (None, Usage(), Usage(prompt_tokens=0, completion_tokens=0, estimated=True)):
        assert not make_action(0, usage).is_parallel
