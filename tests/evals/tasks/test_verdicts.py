from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_takeover.evals.tasks import Task, grading, load_tasks
from langgraph_takeover.evals.tasks.grading import MAX_TRIES, GradingError, Verdict, get_verdict
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxSpec

SOLVED = Verdict(resolved=True, detail="", fail_to_pass_failures=0, pass_to_pass_failures=0)


@pytest.fixture(scope="module")
def task() -> Task:
    return load_tasks("bundled", ["galley__galley-31"])[0]


@pytest.fixture
def spec(task: Task, tmp_path: Path) -> SandboxSpec:
    task.check_out(tmp_path / "work")
    return task.build_spec("process", "verdicts", tmp_path / "work")


def read_gold_patch(task: Task) -> str:
    assert task.directory is not None
    return (task.directory / "gold.patch").read_text()


def test_a_patch_is_graded_once(task: Task, spec: SandboxSpec, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    first = get_verdict(task, read_gold_patch(task), spec, logs, "one")
    assert first.resolved
    again = get_verdict(task, read_gold_patch(task), spec, logs, "two")
    assert again == first
    assert (logs / "one").is_dir()
    assert not (logs / "two").exists()


def test_every_input_of_a_verdict_is_part_of_the_cache_key(
    task: Task, spec: SandboxSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def grade_patch(*arguments: object, network: bool) -> Verdict:
        calls.append(str(arguments[1]))
        return SOLVED

    monkeypatch.setattr(grading, "grade", grade_patch)
    other = task.model_copy(update={"instance": {**task.instance, "FAIL_TO_PASS": "[]"}})
    for each, patch, network in (
        (task, "a", False),
        (task, "b", False),
        (other, "a", False),
        (task, "a", True),
    ):
        get_verdict(each, patch, spec, tmp_path, "name", network=network)
        get_verdict(each, patch, spec, tmp_path, "name", network=network)
    assert calls == ["a", "b", "a", "a"]


def test_a_truncated_verdict_is_replaced(task: Task, spec: SandboxSpec, tmp_path: Path) -> None:
    get_verdict(task, read_gold_patch(task), spec, tmp_path, "one")
    (cached,) = (tmp_path / "verdicts").iterdir()
    content = cached.read_bytes()
    cached.write_bytes(content[:-10])
    assert get_verdict(task, read_gold_patch(task), spec, tmp_path, "two").resolved
    assert cached.read_bytes() == content


@pytest.mark.parametrize(
    ("failure_count", "call_count"), [(MAX_TRIES - 1, MAX_TRIES), (MAX_TRIES, MAX_TRIES)]
)
def test_failed_gradings_are_retried(
    task: Task,
    spec: SandboxSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure_count: int,
    call_count: int,
) -> None:
    calls: list[str] = []

    def fail_first(*arguments: object, network: bool) -> Verdict:
        calls.append("")
        if len(calls) <= failure_count:
            raise GradingError("the sandbox is gone")
        return SOLVED

    monkeypatch.setattr(grading, "grade", fail_first)
    if failure_count < MAX_TRIES:
        assert get_verdict(task, "a", spec, tmp_path, "name").resolved
    else:
        with pytest.raises(GradingError):
            get_verdict(task, "a", spec, tmp_path, "name")
    assert len(calls) == call_count


def test_a_full_disk_is_not_retried(
    task: Task, spec: SandboxSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fail_on_full_disk(*arguments: object, network: bool) -> Verdict:
        calls.append("")
        raise OutOfDiskError("no space left")

    monkeypatch.setattr(grading, "grade", fail_on_full_disk)
    with pytest.raises(OutOfDiskError):
        get_verdict(task, "a", spec, tmp_path, "name")
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("fixed", "broken", "state"),
    [
        (0, 3, "behavior_broken"),
        (1, 0, "needs_completion"),
        (1, 3, "needs_completion"),  # a regression matters only once the issue is fixed
        (None, None, "needs_completion"),
    ],
)
def test_a_failing_test_of_the_issue_comes_before_a_regression(
    fixed: int | None, broken: int | None, state: str
) -> None:
    verdict = Verdict(resolved=False, detail="", fail_to_pass_failures=fixed, pass_to_pass_failures=broken)
    assert verdict.handoff_state == state
    assert verdict.failing_tests["regressions"] is (None if broken is None else broken > 0)


def test_failing_tests_are_counted(task: Task, spec: SandboxSpec, tmp_path: Path) -> None:
    solved = get_verdict(task, read_gold_patch(task), spec, tmp_path, "gold")
    assert (solved.fail_to_pass_failures, solved.pass_to_pass_failures) == (0, 0)
    other = "diff --git a/NOTE b/NOTE\nnew file mode 100644\n--- /dev/null\n+++ b/NOTE\n@@ -0,0 +1 @@\n+x\n"
    unsolved = get_verdict(task, other, spec, tmp_path, "other")
    assert unsolved.fail_to_pass_failures == len(task.instance["FAIL_TO_PASS"])
    assert unsolved.failing_tests["regressions"] is False
    unknown = get_verdict(task, "not a patch", spec, tmp_path, "none")
    assert unknown.detail == "the patch does not apply"
    assert unknown.failing_tests == dict.fromkeys(
        ("fail_to_pass_failures", "pass_to_pass_failures", "regressions")
    )
