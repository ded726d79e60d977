from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from langgraph_takeover.evals.run.execution.task_checks import check_tasks
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.tasks import TaskSourceError

from ...conftest import RunCommand, assert_refused, read_rows, start_takeover, wait_for
from ...models.test_recordings import write_recording
from ...tasks.shop_task import FIXED, KEPT, Shop

ORACLE = ("builtin:oracle",)
CHECKING = "checking 1 task with the gold patch and without\n"


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEOVER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def check(shop: Shop, *, requested: bool | None = None, tasks: str = "", study: str | None = None) -> None:
    config = RunConfig(
        run_id="checked",
        views=("repository",),
        predecessors=ORACLE,
        successors=ORACLE,
        tasks=tasks or str(shop.source),
        study=study,
        sandbox="process",
    )
    check_tasks(config, (shop.load(),), 1, requested=requested)


@pytest.mark.slow
def test_a_task_is_checked_once_per_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path)
    check(shop)
    assert capsys.readouterr().out == CHECKING
    check(shop)
    shop.rewrite("eval.sh", "\n", "\r\n")
    check(shop, requested=True)
    assert capsys.readouterr().out == ""
    shop.rewrite("eval.sh", "unittest -v", "unittest -v -b")
    check(shop)
    with (shop.directory / "repo.fast-export").open("a") as stream:
        stream.write("progress changed\n")
    check(shop)
    assert capsys.readouterr().out == 2 * CHECKING


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "eval.sh",
            "python3 -m",
            "nosuchrunner",
            "its gold patch cannot be graded: the tests printed no .*nosuch",
        ),
        (
            "eval.sh",
            "python3 -m unittest -v test_till",
            f"echo '{KEPT} ... ok'",
            "0 of 1 FAIL_TO_PASS, 0 regr",
        ),
        ("gold.patch", "max(", "most(", "its gold patch is not resolved: the patch does not apply"),
        ("gold.patch", "+    return sum(prices)", "+    return 0", "its gold patch is not resolved: 0 of 1"),
        (
            "eval.sh",
            "python3 -m unittest -v test_till",
            f"echo '{KEPT} ... ok'; echo '{FIXED} ... ok'",
            "it is resolved without any patch: 1 of 1",
        ),
        (
            "repo.fast-export",
            "commit refs",
            "comit refs",
            "its repository cannot be checked out: .*fast-import",
        ),
        ("tests.json", FIXED, "test_misspelt (a.B.test_misspelt)", "its gold patch is not resolved: 0 of 1"),
    ],
)
def test_a_task_that_cannot_be_graded_is_refused(
    tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    shop = Shop(tmp_path)
    shop.rewrite(file, old, new)
    for _ in range(2):
        with pytest.raises(
            TaskSourceError, match=rf"^task shop__shop-1: .*{message}.*--no-check-tasks\)$"
        ) as error:
            check(shop)
    if file == "repo.fast-export":
        assert not list(tmp_path.glob("takeover-check-*"))
    else:
        logs = Path(str(error.value).partition("(logs: ")[2].partition(";")[0])
        assert (logs / "shop__shop-1.gold").is_dir()
        assert not (logs.parent / ".repositories").exists()
    check(shop, requested=False)


def test_tests_that_need_the_fix_to_start_pass_the_check(tmp_path: Path) -> None:
    shop = Shop(tmp_path, run="grep -q sum till.py && python3 -m unittest -v test_till")
    check(shop)


def test_a_task_without_gold_patch_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path)
    (shop.directory / "gold.patch").write_text("\n")
    with pytest.raises(TaskSourceError, match=r"no gold patch to check the grader with \(add it as 'patch'"):
        check(shop, requested=True)
    check(shop)
    output = capsys.readouterr()
    assert output.out == CHECKING
    assert output.err.startswith("warning: task shop__shop-1: no gold patch")


def test_published_tasks_are_checked_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, run="nosuchrunner")
    check(shop, tasks="owner/dataset")
    check(shop, study="main")
    assert capsys.readouterr().out == ""
    for study in (None, "agents"):
        with pytest.raises(TaskSourceError):
            check(shop, study=study)
    with pytest.raises(TaskSourceError):
        check(shop, tasks="owner/dataset", requested=True)


@pytest.mark.slow
def test_a_run_that_was_stopped_during_its_check_is_started_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, run="sleep 60")
    replay = f"replay:{write_recording(tmp_path / 'run.traj.json', ('true', 0, ''))}"
    agents = ("--predecessor", replay, "--successor", replay, "--view", "repository")
    where = ("--sandbox", "process", "--allow-unisolated", "--out", tmp_path / "out")
    process = start_takeover("--tasks", shop.source, *agents, *where, TMPDIR=str(tmp_path))
    wait_for(lambda: list(tmp_path.glob("takeover-check-*/grading/*")), process)
    process.terminate()
    output, error = process.communicate(timeout=100)
    assert (process.returncode, output) == (143, CHECKING)
    assert error == "terminated; the run had not started. Enter the same command again.\n"
    assert not (tmp_path / "out").exists()


def test_a_run_starts_only_with_tasks_that_pass(run_main: RunCommand, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    recording = write_recording(
        tmp_path / "run.traj.json",
        ("sed -i 's/max(.*)/0/' till.py", 0, ""),
        ("python3 test_till.py", 0, "OK\n"),
    )

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        replay = f"replay:{recording}"
        agents = ("--predecessor", replay, "--successor", replay, "--view", "repository")
        where = ("--sandbox", "process", "--allow-unisolated", "--out", str(tmp_path / "out"))
        return run_main(
            "--tasks", str(shop.source), *agents, "--points", "first_source_edit", *where, *options
        )

    shop.rewrite("eval.sh", "python3 -m", "nosuchrunner")
    assert_refused(run(), "task shop__shop-1: its gold patch cannot be graded: the tests printed no readable")
    assert not (tmp_path / "out").exists()
    done = run("--no-check-tasks")
    assert done.returncode == 3, done.stderr
    assert [row["outcome"] for row in read_rows(tmp_path / "out", "labels")] == ["infrastructure_failure"]
    (row,) = read_rows(tmp_path / "out")
    assert (row["outcome"], row["resolved"]) == ("infrastructure_failure", None)
    assert "the gold patch has no result either, so the grader failed" in row["detail"]
