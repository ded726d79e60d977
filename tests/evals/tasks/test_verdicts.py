from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_takeover.evals.tasks import Task, load_tasks, verdicts
from langgraph_takeover.evals.tasks.grading import GradingError, Verdict
from langgraph_takeover.evals.tasks.verdicts import MAX_TRIES, get_verdict
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxSpec


@pytest.fixture(scope="module")
def task() -> Task:
    return load_tasks("bundled", ["galley__galley-31"])[0]


@pytest.fixture
def spec(task: Task, tmp_path: Path) -> SandboxSpec:
    task.check_out(tmp_path / "work")
    return task.build_spec("process", "verdicts", tmp_path / "work")


def gold(task: Task) -> str:
    assert task.directory is not None
    return (task.directory / "gold.patch").read_text()


def test_a_patch_is_graded_once(task: Task, spec: SandboxSpec, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    first = get_verdict(task, gold(task), spec, logs, "one")
    assert first.resolved
    again = get_verdict(task, gold(task), spec, logs, "two")
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
        get_verdict(each, patch, spec, tmp_path, "name", network=network)
        get_verdict(each, patch, spec, tmp_path, "name", network=network)
    assert asked == ["a", "b", "a", "a"]


def test_a_torn_verdict_is_made_anew(task: Task, spec: SandboxSpec, tmp_path: Path) -> None:
    get_verdict(task, gold(task), spec, tmp_path, "one")
    (kept,) = (tmp_path / "verdicts").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-10])
    assert get_verdict(task, gold(task), spec, tmp_path, "two").resolved
    assert kept.read_bytes() == whole


@pytest.mark.parametrize(("fails", "tried"), [(MAX_TRIES - 1, MAX_TRIES), (MAX_TRIES, MAX_TRIES)])
def test_a_grader_that_fails_is_asked_again(
    task: Task, spec: SandboxSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, tried: int
) -> None:
    asked: list[str] = []

    def failing(*given: object, network: bool) -> Verdict:
        asked.append("")
        if len(asked) <= fails:
            raise GradingError("the machine is gone")
        return Verdict(resolved=True, detail="")

    monkeypatch.setattr(verdicts, "grade", failing)
    if fails < MAX_TRIES:
        assert get_verdict(task, "a", spec, tmp_path, "name").resolved
    else:
        with pytest.raises(GradingError):
            get_verdict(task, "a", spec, tmp_path, "name")
    assert len(asked) == tried


def test_a_full_disk_is_not_tried_again(
    task: Task, spec: SandboxSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def full(*given: object, network: bool) -> Verdict:
        asked.append("")
        raise OutOfDiskError("no space left")

    monkeypatch.setattr(verdicts, "grade", full)
    with pytest.raises(OutOfDiskError):
        get_verdict(task, "a", spec, tmp_path, "name")
    assert len(asked) == 1
