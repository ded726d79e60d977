"""A continuation: the predecessor's own agent resumes its conversation at a record, on a new thread."""

from __future__ import annotations

import json

import pytest

from langgraph_takeover.errors import RecordError, UnknownViewError
from langgraph_takeover.handoff.trace.events import Action, write_action
from langgraph_takeover.handoff.views import VIEWS

from .conftest import DONE, EDIT, FIX, PROMPT, TEST, RunHarness, native_reply, parse_events, scripted_model

RECORD = "run.first_source_edit"


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_the_agent_sees_what_it_would_have_seen_next(bench: RunHarness, protocol: str) -> None:
    commands = ("sed -i 's/n + 1/n * 3/' pkg/core.py", "cat pkg/core.py", "rm test_core.py", "ls -A")
    replies = (
        [
            *(native_reply(("shell", json.dumps({"command": each}))) for each in commands),
            native_reply(("finish", "{}")),
        ]
        if protocol == "native"
        else [*(f"```bash\n{each}\n```" for each in commands), DONE]
    )
    whole, model = scripted_model(*replies), scripted_model(*replies)
    bench.run(whole, points=("first_source_edit",), protocol=protocol)
    state = bench.take_over(model, "continuation", RECORD, protocol=protocol)
    assert state["stop_reason"] == "finished"
    assert [[each.text for each in seen] for seen in model.seen] == [
        [each.text for each in seen] for seen in whole.seen[1:]
    ]
    # Its own work only, as in every takeover.
    assert state["steps"] == 4
    assert [event.index for event in parse_events(state)] == list(range(7))
    assert state["view"] == "continuation"


def test_the_sandbox_is_that_of_the_record(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, FIX, DONE), points=("first_source_edit",))
    show = "```bash\ncat pkg/core.py\n```"
    state = bench.take_over(scripted_model(EDIT, show, DONE), "continuation", RECORD)
    assert "return n * 3" in parse_events(state)[1].text


@pytest.mark.slow
def test_an_interrupted_continuation_resumes(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, TEST, DONE), points=("first_source_edit",))
    state = bench.take_over(scripted_model(EDIT, TEST, DONE), "continuation", RECORD, max_steps=1)
    assert (state["stop_reason"], state["steps"]) == ("max_steps", 1)
    (thread,) = [each for each in bench.home.threads() if each.startswith("taking")]
    model = scripted_model(EDIT, TEST, DONE)
    assert bench.resume(model, thread=thread).stop_reason == "finished"
    assert [each.text for each in model.seen[-1]][1] == PROMPT


@pytest.mark.slow
def test_undo_reaches_the_work_before_the_record(bench: RunHarness) -> None:
    def call(**arguments: str) -> str:
        return write_action(Action("editor", {"path": "pkg/core.py", **arguments}))

    edit = call(command="str_replace", old="n + 1", new="n * 3")
    replies = (edit, call(command="undo"), "```bash\ncat pkg/core.py\n```", DONE)
    bench.run(scripted_model(*replies[:1], DONE), points=("first_source_edit",))
    undone, shown = parse_events(bench.take_over(scripted_model(*replies), "continuation", RECORD))[1:4:2]
    assert not undone.refused
    assert "return n + 1" in shown.text
    # A successor did not make the edit, so it has nothing to undo.
    (refused,) = parse_events(bench.take_over(scripted_model(replies[1], DONE), "structured", RECORD))[1:2]
    assert refused.refused


def test_what_cannot_be_continued_is_refused(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))
    model = scripted_model(EDIT, DONE)
    with bench.open_run(model) as run:
        run.discard()
    with pytest.raises(RecordError, match=r"continuation needs checkpoint \S+ of thread thread, which this"):
        bench.take_over(model, "continuation", RECORD)
    assert model.seen == []
    assert bench.take_over(scripted_model(DONE), "structured", RECORD)["stop_reason"] == "finished"
    with pytest.raises(UnknownViewError, match="unknown view 'continue'"):
        bench.take_over(model, "continue", RECORD)
    assert "continuation" not in VIEWS
