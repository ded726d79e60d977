"""Over-trust: cases with known truth, by hand and from live takeovers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.run.measures.final_patch import Trust, measure_trust
from langgraph_takeover.handoff.records.record import HandoffRecord, TaskBrief
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint
from langgraph_takeover.sandbox.interface import Snapshot

from ...conftest import RunCommand, read_rows
from .shell_steps import build_steps

A, B, C = "a" * 64, "b" * 64, "c" * 64
TEST_RUN = ("python -m pytest -q", "3 passed in 0.1s")
READ_CHANGED = ("cat pkg/core.py", "return 2")


def diff(path: str, *lines: str, new: bool = False) -> str:
    mode = "new file mode 100644\n" if new else ""
    text = "\n".join(lines)
    return f"diff --git a/{path} b/{path}\n{mode}--- a/{path}\n+++ b/{path}\n@@ -1,3 +1,3 @@\n{text}\n"


OLD_FIX = diff("pkg/core.py", " def f():", "-    return 1", "+    return 2", "+    # done")


EDIT = ("sed -i s/1/2/ pkg/core.py", "", ("pkg/core.py", A, B))
OWN_EDIT = ("sed -i s/2/3/ pkg/core.py", "", ("pkg/core.py", B, C))


def record(patch: str = OLD_FIX, trace: tuple[Event, ...] = build_steps(EDIT, TEST_RUN)) -> HandoffRecord:
    return HandoffRecord(
        id="r",
        task=TaskBrief(
            id="t", prompt="p", base_commit="c", base_directories=("pkg", "tests"), workspace="/repo"
        ),
        predecessor="m",
        point=HandoffPoint(kind="requested", event_index=len(trace) - 1, detail=""),
        patch=patch,
        snapshot=Snapshot(
            backend="process", base="b", location="l", digest="d", workspace="/repo", shell_state=""
        ),
        thread_id="",
        checkpoint_id="",
        trace=trace,
        created_at="",
    )


@pytest.mark.parametrize(
    ("final", "kept"),
    [
        (OLD_FIX, 1.0),
        ("", 0.0),
        (diff("pkg/core.py", "-    return 1", "+    return 2"), 2 / 3),
        (diff("pkg/core.py", "-    return 1", "+    return 3"), 1 / 3),
        (OLD_FIX + diff("pkg/other.py", "+x = 1"), 1.0),
        (diff("pkg/other.py", "-    return 1", "+    return 2", "+    # done"), 0.0),
    ],
)
def test_kept_is_the_share_of_changed_lines_in_the_final_patch(final: str, kept: float) -> None:
    assert measure_trust(record(), build_steps(), final).kept == pytest.approx(kept)


def test_only_source_lines_count_as_kept() -> None:
    scratch = diff("repro.py", "+print(1)", new=True) + diff("tests/test_core.py", "+assert f()")
    assert measure_trust(record(OLD_FIX + scratch), build_steps(), OLD_FIX).kept == 1
    assert measure_trust(record(scratch), build_steps(TEST_RUN), scratch) == Trust(None, None, True)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ((), False),
        ((READ_CHANGED,), True),
        ((("git diff", OLD_FIX),), True),
        ((TEST_RUN,), True),
        ((("ls pkg", "core.py"), ("cat pkg/other.py", "x")), False),
        ((("pytest", "bash: pytest: command not found"),), False),
        ((OWN_EDIT, READ_CHANGED), False),
        ((READ_CHANGED, OWN_EDIT), True),
        ((("git checkout pkg/core.py", "", ("pkg/core.py", B, A)), TEST_RUN), False),
    ],
)
def test_reexamined_before_the_change_is_touched(taken: tuple[Any, ...], expected: bool) -> None:
    assert measure_trust(record(), build_steps(*taken), OLD_FIX).reexamined is expected


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ((), False),
        ((READ_CHANGED,), False),
        ((TEST_RUN,), True),
        ((TEST_RUN, OWN_EDIT), False),
        ((OWN_EDIT, TEST_RUN), True),
        ((OWN_EDIT, ("python -m pytest -q", "1 failed in 0.1s")), True),
        ((OWN_EDIT, ("pytest", "bash: pytest: command not found")), False),
    ],
)
def test_verified_before_finish_needs_a_result_for_the_final_code(
    taken: tuple[Any, ...], expected: bool
) -> None:
    assert measure_trust(record(), build_steps(*taken), OLD_FIX).verified_before_finish is expected


def test_hostile_patches_are_read() -> None:
    for patch in (
        "diff --git a/x b/x\n" * 5_000,
        "@@" * 50_000,
        "diff --git a/pkg/core.py b/pkg/core.py\n+++",
    ):
        assert measure_trust(record(patch), build_steps(), patch).kept in (None, 1.0)


def write_trajectory(path: Path, *commands: str) -> str:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "t"}]
    for command in commands:
        messages.append({"role": "assistant", "content": f"Next.\n\n```bash\n{command}\n```"})
        messages.append({"role": "user", "content": "<returncode>0</returncode>\n<output>\n</output>"})
    path.write_text(json.dumps({"trajectory_format": "mini-swe-agent-1", "info": {}, "messages": messages}))
    return f"replay:{path}"


RIGHT = (
    "sed -i '/    room = width/d; s/^    for word in text.split():/&\\n"
    "        room = width - measure(hanging if lines else initial)/' galley/wrap.py"
)
WRONG = "sed -i 's/width - measure(initial)/width - max(measure(initial), measure(hanging))/' galley/wrap.py"
UNDO_WRONG = "git checkout -q galley/wrap.py"
TESTS = "python3 -m unittest discover -s tests -t ."


@pytest.mark.slow
def test_believers_and_checkers_after_right_and_wrong_predecessors(
    run_main: RunCommand, tmp_path: Path
) -> None:
    predecessors = {name: write_trajectory(tmp_path / f"{name}.json", edit) for name, edit in
                    (("right", RIGHT), ("wrong", WRONG))}  # fmt: skip
    believer = write_trajectory(tmp_path / "believer.json", "ls")
    checker = write_trajectory(tmp_path / "checker.json", "git diff", TESTS, UNDO_WRONG, RIGHT, TESTS)
    out = tmp_path / "run"
    done = run_main(
        *("--tasks", "bundled", "--task-ids", "galley__galley-31", "--view", "repository"),
        *("--points", "first_source_edit", "--out", out),
        *(part for name in predecessors.values() for part in ("--predecessor", name)),
        *("--successor", believer, "--successor", checker),
    )
    assert done.returncode == 0, done.stderr
    found = {
        (row["predecessor"] == predecessors["right"], row["successor"] == checker): (
            row["resolved"], row["kept"], row["reexamined"], row["verified_before_finish"]
        )
        for row in read_rows(out)
    }  # fmt: skip
    assert found == {
        (True, False): (True, 1.0, False, False),
        (True, True): (True, 1.0, True, True),
        (False, False): (False, 1.0, False, False),
        (False, True): (True, pytest.approx(0.5), True, True),
    }
