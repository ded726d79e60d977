"""Comparison of two runs, takeover by takeover."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.handoff.records.record import EditedFile, HandoffRecord, TaskBrief, to_json
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint

from .conftest import RunCommand, assert_refused, rewrite_rows

CHANGED, EQUAL = "one__one-1.first_validation", "two__two-2.first_validation"
MADE_ANEW = (CHANGED, EQUAL, "three__three-3.first_source_edit")
FLIPPED = ("one__one-1.first_source_edit", "repository", "openai:alpha", 1)


def save_record(out: Path, record_id: str, **fields: Any) -> None:
    """Save a record of one event; each is made at another time."""
    task, _, kind = record_id.partition(".")
    event = Event(index=0, kind="observation", tool="shell", text="ran", seconds=time.monotonic())
    settings: dict[str, Any] = {
        "task": TaskBrief(id=task, prompt="Fix it.", base_commit="c", base_directories=("src",)),
        "point": HandoffPoint(kind=kind, event_index=0, detail="sed"),
        "patch": "+fixed\n",
        "files": ("src/a.py",),
        "created_at": str(time.time()),
    }
    record = HandoffRecord(
        id=record_id,
        predecessor="openai:first",
        snapshot=None,
        thread_id=f"predecessor.{task}",
        checkpoint_id="",
        trace=(event,),
        **(settings | fields),
    ).seal()
    directory = out / "records" / record_id
    directory.mkdir(parents=True)
    (directory / "record.json").write_text(to_json(record, exclude={"notes", "review", "envelope"}))


@pytest.fixture
def later(published_rows: Path, tmp_path: Path) -> Path:
    """The same takeovers with 10 % fewer events, one more resolved, and one view of beta missing."""
    rewrite_rows(published_rows, lambda row: row | {"events": 10 * row["events"]} if "events" in row else row)
    out = Path(shutil.copytree(published_rows, tmp_path / "later"))

    def change_row(row: dict[str, Any]) -> dict[str, Any] | None:
        if (row["view"], row["successor"]) == ("summary", "openai:beta"):
            return None
        if row["outcome"] != "graded":
            return row
        key = (row["record_id"], row["view"], row["successor"], row["repeat"])
        other = {"events": row["events"] * 9 // 10, "prompts": "new", "digest": row["digest"]}
        if row["record_id"] in MADE_ANEW:
            other["digest"] = "sha256:anew"
        return row | other | ({"resolved": not row["resolved"]} if key == FLIPPED else {})

    rewrite_rows(out, change_row)
    for run in (published_rows, out):
        save_record(run, EQUAL)
        save_record(run, CHANGED, patch=f"+{run.name}\n")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"run_id": "ffffffff", "max_steps": 250}))
    return out


def test_differences_are_one_object(published_rows: Path, later: Path, run_compare: RunCommand) -> None:
    done = run_compare(published_rows, later, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    views = {view["view"]: view for view in report["views"]}
    assert list(views) == ["repository", "trace", "summary", "structured"]
    repository, summary = views["repository"], views["summary"]
    assert (repository["pairs"], repository["only_before"], repository["only_after"]) == (13, 0, 0)
    assert (summary["pairs"], summary["only_before"], summary["only_after"]) == (6, 6, 0)
    assert views["structured"]["pairs"] == 11  # an infrastructure failure on both sides is no pair
    change = repository["events"]["mean_change"]
    assert (change["value"], *change["interval"].values()) == pytest.approx((-0.1, -0.1, -0.1))
    assert repository["events"]["change_of_medians"] == pytest.approx(-0.1)
    assert (repository["events"]["before"], repository["events"]["after"]) == (400, 360)
    tokens = repository["prompt_tokens"]["mean_change"]
    assert (tokens["pairs"], tokens["excluded"], tokens["value"]) == (12, 1, 0)
    assert (repository["solved_before"], repository["solved_after"]) == (8, 7)
    assert repository["solved"]["value"] == pytest.approx(-1 / 13)
    assert repository["test"] == {"gained": 0, "lost": 1, "p": 1.0}
    assert report["flips"] == [
        dict(zip(("record_id", "view", "successor", "repeat", "is_solved"), (*FLIPPED, False), strict=True))
    ]
    assert (report["records"], report["changed_records"]) == (6, [CHANGED])
    assert report["unknown_records"] == ["three__three-3.first_source_edit"]
    assert report["settings"] == {"max_steps": [500, 250]}
    assert report["prompts"] == {"takeovers": [["49be8a5944c4"], ["new"]]}


def test_differences_are_a_table_for_people(
    published_rows: Path, later: Path, run_compare: RunCommand
) -> None:
    done = run_compare(published_rows, later)
    assert done.returncode == 0, done.stderr
    for line in (
        "400 → 360 (-10.0 %)",
        "-10.0 % [-10.0, -10.0]",
        "summary: 6 only in the earlier run, 0 only in the later",
        "no longer solved: one__one-1.first_source_edit, repository, openai:alpha, repeat 1",
        f"1 of 6 records have another handoff point, patch or files: {CHANGED}",
        "1 of 6 records may differ, but are not in both directories: three__three-3.first_source_edit",
        "setting max_steps: 500 → 250",
        "prompts of takeovers: 49be8a5944c4 → new",
    ):
        assert line in done.stdout


def test_changed_inputs_are_named(published_rows: Path, later: Path, run_compare: RunCommand) -> None:
    for out, tests in ((published_rows, "tests:1"), (later, "tests:2")):
        config = json.loads((out / "config.json").read_text())
        inputs = {"tasks": {"one__one-1": f"statement:1 {tests}"}}
        (out / "config.json").write_text(json.dumps(config | {"inputs": inputs}))
    done = run_compare(published_rows, later)
    assert "1 of the inputs of both runs differ: the tests of task one__one-1" in done.stdout
    assert "setting inputs" not in done.stdout


def test_a_run_does_not_differ_from_itself(published_rows: Path, run_compare: RunCommand) -> None:
    report = json.loads(run_compare(published_rows, published_rows, "--json").stdout)
    assert report["flips"] == report["changed_records"] == report["unknown_records"] == []
    assert report["settings"] == report["prompts"] == {}
    assert all(view["events"]["mean_change"]["value"] == 0 for view in report["views"])
    assert all(view["test"]["p"] == 1 for view in report["views"])


@pytest.mark.parametrize(
    ("fields", "is_changed"),
    [
        ({}, False),
        ({"files": ("src/a.py", "notes.md")}, True),
        ({"edited_files": (EditedFile(path="src/a.py", sha256="0" * 64, content="fixed"),)}, True),
        ({"point": HandoffPoint(kind="first_validation", event_index=0, detail="pytest")}, True),
    ],
    ids=["times", "files", "content", "point"],
)
def test_records_of_equal_runs_are_equal(
    published_rows: Path, tmp_path: Path, run_compare: RunCommand, fields: dict[str, Any], is_changed: bool
) -> None:
    other = Path(shutil.copytree(published_rows, tmp_path / "other"))
    rewrite_rows(
        other,
        lambda row: row | {"digest": "sha256:anew"} if row["record_id"] == EQUAL else row,
    )
    save_record(published_rows, EQUAL)
    save_record(other, EQUAL, **fields)
    report = json.loads(run_compare(published_rows, other, "--json").stdout)
    assert report["changed_records"] == ([EQUAL] if is_changed else [])
    assert report["unknown_records"] == []


def test_incomparable_runs_are_one_clear_line(
    published_rows: Path, tmp_path: Path, run_compare: RunCommand
) -> None:
    other = Path(shutil.copytree(published_rows, tmp_path / "other"))
    rewrite_rows(other, lambda row: row | {"successor": f"{row['successor']}-2"})
    assert_refused(
        run_compare(published_rows, other), "successor differs (openai:alpha, openai:beta and openai:alpha-2"
    )
    assert_refused(run_compare(published_rows, tmp_path / "nowhere"), "nowhere: not the directory of a run")
    rewrite_rows(other, lambda row: None)
    assert_refused(run_compare(published_rows, other), "the runs share no graded takeover: record_id differs")
