"""ATIF documents restore the identical trace and link takeovers to their predecessors."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.trace.atif_documents import SuccessorDocument, build_document
from langgraph_takeover.handoff.trace.events import Continuation, Event, FileRead, HandoffPoint, Trace, Usage
from langgraph_takeover.sandbox.interface import FileChange

from ...random_examples import examples

TEXT = st.text(max_size=20)
TOKENS = st.none() | st.integers(0, 9_999)
EVENTS = st.lists(
    st.builds(
        Event,
        index=st.just(0),
        kind=st.sampled_from(["action", "observation"]),
        tool=st.sampled_from(["shell", "editor", "unreadable", "finish"]),
        text=TEXT,
        exit_code=st.none() | st.integers(-9, 255),
        refused=st.booleans(),
        tree=TEXT,
        seconds=st.floats(0, 99),
    ),
    max_size=8,
)


def number_events(events: list[Event]) -> tuple[Event, ...]:
    """Number the events; actions get arguments and usage, observations get changes and reads."""
    result = []
    for index, event in enumerate(events):
        if event.kind == "action":
            more = {"arguments": {"command": event.text}, "usage": Usage(prompt_tokens=3), "exit_code": None}
        else:
            change = FileChange(path="a.py", before=None, after="0" * 64, after_mode=0o644)
            more = {"changes": (change,), "reads": (FileRead(path="b.py", sha256="1" * 64),), "cwd": "pkg"}
        result.append(event.model_copy(update={"index": index, **more}))
    return tuple(result)


def trace(events: list[Event], **more: object) -> Trace:
    fields = {"id": "t", "format": "takeover", "task": "Do it.", "workspace": "/repo", **more}
    return Trace.model_validate({"events": number_events(events), **fields})


@settings(max_examples=examples(60))
@given(EVENTS)
def test_an_exported_trace_is_restored(tmp_path_factory: object, events: list[Event]) -> None:
    path = tmp_path_factory.mktemp("atif") / "t.json"  # type: ignore[attr-defined]
    original = trace(events, base_directories=("pkg",), keeps_shell=False)
    document = build_document(original)
    path.write_text(json.dumps(document))
    assert list(read_traces(path)) == [original]
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(document["steps"]) + 1))
    for step in document["steps"]:
        ids = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        results = step.get("observation", {"results": []})["results"]
        assert {r["source_call_id"] for r in results if "source_call_id" in r} <= ids


def read(tmp_path: Path, document: dict[str, object]) -> object:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    return next(iter(read_traces(path)))


def run(*commands: str) -> list[Event]:
    return [
        Event(index=0, kind=kind, tool="shell", text=command)
        for command in commands
        for kind in ("action", "observation")
    ]


def test_predecessor_and_successors_reference_each_other() -> None:
    point = HandoffPoint(kind="first_source_edit", event_index=3, detail="edited a.py")
    before = trace(run("ls", "sed", "pytest"))
    first, second = (
        trace(
            run("ls"),
            id=f"t.{view}",
            continues=Continuation(trace="t", record="t.first_source_edit", point=point, view=view),
        )
        for view in ("trace", "summary")
    )
    one = build_document(before, [SuccessorDocument("t.trace.json", first)])
    assert one["continued_trajectory_ref"] == "t.trace.json"
    # The task is step 1, so the second action, which precedes the point, is step 3.
    assert one["extra"]["continued_by"] == [
        {
            "file": "t.trace.json",
            "record": "t.first_source_edit",
            "view": "trace",
            "point": "first_source_edit",
            "after_step_id": 3,
        }
    ]
    both = build_document(before, [SuccessorDocument("a.json", first), SuccessorDocument("b.json", second)])
    assert "continued_trajectory_ref" not in both
    assert [other["file"] for other in both["extra"]["continued_by"]] == ["a.json", "b.json"]
    successor = build_document(first)
    assert (successor["session_id"], successor["trajectory_id"]) == ("t", "t.trace")
    assert successor["extra"]["continues"]["record"] == "t.first_source_edit"


def test_final_metrics_sum_the_events() -> None:
    document = build_document(trace(run("ls", "cat")))
    assert document["final_metrics"] == {
        "total_steps": 3,
        "total_prompt_tokens": 6,
        "extra": {"estimated": False},
    }


def test_tokens_are_metrics_and_their_estimate_is_extra(tmp_path: Path) -> None:
    counted, estimated, unknown = (
        Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=2),
        Usage(prompt_tokens=5, estimated=True),
        Usage(),
    )
    plain = trace(run("ls", "cat", "pwd", "id"))
    events = [
        event.model_copy(update={"usage": usage}) if event.kind == "action" else event
        for event, usage in zip(plain.events, (counted, 0, estimated, 0, unknown, 0, None, 0), strict=True)
    ]
    original = plain.model_copy(update={"events": tuple(events)})
    document = build_document(original)
    assert document["schema_version"] == "ATIF-v1.8"
    assert [step.get("metrics") for step in document["steps"][1:]] == [
        {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1, "extra": {"estimated": False}},
        {"prompt_tokens": 5, "extra": {"estimated": True}},
        {"extra": {"estimated": False}},
        None,
    ]
    assert document["final_metrics"]["extra"] == {"estimated": True}
    assert read(tmp_path, document) == original

    # Documents of ATIF-v1.7 had the field beside the counts.
    document["schema_version"] = "ATIF-v1.7"
    for step in document["steps"]:
        if "metrics" in step:
            step["metrics"] = {**step["metrics"], **step["metrics"].pop("extra")}
    assert "estimated" in document["steps"][1]["metrics"]
    assert read(tmp_path, document) == original


def test_file_names_that_are_not_utf8_are_restored(tmp_path: Path) -> None:
    action, observation = trace(run("touch caf\udce9; echo '\\udce9 \\u005c'")).events
    change = FileChange(path="caf\udce9", before=None, after="0" * 64)
    original = trace([]).model_copy(
        update={
            "events": (
                action,
                observation.model_copy(update={"changes": (change,), "text": "\\udce9\udce9"}),
            ),
            "workspace": "/repo\udcff",
        }
    )
    document = build_document(original)
    json.dumps(document, ensure_ascii=False).encode()
    assert document["steps"][1]["extra"]["takeover_events"][1]["changes"][0]["path"] == "caf\\udce9"
    assert read(tmp_path, document) == original


def test_an_imported_trace_keeps_the_name_of_its_agent(tmp_path: Path) -> None:
    original = trace(run("ls"), format="atif", agent="other-agent", agent_version="2.1", model="m")
    document = build_document(original)
    assert document["agent"] == {"name": "other-agent", "version": "2.1", "model_name": "m"}
    assert read(tmp_path, document) == original
    assert build_document(trace([], format="swe-agent-1.x"))["agent"]["name"] == "swe-agent-1.x"
