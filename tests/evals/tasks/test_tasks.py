from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from langgraph_takeover.evals.tasks import BUNDLED, SUITE, TaskSourceError, load_tasks
from langgraph_takeover.evals.tasks.grading import check_gradable
from langgraph_takeover.handoff.records.record import HandoffRecord, TaskBrief
from langgraph_takeover.handoff.text.fence import TASK
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.sandbox.backends.host import unavailable_reason
from langgraph_takeover.sandbox.changes.layers import LayerStack
from langgraph_takeover.sandbox.lifecycle import SandboxManager
from langgraph_takeover.sandbox.snapshots.archive import content_digest

from ...conftest import skip_missing

ROW = {
    "instance_id": "a__a-1",
    "problem_statement": "It is broken.\r\nBadly.",
    "repo": "a/a",
    "version": "1",
    "FAIL_TO_PASS": '["test_a"]',
    "PASS_TO_PASS": "[]",
    "eval_script": "true",
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "image": "a:latest",
}


def test_bundled_tasks_in_order_and_by_name() -> None:
    every = load_tasks(BUNDLED)
    assert len(every) >= 4
    assert all(task.stream is not None for task in every)
    chosen = load_tasks(BUNDLED, [every[2].id, every[0].id])
    assert [task.id for task in chosen] == [every[2].id, every[0].id]
    assert len(load_tasks(BUNDLED, limit=3)) == 3


def test_a_checkout_is_the_base_commit(tmp_path: Path) -> None:
    task = load_tasks(BUNDLED, limit=1)[0]
    task.check_out(tmp_path)
    task.check_out(tmp_path)
    head = (tmp_path / task.id / ".git" / "refs" / "heads" / "main").read_text().strip()
    assert head == task.instance["base_commit"]


def test_the_prompt_holds_the_issue_and_nothing_of_its_solution() -> None:
    for task in load_tasks(BUNDLED):
        assert str(task.instance["problem_statement"]).strip() in task.prompt
        assert "diff --git" not in task.prompt
        assert not any(test in task.prompt for test in task.instance["FAIL_TO_PASS"])


def test_jsonl_and_json(tmp_path: Path) -> None:
    lines = tmp_path / "tasks.jsonl"
    lines.write_text(json.dumps(ROW) + "\n\n" + json.dumps({**ROW, "instance_id": "b"}) + "\n")
    assert [task.id for task in load_tasks(str(lines))] == ["a__a-1", "b"]
    whole = tmp_path / "tasks.json"
    whole.write_text(json.dumps([ROW]))
    (task,) = load_tasks(str(whole))
    assert "\r" not in task.prompt
    assert task.build_spec("docker", "me", tmp_path).image == "a:latest"
    assert task.build_spec("host", "me", tmp_path).image == "a:latest"
    with pytest.raises(TaskSourceError, match="choose --sandbox docker or host"):
        task.build_spec("process", "me", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'{"instance_id": "a"}\n', r"t\.jsonl: line 1: field 'problem_statement' is missing"),
        ("t.jsonl", b'{"a": 1}\n{"b\n', r"t\.jsonl: line 2: not JSON"),
        ("t.jsonl", b"\xff\xfe", "not UTF-8"),
        ("t.jsonl", b"[1]\n", "expected an object"),
        ("t.json", b"{", "not JSON"),
        ("t.json", b"5", "expected a list of tasks"),
        ("t.jsonl", json.dumps({**ROW, "instance_id": "../x"}).encode(), "'instance_id' may hold letters"),
        ("t.parquet", b"PAR1", "not a readable parquet"),
        ("t.txt", b"", "is no task file"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TaskSourceError, match=message):
        load_tasks(str(path))


def test_a_line_separator_within_a_text_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({**ROW, "problem_statement": "one\u2028two"}, ensure_ascii=False) + "\n")
    assert "one\u2028two" in load_tasks(str(path))[0].prompt


def test_what_swebench_cannot_grade_is_refused_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    for field, value, message in (
        ("log_parser", "parse_log_nothing", "no log_parser 'parse_log_nothing'"),
        ("eval_type", "by_feeling", "cannot read it"),
        ("FAIL_TO_PASS", "[", "cannot read it"),
    ):
        path.write_text(json.dumps({**ROW, field: value}) + "\n")
        with pytest.raises(TaskSourceError, match=message):
            check_gradable(load_tasks(str(path)))


def test_a_checkout_that_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    task = load_tasks(BUNDLED, limit=1)[0]
    (tmp_path / f".partial-{task.id}" / ".git").mkdir(parents=True)
    task.check_out(tmp_path)
    assert (tmp_path / task.id / "README.md").is_file()


def test_a_directory_that_is_no_task_repo(tmp_path: Path) -> None:
    with pytest.raises(TaskSourceError, match="it needs a directory tasks/"):
        load_tasks(str(tmp_path))


def test_verified_from_parquet(shared: Path) -> None:
    source = str(shared / "data" / "swebench_verified_v5.parquet")
    assert len(load_tasks(source)) == 500
    ids = (shared / "data" / "selected_075.txt").read_text().split()
    assert [task.id for task in load_tasks(source, ids)] == ids
    with pytest.raises(TaskSourceError, match="no task nobody__nothing-1; it has 500 tasks"):
        load_tasks(source, ["nobody__nothing-1"])


def test_real_issues_stay_verbatim_in_every_view(shared: Path) -> None:
    for task in load_tasks(str(shared / "data" / "swebench_verified_v5.parquet")):
        record = HandoffRecord(
            id="r",
            task=TaskBrief(id=task.id, prompt=task.prompt, base_commit="", base_directories=()),
            predecessor="m",
            point=HandoffPoint(kind="requested", event_index=0, detail=""),
            patch="",
            snapshot=None,
            thread_id="",
            checkpoint_id="",
            trace=(Event(index=0, kind="action", tool="finish", text=""),),
            created_at="",
        )
        for view in VIEWS.values():
            assert view(record)[-1].text.endswith(f"{TASK}\n\n{task.prompt}")


def test_bundled_tasks_can_be_graded(tmp_path: Path) -> None:
    """Which runs take for granted: as anybody else's tasks, these would be looked at."""
    theirs = load_tasks(str(shutil.copytree(SUITE, tmp_path / "suite")))
    assert len(theirs) == len(load_tasks(BUNDLED))
    assert not any(task.is_bundled for task in theirs)
    check_gradable(theirs)


def test_a_bundled_task_sees_the_standard_library_only(tmp_path: Path) -> None:
    """What one host has installed and another has not must not tell in the results."""
    reason = unavailable_reason()
    if reason is not None:
        skip_missing(reason)
    task = load_tasks(BUNDLED, limit=1)[0]
    task.check_out(tmp_path)
    spec = task.build_spec("host", "me", tmp_path)
    installed = [path for path in spec.hidden if path != SUITE and path.is_dir() and any(path.iterdir())]
    if not installed:
        skip_missing("nothing is installed for Python here, so that there is nothing to hide")
    looked = "; ".join(f"ls -A {path}" for path in installed)
    seen = {}
    for name, hidden in (("bundled", spec.hidden), ("own", (SUITE,))):
        with SandboxManager(spec.model_copy(update={"hidden": hidden})) as bench:
            seen[name] = bench.sandbox().run(f"{looked}; python3 -c 'import json'", timeout_s=60)
    assert seen["own"].output.strip()
    assert seen["bundled"].output == ""
    assert seen["bundled"].exit_code == seen["own"].exit_code == 0


def test_every_checkout_is_the_same_base(tmp_path: Path) -> None:
    (task,) = load_tasks(BUNDLED, ["ledger__ledger-12"])
    checkouts = []
    for name in ("first", "second"):
        task.check_out(tmp_path / name)
        checkouts.append(tmp_path / name / task.id)
        time.sleep(1.1)  # a second later by every file system's clock
    first, second = (content_digest((each,), LayerStack()) for each in checkouts)
    assert first == second
    assert subprocess.run(["git", "-C", checkouts[0], "diff", "--quiet", "HEAD"]).returncode == 0
