from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.models.replay import read_recording
from langgraph_takeover.evals.run.measures.divergence import compare_observations
from langgraph_takeover.handoff.trace.events import Event

from ...conftest import RunCommand, read_rows
from ...models.test_recordings import GALLEY, edit, write_recording

EQUAL = {
    "times": ("Ran 3 tests in 0.012s\nOK 2024-01-02 10:11:12", "Ran 3 tests in 1.5s\nOK 2026-11-27 01:02:03"),
    "temporary names": ("wrote /tmp/tmpab12cd9_/x.txt", "wrote /tmp/tmpz_99aa01/x.txt"),
    "addresses": ("<f object at 0x7f00aa12bb30>", "<f object at 0x7fe1230000a0>"),
    "hashes of commits": ("[main 1a2b3c4] fix", "[main 9f8e7d6] fix"),
    "listed directories": (
        "total 12\ndrwxr-xr-x 1 root root 4096 Nov  3 10:22 pkg\n-rw-r--r-- 1 root root 71 Nov  3 2024 a.py",
        "total 8\ndrwxr-xr-x 14 u g 600 Nov 27 05:01 pkg\n-rw-r--r-- 1 u g 71 Nov 27 05:02 a.py",
    ),
    "order of files": ("b.py:1:x\na.py:1:x", "a.py:1:x\nb.py:1:x"),
    "place of the repository": ("/testbed/pkg/a.py:3: in f", "/home/u/repo/pkg/a.py:3: in f"),
    "colors": ("\x1b[31mred\x1b[0m", "red"),
}  # fmt: skip
DIFFERENT = {
    "an import error": ("1 passed", "ModuleNotFoundError: No module named 'antlr4'"),
    "a count": ("3 failed, 2 passed in 0.1s", "2 failed, 3 passed in 0.1s"),
    "a size": ("-rw-r--r-- 1 root root 71 Nov  3 2024 a.py", "-rw-r--r-- 1 root root 72 Nov  3 2024 a.py"),
    "no output": ("some text", ""),
    "a line more": ("one", "one\ntwo"),
}


def observe(text: str, exit_code: int | None = 0, **fields: Any) -> Event:
    return Event(index=1, kind="observation", tool="shell", text=text, exit_code=exit_code, **fields)


def compare(tmp_path: Path, theirs: str, ours: str) -> tuple[float | None, int | None]:
    recording = read_recording(write_recording(tmp_path / "t.json", ("python3 x.py", 0, theirs)))
    recording = recording._replace(trace=recording.trace.model_copy(update={"workspace": "/testbed"}))
    action = Event(index=0, kind="action", tool="shell", text="x")
    return compare_observations(recording, [action, observe(f"[exit code 0]\n{ours}")], 0, "/home/u/repo")


@pytest.mark.parametrize("name", EQUAL)
def test_what_varies_between_equal_runs_is_no_difference(name: str, tmp_path: Path) -> None:
    assert compare(tmp_path, *EQUAL[name]) == (0.0, None)


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_observations_differ(name: str, tmp_path: Path) -> None:
    assert compare(tmp_path, *DIFFERENT[name]) == (1.0, 0)


def test_a_shortened_output_is_compared_at_its_ends(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(200)]
    whole = "\n".join(lines)
    short = "\n".join([*lines[:20], "lin", "[… 900 characters left out; request less …]", "5", *lines[-20:]])
    assert compare(tmp_path, whole, short) == (0.0, None)
    assert compare(tmp_path, whole, short.replace("line 3\n", "line X\n")) == (1.0, 0)
    assert compare(tmp_path, whole, short.replace("line 198", "line X")) == (1.0, 0)


def test_steps_are_counted_from_the_start_of_the_replay(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "t.json", *[(f"echo {n}", 0, f"{n}\n") for n in range(4)])
    recording = read_recording(path)
    events = []
    for number in (2, 9):
        events += [
            Event(index=0, kind="action", tool="shell", text="x"),
            observe(f"[exit code 0]\n{number}"),
        ]
    assert compare_observations(recording, events, 2, "") == (0.5, 3)
    assert compare_observations(recording, [events[0], observe("2", exit_code=1)], 2, "") == (1.0, 2)
    assert compare_observations(recording, [events[0], observe("2", None, timed_out=True)], 2, "") == (1.0, 2)
    assert compare_observations(recording, [events[0]], 2, "") == (None, None)


def test_an_edit_by_another_agent_s_tool_is_compared_by_its_success(tmp_path: Path) -> None:
    path = tmp_path / "t.traj"
    call = "str_replace_editor str_replace /repo/a.py --old_str 'two' --new_str 'TWO'"
    step = {
        "action": call,
        "observation": "The file /repo/a.py has been edited.",
        "response": call,
        "state": {},
    }
    path.write_text(json.dumps({"history": [], "trajectory": [step]}))
    recording = read_recording(path)
    action = Event(index=0, kind="action", tool="editor", text="x")
    done = Event(index=1, kind="observation", tool="editor", text="Edited a.py: 1 line")
    assert compare_observations(recording, [action, done], 0, "") == (0.0, None)
    refused = done.model_copy(update={"refused": True, "text": "the text was not found"})
    assert compare_observations(recording, [action, refused], 0, "") == (1.0, 0)


@pytest.mark.slow
def test_a_replay_in_another_image_says_so(run_main: RunCommand, tmp_path: Path) -> None:
    out, steps = tmp_path / "out", [("echo start", 0, "start\n"), edit("missing"), ("echo end", 0, "end\n")]
    path = write_recording(tmp_path / "t.json", *steps, instance_id=GALLEY)
    arguments = (
        "--task-ids",
        GALLEY,
        "--predecessor",
        f"replay:{path}",
        "--view",
        "repository",
        "--out",
        out,
    )
    done = run_main(*arguments, "--sandbox", "process", "--allow-unisolated")
    assert done.returncode == 0, done.stderr
    (row,) = read_rows(out, "predecessors")
    assert (round(row["divergence"], 2), row["divergence_step"]) == (0.33, 1)
    assert row["missed_points"] == ["first_source_edit"]
    text = " ".join(done.stdout.split())
    assert (
        f"Nothing to compare: the recording of {GALLEY} reaches first_source_edit; its replay reaches none, and its "
        "observations differ from action 1 on (33% of its steps)."
    ) in text
    assert (
        f"Warning: replays whose observations differ from the recording: 1: {GALLEY} from action 1 on" in text
    )
    caveats = json.loads((out / "summary.json").read_text())["caveats"]
    assert any("observations differ from the recording" in caveat for caveat in caveats)
