"""Minimal recordings of every format and the events that the readers produce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, messages_to_dict

from langgraph_takeover.handoff.agents.session_files import AGENTS
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.points.annotations import annotate_steps
from langgraph_takeover.handoff.readers import FORMATS, TraceError, parse_trace, read_traces
from langgraph_takeover.handoff.recordings.tool_calls import normalize_call
from langgraph_takeover.handoff.trace.events import UNREADABLE, Trace, action_indices

from ...random_examples import examples

SHARED = Path(__file__).parents[4] / "shared" / "trajectories"


def one(tmp_path: Path, data: Any, name: str = "t.json", format_name: str = "auto") -> Trace:
    """The only trace of a file with this content."""
    path = tmp_path / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    (trace,) = read_traces(path, format_name)
    assert isinstance(trace, Trace)
    return trace


def kinds(trace: Trace) -> list[tuple[str, str]]:
    return [(event.kind, event.tool) for event in trace.events]


def v1_observation(code: int, output: str) -> dict[str, str]:
    return {"role": "user", "content": f"<returncode>{code}</returncode>\n<output>\n{output}\n</output>"}


def test_mini_v1(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
    data = {
        "instance_id": "proj__proj-1",
        "trajectory_format": "mini-swe-agent-1",
        "info": {"config": {"environment": {"cwd": "/testbed"}, "model": {"model_name": "m"}}},
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "the task"},
            {
                "role": "assistant",
                "content": "THOUGHT: look\n\n```bash\nls\n```",
                "extra": {"response": {"usage": usage}},
            },
            v1_observation(0, "pkg\nsetup.py"),
            {"role": "assistant", "content": "```bash\na\n```\nand\n```bash\nb\n```"},
            {"role": "user", "content": "Please always provide EXACTLY ONE action"},
            {"role": "assistant", "content": "```bash\nsleep 99\n```"},
            {
                "role": "user",
                "content": "The last command <command>sleep 99</command> timed out and has been killed.",
            },
            {
                "role": "assistant",
                "content": "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff\n```",
            },
            {"role": "user", "content": "diff --git a/x b/x"},
        ],
    }
    trace = one(tmp_path, data)
    assert (trace.id, trace.format, trace.task, trace.model) == (
        "proj__proj-1",
        "mini-swe-agent-v1",
        "the task",
        "m",
    )
    assert [event.tool for event in trace.events[::2]] == ["shell", UNREADABLE, "shell", "finish"]
    assert trace.events[0].usage is not None
    assert trace.events[0].usage.cached_tokens == 40
    assert (trace.events[1].exit_code, trace.events[3].refused, trace.events[5].timed_out) == (0, True, True)
    assert action_indices(trace.events) == {0: 0, 1: 0, 4: 1, 5: 1, 6: 2, 7: 2}
    assert not trace.keeps_shell


def test_mini_v2_with_parallel_calls(tmp_path: Path) -> None:
    def call(number: int, command: str) -> dict[str, Any]:
        return {"command": command, "tool_call_id": f"c{number}"}

    data = {
        "trajectory_format": "mini-swe-agent-1.1",
        "messages": [
            {"role": "user", "content": "task"},
            {
                "role": "assistant",
                "content": "two",
                "extra": {
                    "actions": [call(1, "false"), call(2, "pytest -q")],
                    "response": {"usage": {"prompt_tokens": 5, "completion_tokens": 6}},
                },
            },
            {
                "role": "tool",
                "tool_call_id": "c2",
                "content": "x",
                "extra": {"raw_output": "1 passed in 0.1s", "returncode": 0},
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": "y",
                "extra": {"raw_output": "", "returncode": 1},
            },
            {
                "role": "user",
                "content": "No tool calls found",
                "extra": {"interrupt_type": "FormatError"},
            },
            {"role": "assistant", "content": None, "extra": {"actions": [call(3, "sleep 9")]}},
            {
                "role": "tool",
                "tool_call_id": "c3",
                "content": "z",
                "extra": {
                    "raw_output": "",
                    "returncode": -1,
                    "exception_info": "Command 'sleep 9' timed out after 5 seconds",
                },
            },
            {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}},
        ],
    }
    trace = one(tmp_path, data)
    observations = trace.events[1::2]
    assert trace.format == "mini-swe-agent-v2"
    assert [event.exit_code for event in observations] == [1, 0, None, None]
    assert [event.timed_out for event in observations] == [False, False, False, True]
    assert [event.usage is not None for event in trace.events[::2]] == [True, False, False, False]


@pytest.mark.parametrize("textual", [True, False])
def test_mini_v2_variants(tmp_path: Path, textual: bool) -> None:
    if textual:
        messages = [
            {"role": "assistant", "content": "t\n\n```mswea_bash_command\nls\n```"},
            {"role": "user", "content": "<returncode>0</returncode>\n<output>\na</output>"},
        ]
    else:
        output = [{"type": "message", "content": [{"type": "output_text", "text": "t"}]}]
        actions = [{"command": "ls", "tool_call_id": "c"}]
        messages = [
            {"object": "response", "output": output, "extra": {"actions": actions}},
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": "a",
                "extra": {"raw_output": "a", "returncode": 0},
            },
        ]
    trace = one(tmp_path, messages if textual else {"messages": messages})
    assert trace.format == "mini-swe-agent-v2"
    assert [(e.kind, e.exit_code) for e in trace.events] == [("action", None), ("observation", 0)]


def swe(action: str, observation: str, **more: Any) -> dict[str, Any]:
    state = {"working_dir": "/repo", "open_file": "n/a"}
    return {
        "action": action,
        "observation": observation,
        "response": "r",
        "thought": "t",
        "state": state,
        **more,
    }


def test_swe_agent_with_windows(tmp_path: Path) -> None:
    window = "[File: /repo/pkg/a.py (3 lines total)]\n1:one\n2:two\n3:three\n"
    trace = one(
        tmp_path,
        {
            "history": [{"role": "user", "content": "task", "message_type": "observation"}],
            "trajectory": [
                swe("open pkg/a.py", window),
                swe(
                    "edit 2:2\n  two(\nend_of_edit",
                    "Your proposed edit has introduced new syntax error(s).",
                ),
                swe("edit 2:2\nTWO\nend_of_edit", window.replace("two", "TWO") + "File updated."),
                swe("python pkg/a.py", "nothing"),
                swe("submit", "diff"),
                swe("", "Exited (autosubmitted)"),
            ],
        },
    )
    assert trace.format == "swe-agent-0.x"
    assert trace.workspace == "/repo"
    assert [event.refused for event in trace.events[1::2]] == [False, True, False, False, False, True]
    assert [change.path for event in trace.events for change in event.changes] == ["pkg/a.py"]
    assert max(action_indices(trace.events).values()) == 4
    (point,) = detectors.list_points(trace.events, trace.base_directories, trace.workspace)
    assert (point.kind, point.event_index) == ("first_source_edit", 5)


@pytest.mark.parametrize(
    ("observation", "is_edit"),
    [
        (
            "[File: /repo/pkg/a.py (2 lines total)]\n1:one\n2:TWO\nFile updated. Please review the changes",
            True,
        ),
        ("Text replaced. Please review the changes", True),
        ("/bin/bash: line 1: syntax error near unexpected token `('\n/bin/bash: line 1: `edit 2:2'", False),
        ("bash: -c: line 2: unexpected EOF while looking for matching `\"'", False),
        ("bash: edit: command not found", False),
        ("\nCOMMAND FAILED TO EXECUTE. RESTARTING PROCESS.", False),
        ("COMMAND FAILED TO EXECUTE. THE SHELL WAS RESTARTED", False),
        ("\nEXECUTION TIMED OUT", False),
        (
            "Your proposed edit has introduced new syntax error(s).\n[File: /repo/pkg/a.py (2 lines total)]",
            False,
        ),
        ("", False),
    ],
)
def test_a_swe_agent_edit_counts_only_if_the_observation_shows_it(
    tmp_path: Path, observation: str, is_edit: bool
) -> None:
    window = "[File: /repo/pkg/a.py (2 lines total)]\n1:one\n2:two"
    steps = [
        swe("open pkg/a.py", window),
        swe("edit 2:2\nTWO\nend_of_edit", observation),
        swe("python pkg/a.py", "x"),
    ]
    trace = one(tmp_path, {"trajectory": steps})
    assert [change.path for event in trace.events for change in event.changes] == ["pkg/a.py"] * is_edit
    assert trace.events[3].refused is not is_edit


def test_swe_agent_with_str_replace(tmp_path: Path) -> None:
    def replace(old: str, new: str) -> str:
        return f"str_replace_editor str_replace /repo/pkg/a.py --old_str '{old}' --new_str '{new}'"

    trace = one(
        tmp_path,
        {
            "replay_config": "{}",
            "trajectory": [
                swe(
                    replace("a", "b"),
                    "No replacement was performed, old_str did not appear",
                    execution_time=1,
                ),
                swe(replace("c", "d"), "The file /repo/pkg/a.py has been edited."),
                swe(replace("d", "c"), "The file /repo/pkg/a.py has been edited."),
                swe("cd pkg && pytest -q", "1 failed in 0.1s"),
                swe(
                    "str_replace_editor create /repo/repro.py --file_text 'x = 1\n'",
                    "File created successfully at: /repo/repro.py",
                ),
                swe("python repro.py", "Traceback (most recent call last):\nValueError: x"),
            ],
        },
    )
    assert trace.format == "swe-agent-1.x"
    steps = annotate_steps(trace)
    assert [step.label for step in steps] == [
        "refused",
        "source edit",
        "change",
        "test",
        "new file",
        "command",
    ]
    # The shell is still in pkg/, which does not contain the written repro.py.
    assert trace.events[-1].cwd == "pkg"


def oh0(number: int, action: str, **args: Any) -> dict[str, Any]:
    return {"id": number, "action": action, "source": "agent", "args": args}


def oh0_observation(cause: int, kind: str, content: str, **metadata: Any) -> dict[str, Any]:
    return {
        "id": cause + 1,
        "cause": cause,
        "observation": kind,
        "content": content,
        "extras": {"metadata": metadata},
    }


def test_openhands_v0(tmp_path: Path) -> None:
    history = [
        {"id": 0, "action": "message", "source": "user", "args": {"content": "task"}},
        oh0(1, "think", thought="hm"),
        oh0(3, "edit", command="str_replace", path="/workspace/p/pkg/a.py", old_str="x", new_str="y"),
        oh0_observation(3, "edit", "ERROR:\nNo replacement was performed."),
        oh0(5, "edit", command="str_replace", path="/workspace/p/pkg/a.py", old_str="x", new_str="z"),
        oh0_observation(5, "edit", "The file /workspace/p/pkg/a.py has been edited."),
        oh0(7, "run", command="pytest -q"),
        oh0_observation(
            7,
            "run",
            "..",
            exit_code=-1,
            working_dir="/workspace/p",
            suffix="[The command has no new output after 30 seconds. …]",
        ),
        oh0(9, "run", command="ls"),
        oh0_observation(
            9,
            "run",
            "",
            exit_code=-1,
            suffix='[Your command "ls" is NOT executed. The previous command is still running]',
        ),
        oh0(11, "run", command="", is_input=True),
        oh0_observation(11, "run", "2 passed in 40.1s", exit_code=0),
        oh0(13, "finish", final_thought="done"),
    ]
    line = {
        "instance_id": "p-1",
        "instruction": "<uploaded_files>\n/workspace/p\n</uploaded_files>",
        "history": history,
    }
    trace = one(tmp_path, json.dumps(line), "output.jsonl")
    assert (trace.id, trace.format, trace.workspace) == ("p-1", "openhands-v0", "/workspace/p")
    steps = annotate_steps(trace)
    assert [(s.action_index, s.label) for s in steps] == [
        (0, "refused"),
        (1, "source edit"),
        (2, "test"),
        (3, "refused"),
        (4, "test"),
        (5, "finish"),
    ]
    assert [p.kind for p in steps[4].points] == ["first_validation"]
    assert steps[4].validation is not None
    assert steps[4].validation.outcome == "passed"


def test_openhands_v0_of_2024(tmp_path: Path) -> None:
    code = "edit_file_by_replace('/workspace/a/app.js', to_replace='x', new_content='y')"
    pairs = [
        [{"action": "run", "args": {"command": "ls", "thought": ""}}, {"observation": "run", "content": "a"}],
        [
            {"action": "run_ipython", "args": {"code": code}},
            {
                "observation": "run_ipython",
                "content": "[File: /workspace/a/app.js (3 lines total after edit)]",
            },
        ],
    ]
    flat = [part for pair in pairs for part in pair]
    for history in (pairs, flat):
        trace = one(tmp_path, {"history": history, "instruction": "repository in /workspace"})
        assert kinds(trace)[2:] == [("action", "editor"), ("observation", "editor")]
        assert [c.path for e in trace.events for c in e.changes] == ["a/app.js"]


def test_openhands_v1_with_file_contents(tmp_path: Path) -> None:
    def action(number: int, tool: str, **fields: Any) -> dict[str, Any]:
        return {
            "kind": "ActionEvent",
            "id": f"a{number}",
            "tool_name": tool,
            "tool_call_id": f"t{number}",
            "thought": [{"type": "text", "text": "why"}],
            "action": fields,
        }

    def observation(number: int, **fields: Any) -> dict[str, Any]:
        return {"kind": "ObservationEvent", "action_id": f"a{number}", "observation": fields}

    text = [{"type": "text", "text": "shown"}]
    events = [
        action(1, "terminal", command="ls"),
        observation(1, content=text, exit_code=0, metadata={"exit_code": 0, "working_dir": "/workspace/p"}),
        action(
            2, "file_editor", command="str_replace", path="/workspace/p/src/a.py", old_str="x", new_str="y"
        ),
        observation(
            2,
            content=text,
            command="str_replace",
            path="/workspace/p/src/a.py",
            old_content="x",
            new_content="y",
        ),
        action(
            3, "file_editor", command="str_replace", path="/workspace/p/src/a.py", old_str="q", new_str="y"
        ),
        observation(3, content=text, is_error=True),
        action(4, "terminal", command="a\nb"),
        observation(
            4, content=[{"type": "text", "text": "Cannot execute multiple commands at once."}], is_error=True
        ),
        action(5, "think", thought="hm"),
        action(6, "terminal", command="make"),
    ]
    lines = "\n".join(json.dumps(event) for event in events)
    trace = one(tmp_path, lines, "events.jsonl")
    assert trace.format == "openhands-v1"
    assert [e.refused for e in trace.events if e.kind == "observation"] == [False, False, True, True]
    (change,) = [c for e in trace.events for c in e.changes]
    assert (change.path, change.before and change.before[:8]) == ("src/a.py", "2d711642")
    assert trace.events[-1].kind == "action"
    folder = tmp_path / "events"
    folder.mkdir()
    for number, event in enumerate(events):
        (folder / f"event-{number:05}-x.json").write_text(json.dumps(event))
    (of_folder,) = read_traces(folder)
    assert isinstance(of_folder, Trace)
    assert of_folder.events == trace.events


@pytest.mark.parametrize("named", [True, False])
def test_atif_of_another_agent(tmp_path: Path, named: bool) -> None:
    source = {"source_call_id": "1"} if named else {}
    data = {
        "schema_version": "ATIF-v1.6",
        "session_id": "s",
        "agent": {"name": "claude-code", "version": "2", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "task"},
            {
                "step_id": 2,
                "source": "agent",
                "message": [{"type": "text", "text": "edit"}],
                "metrics": {"prompt_tokens": 4, "completion_tokens": 2},
                "tool_calls": [
                    {
                        "tool_call_id": "1",
                        "function_name": "Edit",
                        "arguments": {
                            "file_path": "/testbed/src/a.py",
                            "old_string": "x",
                            "new_string": "y",
                        },
                    }
                ],
                "observation": {"results": [{**source, "content": "The file has been updated."}]},
            },
            {"step_id": 3, "source": "agent", "message": "only a thought"},
        ],
    }
    trace = one(tmp_path, data)
    assert (trace.id, trace.format, trace.model, trace.task) == ("s", "atif", "m", "task")
    assert kinds(trace) == [("action", "editor"), ("observation", "editor"), ("action", "unreadable")]
    assert trace.events[0].usage is not None
    assert [c.path for c in trace.events[1].changes] == ["src/a.py"]
    assert trace.events[2].text == "only a thought"


def test_langchain_serializations(tmp_path: Path) -> None:
    messages = [
        HumanMessage("task"),
        AIMessage(
            "look",
            tool_calls=[{"name": "execute", "args": {"command": "pytest -q"}, "id": "1"}],
            usage_metadata={"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
        ),
        ToolMessage("1 failed in 0.1s\n[Command failed with exit code 1]", tool_call_id="1"),
        AIMessage(
            "",
            tool_calls=[
                {
                    "name": "edit_file",
                    "args": {"file_path": "/app/src/a.py", "old_string": "x", "new_string": "y"},
                    "id": "2",
                }
            ],
        ),
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
    (trace,) = read_traces(path)
    assert isinstance(trace, Trace)
    assert len(trace.events) == 1
    path.write_text(json.dumps(event)[:-9] + "\n" + json.dumps(event) + "\n" + json.dumps(event))
    (trace,) = read_traces(path)
    assert isinstance(trace, Trace)
    assert (len(trace.events), trace.skipped_lines) == (2, 1)


def test_invalid_characters_become_escapes(tmp_path: Path) -> None:
    block = {"role": "assistant", "content": "```bash\nsed -i 's/\ud800/x/' src/a.py\n```"}
    trace = one(
        tmp_path, {"messages": [block, v1_observation(0, "\udcff")], "trajectory_format": "mini-swe-agent-1"}
    )
    trace.model_dump_json().encode()
    assert len(annotate_steps(trace)) == 1


def test_a_format_can_be_required(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "t"}, {"role": "assistant", "content": "```bash\nls\n```"}]
    assert (
        one(tmp_path, {"messages": messages}, format_name="mini-swe-agent-v1").format == "mini-swe-agent-v1"
    )
    with pytest.raises(TraceError, match="format is mini-swe-agent-v1, not atif"):
        one(tmp_path, {"messages": messages}, format_name="atif")


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
