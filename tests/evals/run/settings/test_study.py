"""Selection of tasks and points for a study, its shards, and its cost estimate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from langgraph_takeover.evals.run.settings.config import POINTS, RunUsageError
from langgraph_takeover.evals.run.settings.study import ReachedPoint, choose_points, load_studies, read_shard
from langgraph_takeover.evals.tasks import Task

from ...conftest import RunCommand, assert_refused, read_rows


@pytest.fixture
def verified_parquet(real_data: Path) -> Path:
    return real_data / "data" / "swebench_verified_v5.parquet"


def points(*reached: tuple[int, str, str]) -> list[ReachedPoint]:
    return [
        ReachedPoint(Task(id=f"t{n}", instance={}), model, f"t{n}.{model}.{kind}")
        for n, model, kind in reached
    ]


def parse_plan(output: str) -> dict[str, str]:
    """The jobs of each stage in the table of a plan."""
    lines = [line.split("│")[1:-1] for line in output.splitlines() if line.startswith("│")]
    return {stage.strip(): jobs.strip() for stage, jobs, *_ in lines}


def test_the_main_study_matches_the_paper(
    verified_parquet: Path, run_main: RunCommand, tmp_path: Path
) -> None:
    done = run_main(
        "--study",
        "main",
        "--tasks",
        verified_parquet,
        "--dry-run",
        "--model",
        "openai:m",
        "--out",
        tmp_path / "o",
    )
    assert done.returncode == 0, done.stderr
    assert "75 tasks" in done.stdout
    assert "51 of 15 min - 1 hour, 24 of 1-4 hours" in done.stdout
    assert "181 (75 first_source_edit, 75 first_validation, 31 first_post_failure_edit)" in done.stdout
    jobs = parse_plan(done.stdout)
    assert jobs == {"predecessors": "75", "labels": "181", "notes": "181", "takeovers": "724", "all": "1,161"}
    assert "The run cannot start yet: openai:m: OPENAI_API_KEY is not set" in done.stdout
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(("name", "takeovers"), [("repeats", "480"), ("predecessors", "240")])
def test_the_robustness_studies(
    verified_parquet: Path, run_main: RunCommand, tmp_path: Path, name: str, takeovers: str
) -> None:
    models = [part for each in "abc" for part in ("--predecessor", f"openai:{each}")]
    predecessors = models if name == "predecessors" else ()
    done = run_main(
        "--study", name, "--tasks", verified_parquet, *predecessors, "--dry-run", "--out", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert parse_plan(done.stdout)["takeovers"] == takeovers
    assert f"points: {load_studies()[name].max_points} (" in done.stdout


def test_a_study_needs_its_own_tiers(run_main: RunCommand, tmp_path: Path) -> None:
    tasks = ("--task-ids", "galley__galley-31", "--tasks", "bundled")
    assert_refused(
        run_main("--study", "main", *tasks, "--out", tmp_path / "out"),
        "task galley__galley-31 has difficulty '<15 min fix', but the study requires 15 min - 1 hour or 1-4 hours",
    )
    assert_refused(
        run_main("--study", "mian", "--out", tmp_path / "out"),
        "unknown study 'mian' (use main, repeats, predecessors)",
    )


def test_tasks_are_listed_one_per_line(run_main: RunCommand) -> None:
    done = run_main("--list-tasks", "--shard", "2/6")
    whole = run_main("--list-tasks").stdout.split()
    assert len(whole) == 12
    assert done.stdout.split() == whole[1::6]


@pytest.mark.parametrize(
    ("text", "parts"), [("2/8", {2}), ("1-3/8", {1, 2, 3}), ("1,5-6/8", {1, 5, 6}), ("1/1", {1})]
)
def test_shards(text: str, parts: set[int]) -> None:
    shard = read_shard(text)
    assert shard.parts == parts
    assert shard.select(range(20)) == tuple(n for n in range(20) if n % shard.total + 1 in parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", r"invalid shard .* \(use 2/8"),
        ("0/4", "counted from 1 to 4"),
        ("5/4", "counted from 1 to 4"),
        ("1-3,3/8", "names part 3 twice"),
        ("3-1/4", "counted from 1 to 4"),
        ("1--2/4", "neither a number nor a range"),
        ("1/0", "counted from 1 to 0"),
    ],
)
def test_invalid_shards(text: str, expected: str) -> None:
    with pytest.raises(RunUsageError, match=expected):
        read_shard(text)


def test_points_are_chosen_evenly_by_kind() -> None:
    reached = points(*((n, "m", kind) for n in range(10) for kind in (POINTS if n < 4 else POINTS[:2])))
    found = choose_points(reached, 10)
    assert Counter(point.kind for point in found) == {POINTS[0]: 4, POINTS[1]: 3, POINTS[2]: 3}
    assert {point.task.id for point in found} == {"t0", "t1", "t2", "t3"}
    assert choose_points(reached, 10) == found
    assert choose_points(reached, None) == choose_points(reached, 100) == tuple(reached)
    assert len(choose_points(reached, 23)) == 23


def test_points_reached_by_all_predecessors_come_first() -> None:
    reached = points(
        (0, "a", POINTS[0]),
        *((1, model, POINTS[0]) for model in "abc"),
        *((2, model, POINTS[0]) for model in "ab"),
        *((3, model, POINTS[1]) for model in "abc"),
    )
    found = choose_points(reached, 6)
    assert Counter((point.task.id, point.kind) for point in found) == {
        ("t1", POINTS[0]): 3,
        ("t3", POINTS[1]): 3,
    }


@pytest.mark.slow
def test_merged_shards_equal_the_whole(run_main: RunCommand, tmp_path: Path) -> None:
    arguments = (
        "--task-ids",
        "galley__galley-31,harbor__harbor-5",
        "--view",
        "repository",
        "--points",
        "first_source_edit",
    )
    for shard in ("1/2", "2/2"):
        assert run_main(*arguments, "--shard", shard, "--out", tmp_path / shard[0]).returncode == 0
    ids = [{row["task_id"] for row in read_rows(tmp_path / part)} for part in "12"]
    assert ids == [{"galley__galley-31"}, {"harbor__harbor-5"}]


def test_stages_run_one_by_one(run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = (
        "--task-ids",
        "galley__galley-31",
        "--view",
        "structured",
        "--points",
        "first_source_edit",
        "--out",
        out,
    )
    assert run_main(*one, "--stages", "predecessors").returncode == 0
    assert [len(read_rows(out, name)) for name in ("predecessors", "labels", "notes", "takeovers")] == [
        1,
        0,
        0,
        0,
    ]
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
    done = run_main(
        *(
            *one,
            "--from",
            first,
            "--successor",
            "builtin:oracle+0.001s",
            "--repeats",
            "2",
            "--max-steps",
            "60",
        ),
        *("--out", second),
    )
    assert done.returncode == 0, done.stderr
    assert "Reused predecessors ran with other limits: --max-steps 500 (successors: 60)." in done.stdout
    assert "predecessors reused from" in done.stdout
    assert "predecessors: galley" not in done.stdout
    for stage in ("predecessors", "labels", "notes"):
        assert read_rows(first, stage) == read_rows(second, stage)
    assert {row["digest"] for row in read_rows(first)} == {row["digest"] for row in read_rows(second)}
    assert len(read_rows(second)) == 2 * len(read_rows(first))
    assert all(row["resolved"] for row in read_rows(second))
    assert_refused(
        run_main(*one, "--from", first, "--points", "first_validation", "--out", tmp_path / "third"),
        f"--from: {first} ran with --points",
    )
    assert_refused(
        run_main(*one, "--from", tmp_path, "--out", tmp_path / "third"),
        f"--from: {tmp_path} is not the directory of a takeover run",
    )


@pytest.mark.slow
def test_several_predecessors_and_successors_in_one_run(run_main: RunCommand, tmp_path: Path) -> None:
    out, models = tmp_path / "out", ("builtin:oracle", "builtin:oracle+0.001s")
    arguments = [part for name in models for part in ("--predecessor", name, "--successor", name)]
    one = ("--task-ids", "galley__galley-31", "--view", "repository", "--points", "first_source_edit")
    assert run_main(*one, *arguments, "--out", out).returncode == 0
    assert {row["predecessor"] for row in read_rows(out, "predecessors")} == set(models)
    assert len({row["record_id"] for row in read_rows(out, "labels")}) == 2
    assert Counter((row["predecessor"], row["successor"]) for row in read_rows(out)) == {
        (one, other): 1 for one in models for other in models
    }
    assert len({row["trace"] for row in read_rows(out)}) == 4
