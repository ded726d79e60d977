"""Results of changed tasks, recordings, models, prompts and notes are never mixed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.run.measures.replies import digest_notes, find_changed_note
from langgraph_takeover.evals.run.preparation import load_all_tasks
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.evals.run.reuse import check_source
from langgraph_takeover.evals.run.rows import NotesRow
from langgraph_takeover.evals.run.settings.config import RunConfig, RunUsageError, remove_password
from langgraph_takeover.evals.run.settings.inputs import (
    compute_inputs,
    find_changed_input,
    find_input_difference,
)
from langgraph_takeover.evals.tasks import SUITE, load_tasks, locate_source
from langgraph_takeover.handoff.records.record import Notes
from langgraph_takeover.handoff.trace.events import Usage

from ...conftest import RunCommand, assert_refused, rewrite_rows

TASK = "galley__galley-31"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A task repo of one's own with two tasks."""
    suite = tmp_path / "suite"
    for name in (TASK, "harbor__harbor-14"):
        shutil.copytree(SUITE / "tasks" / name, suite / "tasks" / name)
    return suite


def make_run(out: Path, suite: Path, **settings: Any) -> RunConfig:
    """A run that has started, without rows."""
    defaults: dict[str, Any] = {
        "run_id": out.name,
        "views": ("repository", "trace"),
        "predecessors": ("builtin:oracle",),
        "successors": ("builtin:oracle",),
        "tasks": str(suite),
        "sandbox": "process",
    }
    config = RunConfig(**(defaults | settings))
    config = config.model_copy(update={"inputs": read_inputs(suite, config)})
    out.mkdir()
    config.save(out)
    (out / "journal.sqlite").touch()
    return config


def read_inputs(suite: Path, config: RunConfig | None = None) -> Any:
    tasks = load_all_tasks(config) if config else load_tasks(str(suite))
    return compute_inputs(tasks, "process", config.recordings if config else {})


def add_test(suite: Path) -> None:
    path = suite / "tasks" / TASK / "tests.json"
    tests = json.loads(path.read_text())
    path.write_text(json.dumps(tests | {"FAIL_TO_PASS": [*tests["FAIL_TO_PASS"], "test_new"]}))


def append(name: str) -> Callable[[Path], None]:
    def change(suite: Path) -> None:
        path = suite / "tasks" / TASK / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes((path.read_bytes() if path.exists() else b"") + b"\n# more\n")

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (add_test, f"the tests of task {TASK} changed"),
        (append("eval.sh"), f"the tests of task {TASK} changed"),
        (append("test_assets/data.bin"), f"the tests of task {TASK} changed"),
        (append("problem_statement.md"), f"the statement of task {TASK} changed"),
        (append("repo.fast-export"), f"the repository of task {TASK} changed"),
        (append("gold.patch"), f"the fields of task {TASK} changed"),
        (lambda suite: shutil.rmtree(suite / "tasks" / TASK), f"task {TASK} was removed"),
        (append("notes.txt"), None),  # a file that nothing reads
    ],
)
def test_a_change_is_named(suite: Path, change: Callable[[Path], None], expected: str | None) -> None:
    before = read_inputs(suite)
    change(suite)
    assert find_input_difference(before, read_inputs(suite)) == expected


def test_order_and_new_tasks_count_for_a_resumed_run_only(suite: Path) -> None:
    before = compute_inputs(load_tasks(str(suite)), "process", {})
    turned = compute_inputs(load_tasks(str(suite))[::-1], "process", {})
    one = compute_inputs(load_tasks(str(suite), (TASK,)), "process", {})
    assert find_input_difference(before, turned) == "the order of the tasks changed"
    assert find_input_difference(one, before) == "task harbor__harbor-14 was added"
    assert find_changed_input(before, turned) is find_changed_input(one, before) is None


def test_recordings_and_prompts_are_inputs(suite: Path, tmp_path: Path) -> None:
    recording = tmp_path / "run.traj"
    recording.write_text("{}")
    names = {"replay:runs": {TASK: f"replay:{recording}#0"}}
    before = compute_inputs(load_tasks(str(suite)), "process", names)
    recording.write_text("[]")
    now = compute_inputs(load_tasks(str(suite)), "process", names)
    assert find_changed_input(before, now) == f"the recording of task {TASK} for replay:runs changed"
    other = before.model_copy(update={"prompts": before.prompts | {"handoff/summary.md": "0" * 12}})
    assert find_changed_input(other, before) == "the prompt handoff/summary.md changed"
    paper = tuple(task.model_copy(update={"prompt_name": "paper"}) for task in load_tasks(str(suite)))
    assert (
        find_changed_input(now, compute_inputs(paper, "process", names)) == "the prompt of the tasks changed"
    )


def test_a_resumed_run_with_changed_tests_is_refused(
    suite: Path, tmp_path: Path, run_main: RunCommand
) -> None:
    out = tmp_path / "run"
    make_run(out, suite)
    add_test(suite)
    done = run_main("--resume", "--out", out, "--dry-run")
    assert_refused(
        done, f"--resume: the tests of task {TASK} changed since the run in {out} started (restore it"
    )


def test_a_run_from_changed_tasks_is_refused(suite: Path, tmp_path: Path) -> None:
    make_run(tmp_path / "run", suite)
    again = make_run(tmp_path / "again", suite, records_of=str(tmp_path / "run"))
    check_source(again)
    add_test(suite)
    changed = again.model_copy(update={"inputs": read_inputs(suite)})
    with pytest.raises(RunUsageError, match=f"--from: the tests of task {TASK} changed since .*/run ran"):
        check_source(changed)


def test_a_run_from_other_entries_of_an_agents_model_is_refused(suite: Path, tmp_path: Path) -> None:
    models = {"m": {"model": "m", "temperature": 0.5}}
    make_run(tmp_path / "run", suite, predecessors=("codex:m",), models=models)
    now = {"m": {"model": "m", "temperature": 1.0}}
    settings = {"predecessors": ("codex:m",), "models": now, "records_of": str(tmp_path / "run")}
    again = make_run(tmp_path / "again", suite, **settings)
    with pytest.raises(RunUsageError, match=r"another entry m: temperature was 0\.5, now 1\.0"):
        check_source(again)


def test_moved_tasks_are_recognized(suite: Path, tmp_path: Path, run_main: RunCommand) -> None:
    out, moved = tmp_path / "run", tmp_path / "elsewhere"
    make_run(out, suite)
    suite.rename(moved)
    assert_refused(run_main("--resume", "--out", out, "--list-tasks"), f"{suite}: no such file or directory")
    done = run_main("--resume", "--out", out, "--tasks", moved, "--list-tasks")
    assert done.stdout.split() == [TASK, "harbor__harbor-14"], done.stderr
    check_source(make_run(tmp_path / "again", moved, records_of=str(out)))
    add_test(moved)
    done = run_main("--resume", "--out", out, "--tasks", moved, "--list-tasks")
    assert_refused(done, f"--resume: the tests of task {TASK} changed since")
    done = run_main("--resume", "--out", out, "--tasks", "bundled", "--list-tasks")
    assert_refused(done, "--resume: task almanac__almanac-15 was added since")
    other = make_run(tmp_path / "other", SUITE, task_ids=("kiosk__kiosk-9",), records_of=str(out))
    with pytest.raises(RunUsageError, match=f"--from: .* ran with --tasks {suite}, this run has {SUITE}"):
        check_source(other)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, f"the tests of task {TASK} changed between them"),
        ({"prompt": "paper"}, "the prompt of the tasks changed between them"),
        (
            {"models": {"m": {"model": "m", "temperature": 1.0}}},
            "the entry m: temperature was 0.5, now 1.0 between them",
        ),
        ({"models": {"m": {"model": "m", "temperature": 0.5, "price": {"input": 1.0, "output": 1.0}}}}, None),
    ],
)
def test_shards_with_different_inputs_are_not_combined(
    suite: Path, tmp_path: Path, settings: dict[str, Any], expected: str | None
) -> None:
    entry = {"models": {"m": {"model": "m", "temperature": 0.5}}}
    make_run(tmp_path / "one", suite, shard="1/2", **entry)
    if not settings:
        add_test(suite)
    make_run(tmp_path / "two", suite, shard="2/2", **(entry | settings))
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        (out / "journal.sqlite").unlink()
        (out / "takeovers.jsonl").touch()
    if expected is None:
        assert load_results(outs).warnings == ()
        return
    with pytest.raises(RunUsageError, match=f"one and .*two cannot be combined: {expected}"):
        load_results(outs)


def test_takeovers_of_changed_notes_are_not_combined(published_rows: Path) -> None:
    digests = iter(("before", "after"))
    rewrite_rows(
        published_rows,
        lambda row: (
            row | {"note_digest": next(digests, "after"), "notes_model": "openai:n"}
            if row["record_id"] == "one__one-1.first_validation" and row["view"] == "structured"
            else row
        ),
    )
    with pytest.raises(RunUsageError, match=r"the structured note of record .* changed between"):
        load_results([published_rows])


def test_a_rewritten_note_is_found() -> None:
    notes = Notes(
        model="m", summary="Tests fail.", structured={}, summary_usage=Usage(), structured_usage=Usage()
    )
    row = NotesRow(record_id="r", outcome="written", **digest_notes(notes))
    assert row.structured_digest is None
    assert find_changed_note(row, notes) is None
    assert find_changed_note(row, notes.model_copy(update={"summary": "Tests pass."})) == "summary"


def test_stored_sources_are_absolute(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate_source("suite") == locate_source("./suite") == str(suite)
    assert locate_source("absent.jsonl") == str(tmp_path / "absent.jsonl")
    assert [locate_source(name) for name in ("bundled", "org/dataset")] == ["bundled", "org/dataset"]
    assert remove_password("sqlite:///rows.db") == f"sqlite:///{tmp_path}/rows.db"
    assert str(tmp_path) not in str(remove_password("sqlite:///:memory:"))
