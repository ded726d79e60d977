"""Minimal recordings of every format and the events that the readers produce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage, messages_to_dict
from langchain_core.messages.ai import UsageMetadata

from langgraph_takeover.handoff.agents.session_files import AGENTS
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.annotations import annotate_steps
from langgraph_takeover.handoff.readers import FORMATS, TraceError, parse_trace, read_traces
from langgraph_takeover.handoff.recordings.tool_calls import normalize_call
from langgraph_takeover.handoff.trace.events import UNREADABLE, Trace, action_indices

from ...random_examples import examples
from .session_rows import (
    BASH,
    Row,
    atif_call,
    atif_document,
    list_edits,
    list_observations,
    mini_result,
    mini_run,
    read_one,
    text_part,
)

SHARED = Path(__file__).parents[4] / "shared" / "trajectories"


def one(tmp_path: Path, data: Any, name: str = "t.json", **options: str) -> Trace:
    """The only trace of a file with this content."""
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return read_one(path, **options)


def kinds(trace: Trace) -> list[tuple[str, str]]:
    return [(event.kind, event.tool) for event in trace.events]


def reply(content: Any, **extra: Any) -> Row:
    return {"role": "assistant", "content": content, **({"extra": extra} if extra else {})}


def tool_result(call_id: str, output: str, code: int, content: str = "x", **extra: Any) -> Row:
    shown = {"raw_output": output, "returncode": code, **extra}
    return {"role": "tool", "tool_call_id": call_id, "content": content, "extra": shown}


def test_mini_v1(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
    killed = "The last command <command>sleep 99</command> timed out and has been killed."
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "the task"},
        reply("THOUGHT: look\n\n```bash\nls\n```", response={"usage": usage}),
        mini_result(0, "pkg\nsetup.py"),
        reply("```bash\na\n```\nand\n```bash\nb\n```"),
        {"role": "user", "content": "Please always provide EXACTLY ONE action"},
        reply(BASH.format("sleep 99")),
        {"role": "user", "content": killed},
        reply(BASH.format("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff")),
        {"role": "user", "content": "diff --git a/x b/x"},
    ]
    config = {"environment": {"cwd": "/testbed"}, "model": {"model_name": "m"}}
    run = {"trajectory_format": "mini-swe-agent-1", "info": {"config": config}, "messages": messages}
    trace = one(tmp_path, {"instance_id": "proj__proj-1", **run})
    assert (trace.id, trace.format, trace.task) == ("proj__proj-1", "mini-swe-agent-v1", "the task")
    assert trace.model == "m"
    assert [event.tool for event in trace.events[::2]] == ["shell", UNREADABLE, "shell", "finish"]
    assert trace.events[0].usage is not None
    assert trace.events[0].usage.cached_tokens == 40
    assert (trace.events[1].exit_code, trace.events[3].refused, trace.events[5].timed_out) == (0, True, True)
    assert action_indices(trace.events) == {0: 0, 1: 0, 4: 1, 5: 1, 6: 2, 7: 2}
    assert not trace.keeps_shell


def test_mini_v2_with_parallel_calls(tmp_path: Path) -> None:
    def call(number: int, command: str) -> Row:
        return {"command": command, "tool_call_id": f"c{number}"}

    usage = {"prompt_tokens": 5, "completion_tokens": 6}
    messages = [
        {"role": "user", "content": "task"},
        reply("two", actions=[call(1, "false"), call(2, "pytest -q")], response={"usage": usage}),
        tool_result("c2", "1 passed in 0.1s", 0),
        tool_result("c1", "", 1),
        {"role": "user", "content": "No tool calls found", "extra": {"interrupt_type": "FormatError"}},
        reply(None, actions=[call(3, "sleep 9")]),
        tool_result("c3", "", -1, exception_info="Command 'sleep 9' timed out after 5 seconds"),
        {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}},
    ]
    trace = one(tmp_path, {"trajectory_format": "mini-swe-agent-1.1", "messages": messages})
    observations = trace.events[1::2]
    assert trace.format == "mini-swe-agent-v2"
    assert [event.exit_code for event in observations] == [1, 0, None, None]
    assert [event.timed_out for event in observations] == [False, False, False, True]
    assert [event.usage is not None for event in trace.events[::2]] == [True, False, False, False]


@pytest.mark.parametrize("textual", [True, False])
def test_mini_v2_variants(tmp_path: Path, textual: bool) -> None:
    if textual:
        result = "<returncode>0</returncode>\n<output>\na</output>"
        messages = [reply("t\n\n```mswea_bash_command\nls\n```"), {"role": "user", "content": result}]
    else:
        output = [{"type": "message", "content": [{"type": "output_text", "text": "t"}]}]
        actions = [{"command": "ls", "tool_call_id": "c"}]
        extra = {"raw_output": "a", "returncode": 0}
        messages = [
            {"object": "response", "output": output, "extra": {"actions": actions}},
            {"type": "function_call_output", "call_id": "c", "output": "a", "extra": extra},
        ]
    trace = one(tmp_path, messages if textual else {"messages": messages})
    assert trace.format == "mini-swe-agent-v2"
    assert [(e.kind, e.exit_code) for e in trace.events] == [("action", None), ("observation", 0)]


def swe(action: str, observation: str, **more: Any) -> Row:
    step = {"action": action, "observation": observation, "response": "r", "thought": "t"}
    return {**step, "state": {"working_dir": "/repo", "open_file": "n/a"}, **more}


def test_swe_agent_with_windows(tmp_path: Path) -> None:
    window = "[File: /repo/pkg/a.py (3 lines total)]\n1:one\n2:two\n3:three\n"
    steps = [
        swe("open pkg/a.py", window),
        swe("edit 2:2\n  two(\nend_of_edit", "Your proposed edit has introduced new syntax error(s)."),
        swe("edit 2:2\nTWO\nend_of_edit", window.replace("two", "TWO") + "File updated."),
        swe("python pkg/a.py", "nothing"),
        swe("submit", "diff"),
        swe("", "Exited (autosubmitted)"),
    ]
    task = {"role": "user", "content": "task", "message_type": "observation"}
    trace = one(tmp_path, {"history": [task], "trajectory": steps})
    assert trace.format == "swe-agent-0.x"
    assert trace.workspace == "/repo"
    assert [event.refused for event in trace.events[1::2]] == [False, True, False, False, False, True]
    assert list_edits(trace) == [["pkg/a.py"]]
    assert max(action_indices(trace.events).values()) == 4
    (point,) = detectors.list_points(trace.events, trace.base_directories, trace.workspace)
    assert (point.kind, point.event_index) == ("first_source_edit", 5)


WINDOW = "[File: /repo/pkg/a.py (2 lines total)]"


@pytest.mark.parametrize(
    ("observation", "is_edit"),
    [
        (f"{WINDOW}\n1:one\n2:TWO\nFile updated. Please review the changes", True),
        ("Text replaced. Please review the changes", True),
        ("/bin/bash: line 1: syntax error near unexpected token `('\n/bin/bash: line 1: `edit 2:2'", False),
        ("bash: -c: line 2: unexpected EOF while looking for matching `\"'", False),
        ("bash: edit: command not found", False),
        ("\nCOMMAND FAILED TO EXECUTE. RESTARTING PROCESS.", False),
        ("COMMAND FAILED TO EXECUTE. THE SHELL WAS RESTARTED", False),
        ("\nEXECUTION TIMED OUT", False),
        (f"Your proposed edit has introduced new syntax error(s).\n{WINDOW}", False),
        ("", False),
    ],
)
def test_a_swe_agent_edit_counts_only_if_the_observation_shows_it(
    tmp_path: Path, observation: str, is_edit: bool
) -> None:
    steps = [
        swe("open pkg/a.py", f"{WINDOW}\n1:one\n2:two"),
        swe("edit 2:2\nTWO\nend_of_edit", observation),
        swe("python pkg/a.py", "x"),
    ]
    trace = one(tmp_path, {"trajectory": steps})
    assert list_edits(trace) == [["pkg/a.py"]] * is_edit
    assert trace.events[3].refused is not is_edit


def test_swe_agent_with_str_replace(tmp_path: Path) -> None:
    def replace(old: str, new: str) -> str:
        return f"str_replace_editor str_replace /repo/pkg/a.py --old_str '{old}' --new_str '{new}'"

    edited = "The file /repo/pkg/a.py has been edited."
    create = "str_replace_editor create /repo/repro.py --file_text 'x = 1\n'"
    run = [
        swe(replace("a", "b"), "No replacement was performed, old_str did not appear", execution_time=1),
        swe(replace("c", "d"), edited),
        swe(replace("d", "c"), edited),
        swe("cd pkg && pytest -q", "1 failed in 0.1s"),
        swe(create, "File created successfully at: /repo/repro.py"),
        swe("python repro.py", "Traceback (most recent call last):\nValueError: x"),
    ]
    trace = one(tmp_path, {"replay_config": "{}", "trajectory": run})
    assert trace.format == "swe-agent-1.x"
    labels = [step.label for step in annotate_steps(trace)]
    assert labels == ["refused", "source edit", "change", "test", "new file", "command"]
    # The shell is still in pkg/, which does not contain the written repro.py.
    assert trace.events[-1].cwd == "pkg"


def oh0(number: int, action: str, **args: Any) -> Row:
    return {"id": number, "action": action, "source": "agent", "args": args}


def oh0_observation(cause: int, kind: str, content: str, **metadata: Any) -> Row:
    observed = {"id": cause + 1, "cause": cause, "observation": kind, "content": content}
    return {**observed, "extras": {"metadata": metadata}}


def test_openhands_v0(tmp_path: Path) -> None:
    silent = "[The command has no new output after 30 seconds. …]"
    refused = '[Your command "ls" is NOT executed. The previous command is still running]'
    path = "/workspace/p/pkg/a.py"
    history = [
        {"id": 0, "action": "message", "source": "user", "args": {"content": "task"}},
        oh0(1, "think", thought="hm"),
        oh0(3, "edit", command="str_replace", path=path, old_str="x", new_str="y"),
        oh0_observation(3, "edit", "ERROR:\nNo replacement was performed."),
        oh0(5, "edit", command="str_replace", path=path, old_str="x", new_str="z"),
        oh0_observation(5, "edit", f"The file {path} has been edited."),
        oh0(7, "run", command="pytest -q"),
        oh0_observation(7, "run", "..", exit_code=-1, working_dir="/workspace/p", suffix=silent),
        oh0(9, "run", command="ls"),
        oh0_observation(9, "run", "", exit_code=-1, suffix=refused),
        oh0(11, "run", command="", is_input=True),
        oh0_observation(11, "run", "2 passed in 40.1s", exit_code=0),
        oh0(13, "finish", final_thought="done"),
    ]
    task = "<uploaded_files>\n/workspace/p\n</uploaded_files>"
    line = {"instance_id": "p-1", "instruction": task, "history": history}
    trace = one(tmp_path, json.dumps(line), "output.jsonl")
    assert (trace.id, trace.format, trace.workspace) == ("p-1", "openhands-v0", "/workspace/p")
    steps = annotate_steps(trace)
    labels = ["refused", "source edit", "test", "refused", "test", "finish"]
    assert [(step.action_index, step.label) for step in steps] == [*enumerate(labels)]
    assert [p.kind for p in steps[4].points] == ["first_validation"]
    assert steps[4].validation is not None
    assert steps[4].validation.outcome == "passed"


def test_openhands_v0_of_2024(tmp_path: Path) -> None:
    code = "edit_file_by_replace('/workspace/a/app.js', to_replace='x', new_content='y')"
    shown = "[File: /workspace/a/app.js (3 lines total after edit)]"
    pairs = [
        [{"action": "run", "args": {"command": "ls", "thought": ""}}, {"observation": "run", "content": "a"}],
        [{"action": "run_ipython", "args": {"code": code}}, {"observation": "run_ipython", "content": shown}],
    ]
    flat = [part for pair in pairs for part in pair]
    for history in (pairs, flat):
        trace = one(tmp_path, {"history": history, "instruction": "repository in /workspace"})
        assert kinds(trace)[2:] == [("action", "editor"), ("observation", "editor")]
        assert list_edits(trace) == [["a/app.js"]]


def test_openhands_v1_with_file_contents(tmp_path: Path) -> None:
    def action(number: int, tool: str, **fields: Any) -> Row:
        event = {"kind": "ActionEvent", "id": f"a{number}", "tool_call_id": f"t{number}"}
        return {**event, "tool_name": tool, "thought": [text_part("why")], "action": fields}

    def observation(number: int, text: str = "shown", **fields: Any) -> Row:
        seen = {"content": [text_part(text)], **fields}
        return {"kind": "ObservationEvent", "action_id": f"a{number}", "observation": seen}

    edit = {"command": "str_replace", "path": "/workspace/p/src/a.py"}
    events = [
        action(1, "terminal", command="ls"),
        observation(1, exit_code=0, metadata={"exit_code": 0, "working_dir": "/workspace/p"}),
        action(2, "file_editor", **edit, old_str="x", new_str="y"),
        observation(2, **edit, old_content="x", new_content="y"),
        action(3, "file_editor", **edit, old_str="q", new_str="y"),
        observation(3, is_error=True),
        action(4, "terminal", command="a\nb"),
        observation(4, "Cannot execute multiple commands at once.", is_error=True),
        action(5, "think", thought="hm"),
        action(6, "terminal", command="make"),
    ]
    lines = "\n".join(json.dumps(event) for event in events)
    trace = one(tmp_path, lines, "events.jsonl")
    assert trace.format == "openhands-v1"
    assert [event.refused for event in list_observations(trace)] == [False, False, True, True]
    (change,) = [c for e in trace.events for c in e.changes]
    assert (change.path, change.before and change.before[:8]) == ("src/a.py", "2d711642")
    assert trace.events[-1].kind == "action"
    folder = tmp_path / "events"
    folder.mkdir()
    for number, event in enumerate(events):
        (folder / f"event-{number:05}-x.json").write_text(json.dumps(event))
    assert read_one(folder).events == trace.events


@pytest.mark.parametrize("named", [True, False])
def test_atif_of_another_agent(tmp_path: Path, named: bool) -> None:
    result = {"source_call_id": "1"} if named else {}
    edit = {"file_path": "/testbed/src/a.py", "old_string": "x", "new_string": "y"}
    step = {
        "message": [text_part("edit")],
        "metrics": {"prompt_tokens": 4, "completion_tokens": 2},
        "tool_calls": [atif_call("Edit", "1", **edit)],
        "observation": {"results": [{**result, "content": "The file has been updated."}]},
    }
    steps = (
        {"source": "user", "message": "task"},
        {"source": "agent", **step},
        {"source": "agent", "message": "only a thought"},
    )
    numbered = [{"step_id": number, **each} for number, each in enumerate(steps, 1)]
    agent = {"name": "claude-code", "version": "2", "model_name": "m"}
    data = {**atif_document(*numbered), "session_id": "s", "agent": agent}
    trace = one(tmp_path, data)
    assert (trace.id, trace.format, trace.model, trace.task) == ("s", "atif", "m", "task")
    assert kinds(trace) == [("action", "editor"), ("observation", "editor"), ("action", "unreadable")]
    assert trace.events[0].usage is not None
    assert list_edits(trace) == [["src/a.py"]]
    assert trace.events[2].text == "only a thought"


def test_langchain_serializations(tmp_path: Path) -> None:
    edit = {"file_path": "/app/src/a.py", "old_string": "x", "new_string": "y"}
    usage = UsageMetadata(input_tokens=3, output_tokens=4, total_tokens=7)
    run = ToolCall(name="execute", args={"command": "pytest -q"}, id="1")
    messages = [
        HumanMessage("task"),
        AIMessage("look", tool_calls=[run], usage_metadata=usage),
        ToolMessage("1 failed in 0.1s\n[Command failed with exit code 1]", tool_call_id="1"),
        AIMessage("", tool_calls=[ToolCall(name="edit_file", args=edit, id="2")]),
        ToolMessage("Error: String not found in file", tool_call_id="2", status="error"),
    ]
    flat = [message.model_dump() for message in messages]
    for data in (
        flat,
        messages_to_dict(messages),
        {"messages": flat},
        {"values": {"messages": flat}},
        [json.loads(json.dumps(m.to_json(), default=str)) for m in messages],
    ):
        trace = one(tmp_path, data)
        assert trace.format == "langchain"
        assert parse_trace(messages).events == trace.events
        assert [event.exit_code for event in trace.events] == [None, 1, None, None]
        assert trace.events[3].refused


def test_an_unreadable_file_is_one_error_line(tmp_path: Path) -> None:
    for content, message in (
        ("{", "not JSON"),
        ('{"django": true}', "unknown trace format"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON|nested"),
    ):
        path = tmp_path / "x.json"
        path.write_text(content)
        with pytest.raises(TraceError, match=message) as caught:
            list(read_traces(path))
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)


def test_a_broken_line_does_not_affect_other_runs(tmp_path: Path) -> None:
    run = json.dumps({"history": [oh0(1, "run", command="ls"), oh0_observation(1, "run", "a", exit_code=0)]})
    path = tmp_path / "output.jsonl"
    path.write_text(f"{run}\n{{broken\n{run}\n")
    results = list(read_traces(path))
    assert [isinstance(result, Trace) for result in results] == [True, False, True]
    assert "line 2" in str(results[1])


def test_an_incomplete_line_is_skipped_and_counted(tmp_path: Path) -> None:
    event = {"kind": "ActionEvent", "id": "1", "tool_name": "terminal", "action": {"command": "ls"}}
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps(event) + "\n" + json.dumps(event)[:-9])
    assert len(read_one(path).events) == 1
    path.write_text(json.dumps(event)[:-9] + "\n" + json.dumps(event) + "\n" + json.dumps(event))
    trace = read_one(path)
    assert (len(trace.events), trace.skipped_lines) == (2, 1)


def test_invalid_characters_become_escapes(tmp_path: Path) -> None:
    trace = one(tmp_path, mini_run(("sed -i 's/\ud800/x/' src/a.py", 0, "\udcff")))
    trace.model_dump_json().encode()
    assert len(annotate_steps(trace)) == 1


def test_a_format_can_be_required(tmp_path: Path) -> None:
    data = {"messages": [{"role": "user", "content": "t"}, reply(BASH.format("ls"))]}
    assert one(tmp_path, data, format_name="mini-swe-agent-v1").format == "mini-swe-agent-v1"
    with pytest.raises(TraceError, match="format is mini-swe-agent-v1, not atif"):
        one(tmp_path, data, format_name="atif")


@pytest.fixture(scope="module")
def recordings(real_data: Path) -> list[Any]:
    data = []
    for path in sorted((real_data / "trajectories").rglob("*")):
        if path.suffix in (".json", ".traj", ".jsonl") and path.stat().st_size < 120_000:
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            data += [json.loads(line) for line in lines[:2]]
    return data


@pytest.mark.slow
def test_every_shared_recording_is_read(recordings: list[Any]) -> None:
    formats = set()
    for path in sorted(SHARED.rglob("*")):
        if path.is_file() and path.name not in ("README.md", "RESOLVED.json"):
            for trace in read_traces(path):
                assert isinstance(trace, Trace), path
                assert [event.index for event in trace.events] == list(range(len(trace.events)))
                formats.add(trace.format)
    assert formats == set(FORMATS) - {"takeover", "langchain", "mini-swe-agent-v2", *AGENTS}


@settings(max_examples=examples(60))
@given(st.data())
def test_damaged_recordings_never_crash_the_readers(recordings: list[Any], data: st.DataObject) -> None:
    """Fields disappear or change their type: the file is read as far as possible, or rejected in one line."""
    random = data.draw(st.randoms(use_true_random=False))

    def damage(value: Any) -> Any:
        if random.random() < 0.02:
            return random.choice([None, 5, "", [], {}, "x", True, -1, [1], {"a": 1}, [[]], 3.5])
        if isinstance(value, dict):
            return {k: damage(v) for k, v in value.items() if random.random() > 0.01}
        if isinstance(value, list):
            return [damage(v) for v in value if random.random() > 0.01]
        return value

    recording = damage(random.choice(recordings))
    try:
        trace = parse_trace(recording)
    except TraceError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        annotate_steps(trace)


@pytest.mark.slow
def test_a_truncated_run_has_the_points_of_its_events(recordings: list[Any]) -> None:
    """The inference of an action never depends on later events."""
    mini_runs = [r for r in recordings if isinstance(r, dict) and "messages" in r][:12]
    assert mini_runs
    for recording in mini_runs:
        all_points = _points(recording)
        for cut in range(4, len(recording["messages"]), 14):
            points = _points({**recording, "messages": recording["messages"][:cut]})
            expected = [p for p in all_points if p[1] < count_events(recording, cut)]
            assert points == expected


def count_events(recording: Any, cut: int) -> int:
    return len(parse_trace({**recording, "messages": recording["messages"][:cut]}).events)


def _points(recording: Any) -> list[tuple[str, int]]:
    trace = parse_trace(recording)
    points = detectors.list_points(trace.events, trace.base_directories, trace.workspace)
    return [(p.kind, p.event_index) for p in points]


def test_replacements_in_a_list() -> None:
    """A tool that replaces one text or several, as pi's `edit` does."""
    first, second = {"oldText": "a", "newText": "b"}, {"oldText": "c", "newText": ""}
    one = normalize_call("edit", {"path": "a.py", "edits": [first]})
    assert one == ("editor", {"command": "str_replace", "path": "a.py", "old": "a", "new": "b"})
    tool, several = normalize_call("edit", {"path": "a.py", "edits": [first, second]})
    assert (tool, several["command"], json.loads(several["edits"])) == ("editor", "edit", [first, second])
    for edits in ([], [1], "text", {}):
        assert normalize_call("edit", {"path": "a.py", "edits": edits})[1]["path"] == "a.py"


def test_view_has_its_last_line() -> None:
    _, arguments = normalize_call("read", {"path": "a.py", "offset": 2, "limit": 3})
    assert (arguments["start"], arguments["end"]) == ("2", "4")
