"""Selection of tasks and points for a study, its shards, and its cost estimate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ...conftest import RunCommand, assert_refused, read_rows


@pytest.fixture
def verified_parquet(real_data: Path) -> Path:
    return real_data / "data" / "swebench_verified_v5.parquet"


def parse_plan(output: str) -> dict[str, str]:
    """The jobs of each stage in the table of a plan."""
    lines = [line.split("│")[1:-1] for line in output.splitlines() if line.startswith("│")]
    return {stage.strip(): jobs.strip() for stage, jobs, *_ in lines}


def run_dry(run_main: RunCommand, parquet: Path, *arguments: str | Path) -> str:
    done = run_main("--tasks", parquet, "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_main_study_matches_the_paper(
    verified_parquet: Path, run_main: RunCommand, tmp_path: Path
) -> None:
    successors = [part for each in "abc" for part in ("--successor", f"openai:{each}")]
    options = ("--study", "main", "--model", "openai:m", *successors, "--out", tmp_path / "o")
    out = run_dry(run_main, verified_parquet, *options)
    assert "75 tasks" in out
    assert "51 of 15 min - 1 hour, 24 of 1-4 hours" in out
    assert "181 (75 first_source_edit, 75 first_validation, 31 first_post_failure_edit)" in out
    assert "prompt: paper; sandbox: docker, grading with network" in out
    jobs = {"predecessors": "75", "labels": "181", "notes": "181", "takeovers": "2,172", "all": "2,609"}
    assert parse_plan(out) == jobs
    assert "The run cannot start yet: openai:m: OPENAI_API_KEY is not set" in out
    assert not (tmp_path / "o").exists()


def test_the_study_of_repeats_chooses_points_by_state(
    verified_parquet: Path, run_main: RunCommand, tmp_path: Path
) -> None:
    options = ("--study", "repeats", "--model", "openai:m", "--out", tmp_path / "o")
    out = run_dry(run_main, verified_parquet, *options)
    kinds = "15 first_source_edit, 15 first_validation, 10 first_post_failure_edit"
    assert f"points: 40 ({kinds}), selected from 181" in out
    jobs = parse_plan(out)
    # 40 points, 4 views, 3 repeats; states are known only once all points have labels.
    assert jobs == {"predecessors": "75", "labels": "181", "notes": "40", "takeovers": "480", "all": "776"}


@pytest.mark.parametrize(("models", "points", "takeovers"), [("abc", 180, "720"), ("a", 60, "240")])
def test_the_study_of_predecessors_takes_60_points_of_each(
    verified_parquet: Path, run_main: RunCommand, tmp_path: Path, models: str, points: int, takeovers: str
) -> None:
    predecessors = [part for each in models for part in ("--predecessor", f"openai:{each}")]
    options = ("--study", "predecessors", *predecessors, "--successor", "openai:a", "--out", tmp_path / "o")
    out = run_dry(run_main, verified_parquet, *options)
    assert f"points: {points} (" in out
    assert parse_plan(out)["takeovers"] == takeovers


def test_a_higher_limit_adds_the_next_tasks_of_the_order(
    verified_parquet: Path, run_main: RunCommand, tmp_path: Path
) -> None:
    listed = ("--study", "main", "--list-tasks", "--out", tmp_path / "o")
    chosen = run_dry(run_main, verified_parquet, *listed).split()
    more = run_dry(run_main, verified_parquet, *listed, "--limit", "80").split()
    assert len(chosen) == 75
    assert more[:75] == chosen
    assert more[75:77] == ["astropy__astropy-14508", "sympy__sympy-16597"]
    assert run_dry(run_main, verified_parquet, *listed, "--limit", "3").split() == chosen[:3]


def test_a_study_can_be_run_with_other_settings(
    verified_parquet: Path, run_main: RunCommand, tmp_path: Path
) -> None:
    other = ("--quota", "already_solved=5", "--model", "openai:m")
    out = run_dry(run_main, verified_parquet, "--study", "predecessors", *other, "--out", tmp_path / "o")
    assert "points: 5 (" in out
    other = ("--max-points", "6", "--model", "openai:m")
    out = run_dry(run_main, verified_parquet, "--study", "repeats", *other, "--out", tmp_path / "o")
    assert "points: 6 (" in out
    own = ("--prompt", "short", "--no-grading-network", "--max-points", "7", "--model", "openai:m")
    out = run_dry(run_main, verified_parquet, "--study", "predecessors", *own, "--out", tmp_path / "o")
    assert "points: 7 (" in out
    assert "prompt: short; sandbox: docker, grading without network" in out


def test_a_study_needs_its_own_tiers(run_main: RunCommand, tmp_path: Path) -> None:
    tasks = ("--task-ids", "galley__galley-31", "--tasks", "bundled")
    says = "has difficulty '<15 min fix', but the study requires 15 min - 1 hour or 1-4 hours"
    done = run_main("--study", "main", *tasks, "--out", tmp_path / "out")
    assert_refused(done, f"task galley__galley-31 {says}")
    done = run_main("--study", "mian", "--out", tmp_path / "out")
    assert_refused(done, "unknown study 'mian' (use main, repeats, predecessors, agents)")


def test_tasks_are_listed_one_per_line(run_main: RunCommand) -> None:
    done = run_main("--list-tasks", "--shard", "2/6")
    whole = run_main("--list-tasks").stdout.split()
    assert len(whole) == 12
    assert done.stdout.split() == whole[1::6]


@pytest.mark.slow
def test_merged_shards_equal_the_whole(run_main: RunCommand, tmp_path: Path) -> None:
    tasks = ("--task-ids", "galley__galley-31,harbor__harbor-5")
    arguments = (*tasks, "--view", "repository", "--points", "first_source_edit")
    for shard in ("1/2", "2/2"):
        assert run_main(*arguments, "--shard", shard, "--out", tmp_path / shard[0]).returncode == 0
    ids = [{row["task_id"] for row in read_rows(tmp_path / part)} for part in "12"]
    assert ids == [{"galley__galley-31"}, {"harbor__harbor-5"}]


@pytest.mark.slow
def test_stages_run_one_by_one(run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = ("--task-ids", "galley__galley-31", "--view", "structured", "--points", "first_source_edit")
    assert run_main(*one, "--out", out, "--stages", "predecessors").returncode == 0
    assert len(read_rows(out, "predecessors")) == 1
    assert [read_rows(out, name) for name in ("labels", "notes", "takeovers")] == [[], [], []]
    left = run_main("--resume", "--out", out, "--dry-run")
    assert "points: 1 (1 first_source_edit)\n" in left.stdout
    assert "Estimates: medians of this run's predecessors (1)" in left.stdout
    assert run_main("--resume", "--out", out, "--stages", "notes,labels").returncode == 0
    assert [len(read_rows(out, name)) for name in ("labels", "notes", "takeovers")] == [1, 1, 0]
    assert run_main("--resume", "--out", out).returncode == 0
    assert len(read_rows(out)) == 2
    assert_refused(run_main("--resume", "--out", out, "--stages", "some"), "--stages: unknown stage 'some'")


@pytest.mark.slow
def test_records_of_an_earlier_run_are_reused(run_main: RunCommand, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    one = ("--task-ids", "galley__galley-31", "--view", "structured", "--notes-model", "builtin:oracle")
    assert run_main(*one, "--out", first).returncode == 0
    other = ("--successor", "builtin:oracle+0.001s", "--repeats", "2", "--max-steps", "60")
    done = run_main(*one, "--from", first, *other, "--out", second)
    assert done.returncode == 0, done.stderr
    assert "Reused predecessors ran with other limits: --max-steps 500 (successors: 60)." in done.stdout
    assert "predecessors reused from" in done.stdout
    assert "predecessors: galley" not in done.stdout
    for stage in ("predecessors", "labels", "notes"):
        assert read_rows(first, stage) == read_rows(second, stage)
    assert {row["digest"] for row in read_rows(first)} == {row["digest"] for row in read_rows(second)}
    assert len(read_rows(second)) == 2 * len(read_rows(first))
    assert all(row["resolved"] for row in read_rows(second))
    third = ("--out", tmp_path / "third")
    done = run_main(*one, "--from", first, "--points", "first_validation", *third)
    assert_refused(done, f"--from: {first} ran with --points")
    done = run_main(*one, "--from", tmp_path, *third)
    assert_refused(done, f"--from: {tmp_path} is not the directory of a takeover run")


@pytest.mark.slow
def test_several_predecessors_and_successors_in_one_run(run_main: RunCommand, tmp_path: Path) -> None:
    out, models = tmp_path / "out", ("builtin:oracle", "builtin:oracle+0.001s")
    arguments = [part for name in models for part in ("--predecessor", name, "--successor", name)]
    one = ("--task-ids", "galley__galley-31", "--view", "repository", "--points", "first_source_edit")
    assert run_main(*one, *arguments, "--out", out).returncode == 0
    assert {row["predecessor"] for row in read_rows(out, "predecessors")} == set(models)
    assert len({row["record_id"] for row in read_rows(out, "labels")}) == 2
    pairs = Counter((row["predecessor"], row["successor"]) for row in read_rows(out))
    assert pairs == {(one, other): 1 for one in models for other in models}
    assert len({row["trace"] for row in read_rows(out)}) == 4
