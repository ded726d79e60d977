from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langgraph_takeover import open_home, open_run
from langgraph_takeover.evals.models import ModelNameError, parse_model_name
from langgraph_takeover.evals.models.factory import find_first_action
from langgraph_takeover.evals.models.replay import ReplayModel, TrajectoryError, read_trajectory
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.records.record import Notes
from langgraph_takeover.handoff.trace.events import Action, Usage
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.handoff.views.common import Recipient
from langgraph_takeover.nodes.model.actions import parse_action
from langgraph_takeover.nodes.session import session
from langgraph_takeover.nodes.state_events import load_events
from langgraph_takeover.sandbox.interface import SandboxSpec

from ...handoff.readers.session_rows import codex_item, codex_meta
from ..run.measures.test_rediscovery import PREDECESSOR, record


def write_trajectory(tmp_path: Path, *replies: str) -> Path:
    path = tmp_path / "t.traj.json"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    for reply in replies:
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": "<returncode>0</returncode>"})
    path.write_text(json.dumps({"messages": messages}))
    return path


def test_executed_actions_are_replayed_in_order(tmp_path: Path) -> None:
    path = write_trajectory(
        tmp_path,
        "THOUGHT: look\n\n```bash\nls\n```",
        "two\n```bash\na\n```\n```bash\nb\n```",
        "```bash\ncd sub && export A=1\n```",
        "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached\n```",
    )
    model = ReplayModel(turns=read_trajectory(path))
    conversation = [HumanMessage("go")]
    actions = []
    for _ in range(4):
        reply = model.invoke(conversation)
        actions.append(parse_action(reply, "text", offer_handoff=False))
        conversation += [reply, HumanMessage("ok")]
    assert actions[0] == Action("shell", {"command": "ls"})
    assert actions[1] == Action("shell", {"command": "(\ncd sub && export A=1\n)"})
    assert [action.tool for action in actions[2:]] == ["finish", "finish"]


@pytest.mark.parametrize("view", VIEWS)
def test_messages_of_a_view_do_not_count_as_replies(view: str, tmp_path: Path) -> None:
    path = write_trajectory(tmp_path, "```bash\none\n```", "```bash\ntwo\n```", "```bash\nthree\n```")
    model = ReplayModel(turns=read_trajectory(path))
    usage = Usage(prompt_tokens=1, completion_tokens=1)
    usages = {"summary_usage": usage, "structured_usage": usage}
    notes = Notes(model="m", summary="Read a file.", structured={}, **usages)
    conversation = VIEWS[view](record(PREDECESSOR).model_copy(update={"notes": notes}), Recipient())
    commands = []
    for _ in range(3):
        reply = model.invoke(conversation)
        action = parse_action(reply, "text", offer_handoff=False)
        assert isinstance(action, Action)
        commands.append(action.arguments["command"])
        conversation = [*conversation, reply, HumanMessage("ok")]
    assert commands == ["one", "two", "three"]


def test_a_replay_starts_at_the_given_action(tmp_path: Path) -> None:
    path = write_trajectory(tmp_path, "```bash\none\n```", "```bash\ntwo\n```")
    name = parse_model_name(f"replay:{path}@1")
    assert (name.file, name.start) == (path, 1)
    assert parse_model_name(f"replay:{path}").start is None
    reply = ReplayModel(turns=read_trajectory(path), start=1).invoke([HumanMessage("go")])
    assert parse_action(reply, "text", offer_handoff=False) == Action("shell", {"command": "two"})


def test_native_calls_contain_the_same_action(tmp_path: Path) -> None:
    model = ReplayModel(turns=read_trajectory(write_trajectory(tmp_path, "```bash\none\n```")))
    reply = model.bind_tools([]).invoke([HumanMessage("go")])
    assert isinstance(reply, AIMessage)
    assert parse_action(reply, "native", offer_handoff=False) == Action("shell", {"command": "one"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "unknown trace format"),
        ('{"messages": [1]}', "unknown trace format"),
        ('{"messages": [{"role": "assistant", "content": "no block"}]}', "nothing to replay"),
    ],
)
def test_errors_name_invalid_trajectories(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(TrajectoryError, match=message):
        read_trajectory(path)


@pytest.mark.parametrize("name", ["gpt:5", "openai:", "builtin:sage", ":x", ""])
def test_unknown_models_are_refused(name: str) -> None:
    with pytest.raises(ModelNameError, match="use openai:NAME"):
        parse_model_name(name)


@pytest.mark.slow
def test_every_real_trajectory_can_be_read(real_data: Path) -> None:
    files = sorted((real_data / "trajectories" / "mini-swe-agent-v1").glob("*.traj.json"))
    assert len(files) == 60
    assert all(read_trajectory(path)[-1].action.tool in ("finish", "shell") for path in files)


def test_a_replay_resumes_at_the_end_of_the_record_of_its_own_trajectory(tmp_path: Path) -> None:

    path = write_trajectory(tmp_path, "```bash\none\n```")
    (tmp_path / "sub").mkdir()
    taken_over = record(PREDECESSOR).model_copy(update={"predecessor": f"replay:{path}"})
    same = parse_model_name(f"replay:{tmp_path / 'sub' / '..' / path.name}")
    assert find_first_action(same, taken_over) == len(PREDECESSOR) // 2
    assert find_first_action(parse_model_name(f"replay:{path}@2"), taken_over) == 2
    assert find_first_action(parse_model_name("replay:other.json"), taken_over) == 0
    later = taken_over.model_copy(update={"predecessor": f"replay:{path}@3"})
    assert find_first_action(parse_model_name(f"replay:{path}@3"), later) == 3 + len(PREDECESSOR) // 2
    assert find_first_action(same, None) == 0


BASE = "one\ntwo\nthree\n"
EDITED = "one\nTWO\nthree\n"


def swe(*steps: tuple[str, str]) -> dict[str, Any]:
    state = {"working_dir": "/repo", "open_file": "n/a"}
    rows = [{"action": a, "observation": o, "response": a, "state": state} for a, o in steps]
    return {"history": [], "trajectory": rows}


def oh0(number: int, action: str, **args: Any) -> dict[str, Any]:
    return {"id": number, "action": action, "source": "agent", "args": args}


def oh0_result(number: int) -> dict[str, Any]:
    extras = {"exit_code": 0}
    return {"id": number, "cause": number - 1, "observation": "run", "content": "", "extras": extras}


def oh1(number: str, tool: str, thought: str = "", **action: Any) -> dict[str, Any]:
    said = {"thought": [{"type": "text", "text": thought}]} if thought else {}
    return {"kind": "ActionEvent", "id": number, "tool_name": tool, **said, "action": action}


WINDOW = "[File: /repo/pkg/a.py (3 lines total)]\n1:one\n2:two\n3:three"
REPLACE = {"path": "/repo/pkg/a.py", "old_str": "two", "new_str": "TWO"}
SWE_REPLACE = "str_replace_editor str_replace /repo/pkg/a.py --old_str 'two' --new_str 'TWO'"
ACTIONS = [
    {"command": "cd pkg && ls", "tool_call_id": "1"},
    {"command": "sed -i s/two/TWO/ pkg/a.py", "tool_call_id": "2"},
]
CONTENT = {"file_path": "/repo/pkg/a.py", "content": EDITED}
WRITE = {"tool_call_id": "1", "function_name": "write_file", "arguments": CONTENT}
STRINGS = {"file_path": "/repo/pkg/a.py", "old_string": "two", "new_string": "TWO"}
EDIT = {"name": "edit_file", "args": STRINGS, "id": "1"}
RECORDINGS = {
    "mini v2": {
        "messages": [{"role": "assistant", "extra": {"actions": ACTIONS}}],
        "info": {"config": {"environment": {"cwd": "/repo"}}},
    },
    "swe-agent windows": swe(
        ("find_file a.py", "Found 1 matches"),
        ("search_dir two pkg", "Found 1 matches"),
        ("open pkg/a.py", WINDOW),
        ("edit 1:1\n  broken(\nend_of_edit", "Your proposed edit has introduced new syntax error(s)."),
        ("edit 2:2\nTWO\nend_of_edit", WINDOW.replace("two", "TWO") + "\nFile updated."),
        ("submit", "diff"),
    ),
    "swe-agent 1": swe((SWE_REPLACE, "The file /repo/pkg/a.py has been edited.")),
    "openhands v0": {
        "instruction": "<uploaded_files>\n/repo\n</uploaded_files>",
        "history": [
            oh0(1, "run", command="cd /repo/pkg"),
            oh0_result(2),
            oh0(3, "run", command="sed -i s/two/TWO/ a.py"),
            oh0_result(4),
            oh0(5, "run", command="", is_input=True),
            oh0(7, "edit", command="create", path="/repo/pkg/b.py", file_text="b"),
        ],
    },
    "openhands v1": [
        oh1("1", "terminal", command="cd /repo && ls"),
        {"kind": "ActionEvent", "id": "2", "tool_name": "think", "action": {"thought": "```bash\nrm -rf /\n```"}},
        oh1("3", "file_editor", "so: ```bash\nrm -rf pkg\n```", command="str_replace", **REPLACE),
    ],
    "atif": {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "x", "version": "1"},
        "steps": [{"step_id": 1, "source": "agent", "message": "", "tool_calls": [WRITE]}],
    },
    "langchain": [{"type": "ai", "content": "", "tool_calls": [EDIT]}],
}  # fmt: skip


@pytest.mark.cases(3)
@pytest.mark.parametrize("kind", RECORDINGS)
def test_recordings_of_every_format_run_in_a_real_sandbox(kind: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "pkg").mkdir(parents=True)
    (base / "pkg" / "a.py").write_text(BASE)
    subprocess.run(["git", "init", "-q", str(base)], check=True)
    file = tmp_path / "recorded.json"
    file.write_text(json.dumps(RECORDINGS[kind]))
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(base)]
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "base"], check=True)
    spec = SandboxSpec(backend="process", directory=base, owner="test-replay")
    with (
        open_home(tmp_path / "home") as home,
        open_run(home, "thread", model=ReplayModel(turns=()), sandbox=spec, snapshot_every="point") as run,
    ):
        sandbox = run.session.enter_state(session.BASE_STATE)
        model = ReplayModel(turns=read_trajectory(file, workspace=sandbox.workspace))
        run.context = run.context.model_copy(update={"model": model})
        state = run.start("t", "p").state
        assert sandbox.read_file("pkg/a.py").decode() == EDITED
    events = load_events(state)
    assert not any(event.refused for event in events)
    assert [p.kind for p in detectors.list_points(events, ("pkg",))] == ["first_source_edit"]


SED = "sed -i s/1/2/ pkg/a.py"


@pytest.mark.parametrize(
    ("cwd", "command", "expected"),
    [
        ("/workspace", f"cd /workspace/repo && {SED}", f"cd /testbed && {SED}"),
        ("/workspace", f"cd repo && {SED}", f"cd /testbed && {SED}"),
        ("/home/me", f"cd repos/egg; {SED}", f"cd /testbed; {SED}"),
        ("/", "cd / && sed -i s/1/2/ /a.py", "cd /testbed/ && sed -i s/1/2/ /testbed/a.py"),
    ],
)
def test_the_repository_inside_the_working_directory_is_moved(
    cwd: str, command: str, expected: str, tmp_path: Path
) -> None:
    path = write_trajectory(tmp_path, f"```bash\n{command}\n```")
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "info": {"config": {"environment": {"cwd": cwd}}}}))
    (turn,) = read_trajectory(path, workspace="/testbed")
    assert turn.action == Action("shell", {"command": f"(\n{expected}\n)"})


def test_one_of_several_runs_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "output.jsonl"
    lines = [
        {"history": [{"id": 1, "action": "run", "args": {"command": c}}, {"cause": 1, "observation": "run"}]}
        for c in ("one", "two")
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    name = parse_model_name(f"replay:{path}#1@0")
    assert (name.file, name.number, name.start) == (path, 1, 0)
    assert [turn.action for turn in read_trajectory(path, 1)] == [Action("shell", {"command": "two"})]
    with pytest.raises(TrajectoryError, match=r"run #2 not found \(the file has 2 run"):
        read_trajectory(path, 2)


def test_an_edit_without_its_new_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    call = {"name": "multi_edit", "args": {"file_path": "/repo/a.py", "edits": []}, "id": "1"}
    path.write_text(json.dumps([{"type": "ai", "content": "", "tool_calls": [call]}]))
    refusal = "event 0: cannot replay the editor's edit, which does not record the new text"
    with pytest.raises(TrajectoryError, match=refusal):
        read_trajectory(path)


def test_the_patches_of_codex_are_replayed(tmp_path: Path) -> None:
    patches = {
        "add": "*** Add File: pkg/new.py\n+x = 1\n+y = 2\n",
        "update": "*** Update File: a.py\n@@ def f():\n def f():\n-    return 'old'\n+    return 'new'\n",
        "move": "*** Update File: b.py\n*** Move to: pkg/c.py\n@@\n-b = 1\n+b = 2\n",
        "delete": "*** Delete File: d.py\n",
    }
    rows = [codex_meta()]
    for name, body in patches.items():
        text = f"*** Begin Patch\n{body}*** End Patch\n"
        rows.append(codex_item("custom_tool_call", name="apply_patch", call_id=name, input=text))
        done = "Exit code: 0\nOutput:\nSuccess."
        rows.append(codex_item("custom_tool_call_output", call_id=name, output=done))
    recording = tmp_path / "rollout.jsonl"
    recording.write_text("\n".join(map(json.dumps, rows)))
    bed = tmp_path / "bed"
    bed.mkdir()
    files = {"a.py": "def f():\n    return 'old'\n\nz = 1\n", "b.py": "b = 1\n", "d.py": "d = 1\n"}
    for name, content in files.items():
        (bed / name).write_text(content)
    for turn in read_trajectory(recording):
        assert turn.action is not None
        subprocess.run(["bash", "-c", turn.action.arguments["command"]], cwd=bed, check=True)
    found = {str(path.relative_to(bed)): path.read_text() for path in bed.rglob("*") if path.is_file()}
    edited = files["a.py"].replace("old", "new")
    assert found == {"a.py": edited, "pkg/c.py": "b = 2\n", "pkg/new.py": "x = 1\ny = 2\n"}
