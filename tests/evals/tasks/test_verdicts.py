from __future__ import annotations

from pathlib import Path

import pytest

from evals.tasks import Task, load_tasks, verdicts
from evals.tasks.grading import GradingFailed, Verdict
from evals.tasks.verdicts import TRIES, verdict_on
from sandbox.machine import OutOfDisk, SandboxSpec


@pytest.fixture(scope="module")
def task() -> Task:
    return load_tasks("bundled", ["galley__galley-31"])[0]


@pytest.fixture
def spec(task: Task, tmp_path: Path) -> SandboxSpec:
    task.check_out(tmp_path / "work")
    return task.spec("process", "verdicts", tmp_path / "work")


def gold(task: Task) -> str:
    assert task.directory is not None
    return (task.directory / "gold.patch").read_text()


def test_a_patch_is_graded_once(task: Task, spec: SandboxSpec, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    first = verdict_on(task, gold(task), spec, logs, "one")
    assert first.resolved
    again = verdict_on(task, gold(task), spec, logs, "two")
    assert again == first
    assert (logs / "one").is_dir()
    assert not (logs / "two").exists()


def test_what_a_verdict_depends_on_makes_it_new(
    task: Task, spec: SandboxSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def graded(*given: object, network: bool) -> Verdict:
        asked.append(str(given[1]))
        return Verdict(resolved=True, detail="")

    monkeypatch.setattr(verdicts, "grade", graded)
    other = task.model_copy(update={"instance": {**task.instance, "FAIL_TO_PASS": "[]"}})
    for each, patch, network in (
        (task, "a", False),
        (task, "b", False),
        (other, "a", False),
        (task, "a", True),
    ):
        verdict_on(each, patch, spec, tmp_path, "name", network=network)
        verdict_on(each, patch, spec, tmp_path, "name", network=network)
    assert asked == ["a", "b", "a", "a"]


def test_a_torn_verdict_is_made_anew(task: Task, spec: SandboxSpec, tmp_path: Path) -> None:
    verdict_on(task, gold(task), spec, tmp_path, "one")
    (kept,) = (tmp_path / "verdicts").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-10])
    assert verdict_on(task, gold(task), spec, tmp_path, "two").resolved
    assert kept.read_bytes() == whole


@pytest.mark.parametrize(("fails", "tried"), [(TRIES - 1, TRIES), (TRIES, TRIES)])
def test_a_grader_that_fails_is_asked_again(
    task: Task, spec: SandboxSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, tried: int
) -> None:
    asked: list[str] = []

    def failing(*given: object, network: bool) -> Verdict:
        asked.append("")
        if len(asked) <= fails:
            raise GradingFailed("the machine is gone")
        return Verdict(resolved=True, detail="")

    monkeypatch.setattr(verdicts, "grade", failing)
    if fails < TRIES:
        assert verdict_on(task, "a", spec, tmp_path, "name").resolved
    else:
        with pytest.raises(GradingFailed):
            verdict_on(task, "a", spec, tmp_path, "name")
    assert len(asked) == tried


def test_a_full_disk_is_not_tried_again(
    task: Task, spec: SandboxSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def full(*given: object, network: bool) -> Verdict:
        asked.append("")
        raise OutOfDisk("no space left")

    monkeypatch.setattr(verdicts, "grade", full)
    with pytest.raises(OutOfDisk):
        verdict_on(task, "a", spec, tmp_path, "name")
    assert len(asked) == 1
