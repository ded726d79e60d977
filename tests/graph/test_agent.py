"""Whole runs of the agent graph: points, caps, history, and takeovers from its records."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.records.record import RECORD_FILE, RecordError
from langgraph_takeover.nodes.model.model_errors import ContextWindowError, ModelError
from langgraph_takeover.sandbox.interface import SnapshotCorruptError

from .conftest import (
    DONE,
    EDIT,
    FIX,
    POINTS,
    PROMPT,
    TEST,
    RunHarness,
    native_reply,
    parse_events,
    scripted_model,
)


def acceptable(messages: Sequence[BaseMessage]) -> bool:
    """Check the rules of the chat completions API: every call answered immediately, once, by its id."""
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in waiting:
                return False
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            return False
        if isinstance(message, AIMessage):
            waiting = [str(call["id"]) for call in (*message.tool_calls, *message.invalid_tool_calls)]
            if len(set(waiting)) < len(waiting) or "None" in waiting:
                return False
    return not waiting


def test_each_kind_of_point_is_recorded_once_at_its_step(bench: RunHarness) -> None:
    again = "```bash\nsed -i 's/n \\* 2/2 * n/' pkg/core.py\n```"
    state = bench.run(
        scripted_model("```bash\nls\n```", EDIT, TEST, FIX, TEST, again, TEST, DONE), points=POINTS
    )
    assert state["stop_reason"] == "finished"
    assert state["records"] == [f"run.{kind}" for kind in POINTS]
    assert bench.store.list_ids() == tuple(sorted(state["records"]))
    indexes = []
    for name in state["records"]:
        record = bench.store.load(name)
        indexes.append(record.point.event_index)
        assert record.trace == tuple(parse_events(state)[: record.point.event_index + 1])
        assert (record.point,) == tuple(
            point
            for point in detectors.list_points(parse_events(state), ("pkg",))
            if point.kind == record.point.kind
        )
        assert (record.task.id, record.task.prompt, record.task.base_directories) == ("t", PROMPT, ("pkg",))
        assert record.predecessor == "scripted"
    assert indexes == [3, 5, 7]
    assert "n * 3" in bench.store.load("run.first_source_edit").patch
    assert "n * 2" in bench.store.load("run.first_post_failure_edit").patch


@pytest.mark.slow
def test_a_record_names_its_checkpoint(bench: RunHarness) -> None:
    bench.run(scripted_model("```bash\nls\n```", EDIT, TEST, DONE), points=("first_source_edit",))
    record = bench.store.load("run.first_source_edit")
    assert record.thread_id == "thread"
    saved = bench.load_state(record.checkpoint_id)
    assert saved.next == ("interruption",)
    assert tuple(parse_events(saved.values)) == record.trace


def test_the_saved_state_is_readable(bench: RunHarness) -> None:
    state = bench.run(scripted_model("```bash\nls\n```", DONE))
    saved = bench.load_state()
    assert saved.next == ()
    assert saved.values["stop_reason"] == "finished"
    assert saved.values["messages"] == state["messages"]
    assert [message.type for message in saved.values["messages"]] == ["system", "human", "ai", "human", "ai"]
    assert parse_events(saved.values) == parse_events(state)
    json.dumps(saved.values["events"])


@pytest.mark.slow
def test_two_points_of_one_action(bench: RunHarness) -> None:
    both = "```bash\nsed -i 's/n + 1/n * 3/' pkg/core.py; python3 -m unittest -q\n```"
    state = bench.run(scripted_model(both, DONE), points=POINTS)
    assert state["records"] == ["run.first_source_edit", "run.first_validation"]
    assert {bench.store.load(name).point.event_index for name in state["records"]} == {1}


@pytest.mark.slow
def test_only_requested_points_interrupt(bench: RunHarness) -> None:
    state = bench.run(scripted_model(EDIT, TEST, DONE), points=("first_validation",))
    assert state["records"] == ["run.first_validation"]


@pytest.mark.slow
def test_the_policy_stop_ends_the_run_at_the_point(bench: RunHarness) -> None:
    model = scripted_model("```bash\nls\n```", EDIT, TEST, DONE)
    state = bench.run(model, points=("first_source_edit",), policy="stop")
    assert state["stop_reason"] == "point"
    assert len(model.seen) == 2
    assert tuple(parse_events(state)) == bench.store.load("run.first_source_edit").trace


@pytest.mark.slow
def test_an_offered_handoff(bench: RunHarness) -> None:
    model = scripted_model(EDIT, "<handoff>The tests are left.</handoff>")
    state = bench.run(model, offer_handoff=True, points=("requested",))
    assert "<handoff>" in model.seen[0][0].text
    assert state["stop_reason"] == "handoff"
    assert state["records"] == ["run.requested"]
    record = bench.store.load("run.requested")
    assert record.point.detail == "The tests are left."
    assert record.trace == tuple(parse_events(state))


def test_a_handoff_without_the_offer(bench: RunHarness) -> None:
    model = scripted_model("<handoff>Bye.</handoff>", DONE)
    state = bench.run(model)
    assert "<handoff>" not in model.seen[0][0].text
    assert state["stop_reason"] == "finished"
    assert "records" not in state or state["records"] == []
    assert "no tool 'handoff'" in state["messages"][3].text


@pytest.mark.slow
def test_native_tools_offer_the_handoff_only_on_request(bench: RunHarness) -> None:
    for offer in (False, True):
        model = scripted_model(native_reply(("finish", "{}")))
        bench.run(model, protocol="native", offer_handoff=offer, thread=f"thread {offer}")
        assert ("handoff" in {tool["function"]["name"] for tool in model.tools}) is offer


@pytest.mark.slow
def test_the_cap_on_steps(bench: RunHarness) -> None:
    model = scripted_model(*["```bash\nls\n```"] * 9)
    state = bench.run(model, max_steps=3)
    assert (state["stop_reason"], state["steps"], len(model.seen)) == ("max_steps", 3, 3)
    assert [event.kind for event in parse_events(state)] == ["action", "observation"] * 3


def test_the_cap_on_tokens(bench: RunHarness) -> None:
    model = scripted_model(*["```bash\nls\n```"] * 9, tokens=100)
    state = bench.run(model, max_tokens=250)
    assert (state["stop_reason"], len(model.seen)) == ("max_tokens", 3)
    assert (state["spent"]["prompt_tokens"], state["spent"]["completion_tokens"]) == (300, 3)


@pytest.mark.slow
def test_the_cap_on_seconds(bench: RunHarness) -> None:
    state = bench.run(scripted_model(*["```bash\nsleep 0.4\n```"] * 9), max_seconds=1)
    assert state["stop_reason"] == "max_seconds"
    assert 1 <= state["steps"] <= 3


@pytest.mark.slow
def test_the_cap_on_seconds_holds_while_the_model_thinks(bench: RunHarness) -> None:
    state = bench.run(scripted_model("```bash\nls\n```", delay_s=3), max_seconds=1)
    assert state["stop_reason"] == "max_seconds"


def test_a_model_that_exceeds_the_time_limit_has_failed(bench: RunHarness) -> None:
    with pytest.raises(ModelError, match="no complete reply within"):
        bench.run(scripted_model("```bash\nls\n```", delay_s=2), model_timeout_s=0.3)


def test_a_conversation_that_no_longer_fits_ends_the_run(bench: RunHarness) -> None:
    state = bench.run(scripted_model("```bash\nls\n```", ContextWindowError("too long")))
    assert state["stop_reason"] == "context_overflow"
    assert len(parse_events(state)) == 2


def test_unreadable_replies_are_corrected_and_count(bench: RunHarness) -> None:
    model = scripted_model("Hm.", "```bash\nls\n```\n```bash\npwd\n```", "", DONE)
    state = bench.run(model)
    assert (state["stop_reason"], state["steps"]) == ("finished", 4)
    corrections = [message.text for message in state["messages"] if isinstance(message, HumanMessage)][1:]
    assert ["no action" in text for text in corrections] == [True, False, True]
    assert "2 actions" in corrections[1]
    found = parse_events(state)
    assert [event.tool for event in found] == ["unreadable"] * 6 + ["finish"]
    assert all(event.refused for event in found if event.kind == "observation")


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    "reply",
    [
        native_reply(("shell", '{"command": "ls"}'), ("shell", '{"command": "pwd"}')),
        native_reply(("shell", '{"command": "ls')),
        native_reply(("shell", '{"command": "ls"}'), ("shell", '{"command"')),
        native_reply(("shell", "{}"), ids=False),
        native_reply(("shell", "{"), ids=False),
        native_reply(("nothing", "{}")),
        AIMessage("no call at all"),
        AIMessage(""),
    ],
)
def test_unreadable_native_replies_leave_a_valid_history(bench: RunHarness, reply: AIMessage) -> None:
    good = native_reply(("shell", '{"command": "echo hello"}'))
    model = scripted_model(reply, good, native_reply(("finish", '{"message": "x"}')))
    state = bench.run(model, protocol="native", parallel_tool_calls=False)
    assert state["stop_reason"] == "finished"
    assert all(acceptable(messages) for messages in model.seen)
    assert [event.refused for event in parse_events(state) if event.kind == "observation"] == [True, False]
    assert "hello" in state["messages"][-2].text


def test_native_calls_that_a_text_protocol_gets_are_answered(bench: RunHarness) -> None:
    model = scripted_model(native_reply(("shell", '{"command": "ls"}')), DONE)
    bench.run(model)
    assert all(acceptable(messages) for messages in model.seen)


def test_native_actions_are_answered(bench: RunHarness) -> None:
    view = '{"command": "view", "path": "pkg/core.py", "start": 2}'
    handoff = native_reply(("handoff", '{"message": "On."}'))
    model = scripted_model(
        native_reply(("shell", '{"command": "ls"}')), native_reply(("editor", view)), handoff
    )
    state = bench.run(model, protocol="native", offer_handoff=True)
    assert acceptable(state["messages"])
    assert "return n + 1" in state["messages"][5].text
    assert bench.store.load("run.requested").point.detail == "On."


@pytest.mark.slow
def test_a_command_timeout(bench: RunHarness) -> None:
    state = bench.run(scripted_model("```bash\necho begun; sleep 60\n```", EDIT, DONE), command_timeout_s=2)
    first, second = [event for event in parse_events(state) if event.kind == "observation"]
    assert first.timed_out
    assert first.exit_code is None
    assert "stopped after" in first.text
    assert "begun" in first.text
    assert second.exit_code == 0


def test_a_command_that_ends_its_shell(bench: RunHarness) -> None:
    state = bench.run(
        scripted_model("```bash\nkill -9 $$\n```", "```bash\nexit 3\n```", "```bash\npwd\n```", DONE)
    )
    killed, left, after = [event for event in parse_events(state) if event.kind == "observation"]
    assert killed.exit_code == 137
    assert killed.text.startswith("[exit code 137]")
    assert "a new one was started in" in killed.text
    assert left.exit_code == 3
    assert after.exit_code == 0


def test_a_command_with_a_nul_byte(bench: RunHarness) -> None:
    state = bench.run(scripted_model("```bash\necho a\x00b\n```", DONE))
    refused = parse_events(state)[1]
    assert refused.refused
    assert "NUL" in refused.text


def test_a_patch_and_names_outside_utf8(bench: RunHarness) -> None:
    odd = "```bash\nprintf '# caf\\351\\n' >> pkg/core.py; touch $'pkg/\\351.txt'; ls pkg\n```"
    state = bench.run(scripted_model(odd, DONE), points=("first_source_edit",))
    record = bench.store.load("run.first_source_edit")
    assert record.trace == tuple(parse_events(state)[:2])
    assert "pkg/core.py" in record.patch
    for view in views.VIEWS.values():
        for message in view(record):
            message.text.encode()
    assert bench.take_over(scripted_model(DONE), "trace")["stop_reason"] == "finished"


@pytest.mark.parametrize(
    "view",
    [
        each if each in ("structured", "transcript") else pytest.param(each, marks=pytest.mark.slow)
        for each in views.VIEWS
    ],
)
def test_a_takeover_begins_with_its_view(bench: RunHarness, view: str) -> None:
    bench.run(
        scripted_model("```bash\ncd pkg\n```", EDIT.replace("pkg/", ""), "```bash\nrm core.py\n```", DONE),
        points=POINTS,
    )
    record = bench.store.load("run.first_source_edit")
    shown = views.find_view(view)(record)
    replayed = sum(isinstance(message, AIMessage) for message in shown)
    model = scripted_model(*[""] * replayed, "```bash\npwd; cat core.py\n```", DONE)
    state = bench.take_over(model, view)
    first = state["messages"][1:]
    assert [(m.type, m.content) for m in first[: len(shown)]] == [(m.type, m.content) for m in shown]
    assert isinstance(first[len(shown)], AIMessage)
    assert model.seen[0] == state["messages"][: len(shown) + 1]
    assert shown[-1].text.endswith(PROMPT)
    seen = parse_events(state)[1].text
    assert "return n * 3" in seen
    assert "/pkg\n" in seen
    assert (state["record"], state["view"]) == (record.id, view)
    assert parse_events(state)[0].index == 0


def test_a_takeover_knows_earlier_differences(bench: RunHarness) -> None:
    first = bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))
    state = bench.take_over(scripted_model("```bash\nls\n```", DONE))
    assert parse_events(state)[1].tree == parse_events(first)[1].tree


def test_incomplete_records_are_refused(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))
    directory = bench.store.directory("run.first_source_edit")
    path = directory / RECORD_FILE
    whole = path.read_text()
    path.write_text(whole.replace("n * 3", "n * 4"))
    with pytest.raises(RecordError, match="does not match its digest"):
        bench.take_over(scripted_model(DONE))
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(RecordError, match="damaged, or not JSON"):
        bench.take_over(scripted_model(DONE))
    path.write_text(whole)
    with pytest.raises(RecordError, match="record not found"):
        bench.take_over(scripted_model(DONE), record="run.nothing")
    with pytest.raises(ValueError, match="unknown view 'all'"):
        bench.take_over(scripted_model(DONE), "all")
    archive = directory / bench.store.load("run.first_source_edit").snapshot.location
    archive.write_bytes(b"")  # the home's own copy is the same file
    with pytest.raises(SnapshotCorruptError):
        bench.take_over(scripted_model(DONE))
