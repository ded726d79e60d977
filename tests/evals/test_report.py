"""The report of one run or several, from the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from langgraph_takeover.evals.run.journal import read_export
from langgraph_takeover.evals.run.rows import STAGES, Takeover

from .conftest import RunCommand, assert_refused, rewrite_rows


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def cut(published: Path, out: Path, tasks: Iterable[str]) -> Path:
    """A shard: the rows of a run of these tasks alone."""
    shutil.copytree(published, out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"run_id": out.name, "task_ids": list(tasks)}))
    for stage in STAGES:
        rewrite_rows(
            out,
            lambda row: row if (row.get("task_id") or row["record_id"].partition(".")[0]) in tasks else None,
            stage,
        )
    return out


@pytest.mark.slow
def test_a_run_ends_with_its_report(complete_run: Path) -> None:
    assert len(files(complete_run / "tables")) == 3 * 18 + 1
    assert {"accuracy_effort.svg", "changes.png", "tokens.svg"} <= set(files(complete_run / "plots"))


@pytest.mark.slow
def test_a_report_is_rebuilt_from_the_journal(
    complete_run: Path, tmp_path: Path, run_report: RunCommand
) -> None:
    out = Path(
        shutil.copytree(
            complete_run, tmp_path / "out", ignore=shutil.ignore_patterns("snapshots", ".*", "*-shm", "*-wal")
        )
    )
    before = {name: files(out / name) for name in ("tables", "plots")}
    rows = (out / "takeovers.jsonl").read_bytes()
    summary = json.loads((out / "summary.json").read_text())
    for name in before:
        shutil.rmtree(out / name)
    for stage in STAGES:
        (out / f"{stage}.jsonl").unlink()
    done = run_report(out)
    assert done.returncode == 0, done.stderr
    for line in (
        "repository",
        "No LLM: builtin:oracle",
        f"tables: {out / 'tables'}",
        f"plots: {out / 'plots'}",
    ):
        assert line in done.stdout
    assert {name: files(out / name) for name in before} == before
    assert (out / "takeovers.jsonl").read_bytes() == rows
    assert json.loads((out / "summary.json").read_text()) == summary


def rows_of(out: Path) -> list[str]:
    rows, torn = read_export(out / "takeovers.jsonl", Takeover)
    assert not torn
    return sorted(row.model_dump_json() for row in rows)


@pytest.mark.slow
def test_merged_shards_equal_the_whole(published_rows: Path, tmp_path: Path, run_report: RunCommand) -> None:
    config = json.loads((published_rows / "config.json").read_text())
    (published_rows / "config.json").write_text(json.dumps(config | {"inputs": {"tasks": {}}}))
    shards = [
        cut(published_rows, tmp_path / "b", ("two__two-2", "five__five-5")),
        cut(published_rows, tmp_path / "a", ("one__one-1", "three__three-3", "four__four-4")),
    ]
    whole = tmp_path / "whole"
    assert run_report(published_rows, "--out", whole).returncode == 3
    merged = tmp_path / "merged"
    done = run_report(*shards, "--out", merged)
    assert done.returncode == 3, done.stderr
    assert files(merged / "tables") == files(whole / "tables")
    assert files(merged / "plots") == files(whole / "plots")
    assert rows_of(merged) == rows_of(published_rows)
    summary = json.loads((merged / "summary.json").read_text())
    assert summary["run_id"] == "b+a"
    assert (summary["views"]["trace"]["graded"], summary["views"]["trace"]["runs"]) == (13, 11)


@pytest.mark.slow
def test_infrastructure_failures_are_reported_and_set_the_exit_code(
    published_rows: Path, run_report: RunCommand
) -> None:
    done = run_report(published_rows)
    assert done.returncode == 3
    assert (
        "infrastructure failure: three__three-3 three__three-3.first_source_edit structured: the endpoint"
        in (" ".join(done.stdout.split()))
    )
    assert "of all 2 successors" in done.stdout
    assert "no plot of tokens: no trace has token counts" in done.stdout


@pytest.mark.slow
def test_a_torn_last_line_causes_a_warning_and_is_kept(published_rows: Path, run_report: RunCommand) -> None:
    path = published_rows / "takeovers.jsonl"
    path.write_text(path.read_text()[:-9])
    torn = path.read_bytes()
    done = run_report(published_rows)
    assert "warning:" in done.stdout
    assert "its last line is incomplete and ignored" in " ".join(done.stdout.split())
    assert path.read_bytes() == torn
    assert json.loads((published_rows / "summary.json").read_text())["warnings"]


@pytest.mark.slow
def test_a_merged_report_names_the_differences_of_its_runs(
    published_rows: Path, tmp_path: Path, run_report: RunCommand
) -> None:
    first = cut(published_rows, tmp_path / "a", ("one__one-1",))
    second = cut(published_rows, tmp_path / "b", ("two__two-2",))
    config = json.loads((second / "config.json").read_text())
    (second / "config.json").write_text(json.dumps(config | {"max_steps": 40}))
    run_report(first, second, "--out", tmp_path / "out")
    for table in (tmp_path / "out" / "tables").glob("*.md"):
        assert "differ in these settings: max\\_steps" in table.read_text()


def test_unreportable_runs_are_one_clear_line(
    published_rows: Path, tmp_path: Path, run_report: RunCommand
) -> None:
    assert_refused(
        run_report(tmp_path / "nowhere"), "nowhere: not the directory of a run: config.json not found"
    )
    assert_refused(
        run_report(published_rows, published_rows), "--out: required for the report of several runs"
    )
    assert_refused(
        run_report(published_rows, published_rows, "--out", tmp_path / "out"), "both contain the takeover"
    )
    other = Path(shutil.copytree(published_rows, tmp_path / "other"))
    assert_refused(
        run_report(published_rows, "--out", other), "contains another run (choose another directory)"
    )
    (tmp_path / "file").write_text("")
    assert_refused(
        run_report(published_rows, "--out", tmp_path / "file" / "out"),
        "not a directory (choose another directory by --out",
    )
    (published_rows / "takeovers.jsonl").write_text("no row\n")
    assert_refused(run_report(published_rows), "takeovers.jsonl: line 1 is not JSON")
