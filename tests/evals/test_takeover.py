"""The main command end to end in the embedded sandbox: an uninterrupted run of two tasks under all views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import open_home
from langgraph_takeover.handoff.points.annotations import annotate_steps
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.recordings.inferred_actions import infer_changes
from langgraph_takeover.handoff.recordings.inferred_files import InferredFiles
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.trace.events import Event, Trace

from .conftest import (
    TWO_TASKS,
    RunCommand,
    assert_refused,
    comparable_rows,
    kill_process,
    read_journal_rows,
    read_rows,
    start_takeover,
    wait_for,
)

COLUMNS = {
    *("task_id", "point", "view", "successor", "resolved", "outcome", "events", "llm_calls", "prompt_tokens"),
    *("completion_tokens", "seconds", "first_prompt_chars", "rediscovery_events", "patch", "record_id"),
    *("first_prompt_tokens", "prompts", "recalls", "recall_events", "recall_tokens"),
}


@pytest.mark.slow
def test_rows_are_complete_and_solved(complete_run: Path) -> None:
    found = read_rows(complete_run)
    points = 5  # ledger has all three; galley's first fix is right, so it has no failure
    assert len(found) == points * 7
    assert all(set(row) >= COLUMNS and row["resolved"] and row["outcome"] == "graded" for row in found)
    by_view = {view: [row for row in found if row["view"] == view] for view in ("repository", "structured")}
    assert {row["record_id"] for row in by_view["repository"]} == {
        row["record_id"] for row in by_view["structured"]
    }
    labels = read_rows(complete_run, "labels")
    assert {row["handoff_state"] for row in labels} == {"already_solved", "needs_completion"}
    for row in labels:
        failing = (row["fail_to_pass_failures"], row["pass_to_pass_failures"])
        assert (failing == (0, 0)) is (row["handoff_state"] == "already_solved")
        assert row["regressions"] is (failing[1] > 0)
    assert any(row["regressions"] for row in labels)
    assert all(row["fail_to_pass_failures"] == row["pass_to_pass_failures"] == 0 for row in found)
    # The predecessors leave scripts, which the successors keep; without them, the patches solve the tasks too.
    assert all(row["scratch_files"] == ["reproduce_issue.py"] and row["cleaned_resolved"] for row in found)
    assert all(row["patch_files"] >= 1 and row["patch_lines"] >= 1 for row in found)


@pytest.mark.slow
def test_views_with_more_information_need_fewer_events(complete_run: Path) -> None:
    views = json.loads((complete_run / "summary.json").read_text())["views"]
    events = {view: figures["median_events"] for view, figures in views.items()}
    assert events["trace"] <= events["summary"] <= events["repository"]
    assert events["trace"] <= events["structured"] <= events["repository"]
    assert events["trace"] < events["repository"]
    assert events["cited"] <= events["structured"]
    assert events["trace"] <= events["transcript"] <= events["payload"] <= events["repository"]
    sizes = {view: figures["median_first_prompt_chars"] for view, figures in views.items()}
    assert sizes["repository"] < sizes["summary"] < sizes["trace"]


@pytest.mark.slow
def test_records_are_self_contained(complete_run: Path) -> None:
    for directory in (complete_run / "records").iterdir():
        snapshot = RecordStore(directory.parent).load(directory.name).snapshot
        assert snapshot is not None
        names = {path.name for path in directory.iterdir()}
        assert names == {"record.json", "notes.json", f"{snapshot.digest}.tar.zst"}


@pytest.mark.slow
def test_no_sandbox_is_left_and_every_thread_can_be_inspected(complete_run: Path) -> None:
    assert list((complete_run / "snapshots").iterdir()) == []
    with open_home(complete_run) as home:
        for row in read_rows(complete_run):
            moments = home.history(f"takeover.{row['trace']}")
            assert {moment.step for moment in moments} == set(range(row["steps"] + 1))
        for row in read_rows(complete_run, "predecessors"):
            assert home.history(f"predecessor.{row['trace']}")[0].step == row["steps"]
        runs = [thread for thread in home.threads() if not thread.startswith("notes.")]
        assert len(runs) == len(read_rows(complete_run)) + len(read_rows(complete_run, "predecessors"))


@pytest.mark.slow
def test_a_used_directory_is_not_overwritten(complete_run: Path, run_main: RunCommand) -> None:
    assert_refused(run_main("--out", complete_run), "--resume")
    assert_refused(
        run_main("--resume", "--out", complete_run, "--repeats", "2"), "--repeats: the run has 1, not 2"
    )


@pytest.mark.slow
def test_two_workers_killed_with_their_predecessors_write_the_same_rows_as_one(
    complete_run: Path, takeover: RunCommand, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start_takeover("--view", "repository", *TWO_TASKS, "--out", out, "--workers", "2")
    wait_for(lambda: any((out / "records").glob("*/record.json")), process)
    kill_process(process)
    assert len(read_journal_rows(out, "predecessors")) < 2
    assert read_journal_rows(out, "takeovers") == []
    done = takeover("--resume", "--out", out, "--workers", "2")
    assert done.returncode == 0, done.stderr
    # If no view needs notes, none are written, and no row names a notes model.
    alone = {key: {**row, "notes_model": None} for key, row in comparable_rows(complete_run).items()}
    assert comparable_rows(out) == {key: row for key, row in alone.items() if row["view"] == "repository"}
    assert list((out / "snapshots").iterdir()) == []
    assert not (out / "report.html").exists()
    assert (complete_run / "report.html").exists()


def infer_all_changes(trace: Trace) -> tuple[Event, ...]:
    """The same events with inferred file changes, as if nothing had observed the file system."""
    files = InferredFiles(trace.workspace, keeps_directory=True)
    command: dict[str, Any] = {}
    events = []
    for event in trace.events:
        if event.kind == "action":
            command = {"tool": event.tool, "arguments": event.arguments}
            events.append(event)
            continue
        output = event.text.partition("]\n")[2] if event.text.startswith("[exit code") else event.text
        changes = (
            ()
            if event.refused
            else infer_changes(
                files, command["tool"], command["arguments"], output, event.exit_code, event.timed_out
            )
        )
        files.add_shown_text(output)
        events.append(event.model_copy(update={"changes": changes}))
    return tuple(events)


@pytest.mark.slow
def test_live_and_offline_detection_agree(complete_run: Path) -> None:
    """Observed edits and edits inferred from the same actions give the same points."""
    compared = 0
    for path in sorted((complete_run / "traces").glob("*.json")):
        (trace,) = read_traces(path)
        assert isinstance(trace, Trace)
        inferred = trace.model_copy(update={"events": infer_all_changes(trace)})
        for seen, guessed in zip(annotate_steps(trace), annotate_steps(inferred), strict=True):
            assert seen.edited_files == guessed.edited_files
            assert seen.validation == guessed.validation
            assert seen.points == guessed.points
            compared += bool(seen.points)
    assert compared >= 5
