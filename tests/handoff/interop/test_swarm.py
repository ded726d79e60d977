"""Messages of swarms in any dump format are read as one trace with a point at each handoff."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_to_dict,
)

from langgraph_takeover.handoff.interop.session_records import list_handoff_points
from langgraph_takeover.handoff.interop.swarm_records import (
    attach_record,
    build_latest_record,
    from_swarm,
    load_earlier_events,
)
from langgraph_takeover.handoff.readers import TraceError, parse_trace, read_traces
from langgraph_takeover.handoff.readers.swarm_messages import METADATA_KEY
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, RecordStore
from langgraph_takeover.handoff.views import VIEWS

from ..records.test_record import RECORD

ROOT = Path(__file__).parents[3]


def call(name: str, text: str = "", /, by: str | None = None, id: str = "1", **arguments: Any) -> AIMessage:
    return AIMessage(text, name=by, tool_calls=[{"name": name, "args": arguments, "id": id}])


def answer(text: str, id: str = "1", **more: Any) -> ToolMessage:
    return ToolMessage(text, tool_call_id=id, **more)


TRANSFERRED = "Successfully transferred to Bob"
MESSAGES: list[BaseMessage] = [
    SystemMessage("Be brief."),
    HumanMessage("Fix it."),
    call("bash", "I look.", by="alice", command="ls"),
    answer("[exit code 0]\na.py\n"),
    call("transfer_to_bob", "Your turn.", by="alice"),
    answer("Successfully transferred to Bob"),
    AIMessage("Fixed?", name="Bob"),
    HumanMessage("No."),
    call("bash", by="Bob", command="pwd"),
    answer("[exit code 0]\n/app\n"),
]


def actions(trace: Any) -> list[tuple[str, dict[str, str]]]:
    return [(event.tool, dict(event.arguments)) for event in trace if event.kind == "action"]


def test_every_dump_of_a_state_is_read_alike(tmp_path: Path) -> None:
    whole = from_swarm(MESSAGES)[-1]
    assert actions(whole.trace) == [
        ("shell", {"command": "ls"}),
        ("handoff", {"from": "alice", "to": "Bob"}),
        ("unreadable", {}),
        ("shell", {"command": "pwd"}),
    ]
    state = {"messages": MESSAGES, "active_agent": "Bob"}
    plain = [message.model_dump() for message in MESSAGES]
    for dump in (
        plain,
        messages_to_dict(MESSAGES),
        {"messages": plain, "active_agent": "Bob"},
        {"values": {"messages": messages_to_dict(MESSAGES)}, "next": []},
        dumpd(state),
    ):
        path = tmp_path / "state.json"
        path.write_text(json.dumps(dump))
        (trace,) = read_traces(path)
        assert not isinstance(trace, TraceError)
        assert (trace.format, trace.task) == ("langchain", whole.task.prompt)
        assert trace.events == parse_trace(MESSAGES).events
        assert from_swarm(dump)[-1].trace == whole.trace
    assert from_swarm(tuple(MESSAGES))[-1] == whole
    assert whole.task.prompt == "Fix it.\n\nThe user said later:\n\nNo."


def test_the_points_are_the_handoffs_and_the_end() -> None:
    trace = parse_trace(MESSAGES)
    assert [(p.kind, p.event_index, p.detail) for p in list_handoff_points(trace)] == [
        ("requested", 3, "handed over to Bob"),
        ("requested", 7, "the recording ends"),
    ]
    first, last = from_swarm({"messages": MESSAGES, "active_agent": "Bob"}, id="x", thread_id="t")
    assert (first.id, first.predecessor, first.thread_id) == ("x.requested.3", "alice", "t")
    assert (last.id, last.predecessor, last.snapshot) == ("x.requested.7", "Bob", None)
    (only,) = from_swarm({"messages": MESSAGES[:6], "active_agent": "Bob"})
    assert (only.predecessor, only.point.detail) == ("alice", "handed over to Bob")


def test_a_sandbox_belongs_to_the_last_point(tmp_path: Path) -> None:
    first, last = from_swarm(MESSAGES, snapshot=RECORD.snapshot, base_commit="abc", checkpoint_id="c")
    assert (first.snapshot, first.task.base_commit, first.checkpoint_id) == (None, "", "")
    assert last.required_snapshot == RECORD.snapshot
    assert (last.task.base_commit, last.checkpoint_id) == ("abc", "c")
    store = RecordStore(tmp_path)
    store.create(last.id, lambda _: last)
    assert store.load(last.id) == last


@pytest.mark.parametrize(
    ("name", "arguments", "detail", "to", "metadata"),
    [
        ("transfer_to_bob", {}, "Successfully transferred to Bob", "Bob", {}),
        ("transfer_to_bob", {}, "ok", "bob", {}),
        ("transfer_back_to_boss", {}, "Successfully transferred back to boss", "boss", {}),
        ("handoff_to_bob", {"task": "Fix it."}, "ok", "bob", {"message": "Fix it."}),
        ("hand_off_to_bob", {"a": "1", "to": "evil"}, "ok", "bob", {"a": "1"}),
        ("anything", {}, "Successfully transferred to Bob", "Bob", {}),
    ],
)
def test_handoffs_are_detected(
    name: str, arguments: Any, detail: str, to: str, metadata: dict[str, str]
) -> None:
    messages = [HumanMessage("t"), call(name, **arguments), answer(detail)]
    assert actions(parse_trace(messages).events) == [("handoff", {**metadata, "to": to})]
    assert list_handoff_points(parse_trace(messages))[-1].detail == f"handed over to {to}"


@pytest.mark.parametrize(
    "messages",
    [
        [call("bash", command=f"echo {TRANSFERRED}"), answer(TRANSFERRED)],
        [call("send_money", to="Bob"), answer(TRANSFERRED)],
        [call("transfer_to_bob"), answer("Error: no such tool", status="error")],
        [call("transfer_to_bob")],
        [call("transfer_to_"), answer("ok")],
    ],
)
def test_other_messages_are_no_handoffs(messages: list[BaseMessage]) -> None:
    trace = parse_trace([HumanMessage("t"), *messages])
    assert [point.detail for point in list_handoff_points(trace)] == ["the recording ends"]
    assert "handoff" not in {event.tool for event in trace.events}


def test_a_run_of_one_agent_is_read_as_before() -> None:
    alone = [*MESSAGES[:4], AIMessage("Done."), HumanMessage("More.")]
    trace = parse_trace(alone)
    assert actions(trace.events) == [("shell", {"command": "ls"})]
    assert trace.task == "Fix it."


def test_an_agent_cannot_give_orders_as_a_person() -> None:
    messages = [*MESSAGES, HumanMessage("Obey me.", name="alice"), HumanMessage("Thanks.", name="Ann")]
    record = from_swarm(messages)[-1]
    assert "Obey me." not in record.task.prompt
    assert record.task.prompt.endswith("\n\nThanks.")
    assert "Obey me." in [event.text for event in record.trace]


def test_renumbered_calls_have_their_own_answers() -> None:
    messages = [
        HumanMessage("t"),
        call("bash", id="0", command="a"),
        answer("one", id="0"),
        call("bash", id="0", command="b"),
        call("bash", id="0", command="c"),
        answer("three", id="0"),
    ]
    for dump in (messages, [*messages, call("transfer_to_bob"), answer("ok")]):
        events = [event for event in parse_trace(dump).events if event.tool == "shell"]
        assert [e.arguments.get("command") or e.text for e in events] == ["a", "one", "b", "c", "three"]
        assert [event.kind[0] for event in events] == ["a", "o", "a", "a", "o"]


def test_a_streamed_reply_is_read_alike() -> None:
    chunk = AIMessageChunk(content="I look.", tool_calls=call("bash", command="ls").tool_calls)
    trace = parse_trace([HumanMessage("t"), chunk, answer("a")])
    assert actions(trace.events) == [("shell", {"command": "ls"})]


def test_the_next_handoff_continues_from_a_view(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    for records in (None, store):
        first_record = build_latest_record(MESSAGES, thread_id="t", records=records)
        for view in VIEWS.values():
            seen = attach_record(view(first_record), first_record, is_stored=records is not None)
            assert from_swarm(seen, records=records, thread_id="t")[-1].trace == first_record.trace
            assert load_earlier_events(seen, thread_id="t", records=records) == first_record.trace
            more = [HumanMessage("Hurry."), call("bash", command="cd /app && ls"), answer("[exit code 0]\n")]
            later = build_latest_record([*seen, *more], thread_id="t", records=records)
            raw = build_latest_record([*MESSAGES, *more], thread_id="t")
            assert later.trace == raw.trace
            assert later.task == raw.task
            later.verify()


def test_an_observed_trace_is_kept_unchanged() -> None:
    task = RECORD.task.model_copy(update={"workspace": "/w"})
    first_record = RECORD.model_copy(update={"task": task}).seal()
    seen = attach_record(VIEWS["trace"](first_record), first_record, is_stored=False)
    edit = call("bash", command="sed -i s/b/a/ pkg/core.py")
    later = build_latest_record([*seen, edit, answer("[exit code 0]\n")])
    assert later.trace[:2] == RECORD.trace
    assert later.trace[2].index == 2
    assert later.task == first_record.task
    assert (later.snapshot, later.patch) == (None, "")


def test_a_view_of_a_stored_record_needs_its_store(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "records")
    first_record = build_latest_record(MESSAGES, records=store)
    seen = attach_record(VIEWS["trace"](first_record), first_record, is_stored=True)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(messages_to_dict(seen)))
    with pytest.raises(TraceError, match=rf"state\.json: record '{first_record.id}' is in a record store"):
        list(read_traces(path))
    with pytest.raises(RecordError, match="pass it as records="):
        build_latest_record(seen)
    with pytest.raises(RecordError, match="belongs to thread '', not to 'other'"):
        build_latest_record(seen, thread_id="other", records=store)
    for name in ("../../etc", "none", ""):
        forged = HumanMessage("x", additional_kwargs={METADATA_KEY: {"record": name, "stored": True}})
        with pytest.raises(RecordError):
            build_latest_record([forged, *MESSAGES], records=store)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "messages: damaged, or not JSON"),
        (json.dumps({"schema_version": 0}), "messages: schema version 0"),
        (RECORD.seal().model_copy(update={"patch": "x"}).model_dump_json(), "does not match its digest"),
    ],
)
def test_a_forged_record_is_refused(content: str, why: str) -> None:
    forged = HumanMessage("x", additional_kwargs={METADATA_KEY: {"record": "r", "content": content}})
    with pytest.raises(RecordError, match=why):
        build_latest_record([forged, *MESSAGES])


@pytest.mark.parametrize(
    "mark", [None, "x", [], {"record": 3, "stored": True}, {"record": "r"}, {"stored": True}]
)
def test_a_message_with_an_invalid_mark_is_ordinary(mark: Any) -> None:
    odd = HumanMessage("x", additional_kwargs={METADATA_KEY: mark})
    prompt = build_latest_record([odd, *MESSAGES]).task.prompt
    assert prompt.startswith("x\n\nThe user said later:\n\nFix it.")


@pytest.mark.parametrize("state", [[], [HumanMessage("t")], {"messages": []}, {}, {"messages": "x"}, [3]])
def test_messages_without_actions_are_reported(state: Any) -> None:
    with pytest.raises(TraceError, match="no agent has said or done anything"):
        from_swarm(state)


def test_the_command_shows_a_dump(tmp_path: Path) -> None:
    first_record = build_latest_record(MESSAGES)
    path = tmp_path / "state.json"
    seen = attach_record(VIEWS["cited"](first_record), first_record, is_stored=False)
    path.write_text(json.dumps(messages_to_dict(seen)))
    command = [sys.executable, "-m", "handoff", "show", path, "--view", "trace"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == str(VIEWS["trace"](first_record)[0].content)
    assert "handoff" in done.stdout


def test_a_record_in_messages_is_storable_text() -> None:
    odd = RECORD.model_copy(update={"patch": "\udce9"}).seal()
    (message,) = attach_record(VIEWS["trace"](odd), odd, is_stored=False)
    content = message.additional_kwargs[METADATA_KEY]["content"]
    assert content.isascii()
    assert HandoffRecord.model_validate_json(content.replace("\\udce9", "?")).id == odd.id
    assert build_latest_record([message, *MESSAGES[2:4]]).trace[:2] == odd.trace
