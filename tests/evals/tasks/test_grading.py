from __future__ import annotations

from pathlib import Path

import pytest
from tenacity import stop_after_attempt

from langgraph_takeover.evals.tasks import Task, grading
from langgraph_takeover.evals.tasks.grading import NoResultError, Verdict, get_verdict, grade

from .shop_task import FIXED, GOOD_TILL, KEPT, UNITTEST, Shop

BROKEN = "def total(:\n"
TWO_MODULES = f"{UNITTEST} test_other"


def grade_shop(shop: Shop, patch: str | None, name: str = "patch") -> Verdict:
    task = shop.load()
    return grade(task, patch, shop.build_spec(task), shop.source.parent / "logs", name, network=False)


def get_shop_verdict(shop: Shop, patch: str, task: Task | None = None) -> Verdict:
    task = task or shop.load()
    return get_verdict(task, patch, shop.build_spec(task), shop.source.parent / "logs", "patch")


@pytest.mark.parametrize(
    "old_and_new",
    [("\n", "\r\n"), ("set -x", "\ufeffset -x"), ("git apply - <<'PATCH'\n", "git apply - <<'PATCH'\r\n")],
    ids=["CRLF", "byte order mark", "one edited line"],
)
def test_an_eval_script_of_another_editor_grades(tmp_path: Path, old_and_new: tuple[str, str]) -> None:
    shop = Shop(tmp_path)
    shop.rewrite("eval.sh", *old_and_new)
    assert grade_shop(shop, shop.gold).resolved


def test_a_converted_or_stripped_gold_patch_is_restored(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.rewrite("gold.patch", "\n", "\r\n")
    assert shop.load().gold_patch == shop.gold
    (shop.directory / "gold.patch").write_text(shop.gold.strip())
    assert shop.load().gold_patch == shop.gold


def test_the_base_commit_can_be_graded(tmp_path: Path) -> None:
    verdict = grade_shop(Shop(tmp_path), None)
    assert (verdict.resolved, verdict.fail_to_pass_failures, verdict.pass_to_pass_failures) == (False, 1, 0)


def test_a_patch_without_result_is_unresolved_if_the_gold_patch_has_one(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    broken = shop.make_patch("till.py", BROKEN)
    with pytest.raises(NoResultError, match=r"the log ends: .*SyntaxError"):
        grade_shop(shop, broken)
    verdict = get_shop_verdict(shop, broken)
    assert (verdict.resolved, verdict.has_result, verdict.handoff_state) == (False, False, "needs_completion")
    assert "but do with the gold patch" in verdict.detail


def test_a_patch_that_imitates_a_failing_environment_is_unresolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading.grade_with_retries.retry, "stop", stop_after_attempt(1))  # type: ignore[attr-defined]
    shop = Shop(tmp_path, run=f"grep -q sum till.py || {{ echo Killed; exit 1; }}; {UNITTEST}")
    verdict = get_shop_verdict(shop, shop.make_patch("NOTE", "A note.\n"))
    assert (verdict.resolved, verdict.has_result) == (False, False)
    shop.rewrite("eval.sh", "grep -q sum", "grep -q 'no such text'")
    with pytest.raises(NoResultError, match=r"out_of_memory.*; the gold patch has no result either"):
        get_shop_verdict(shop, shop.make_patch("NOTE", "A note.\n"))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("nosuchrunner", "nosuchrunner: command not found"),
        ("true", "their output is empty"),
        ("echo 'All is well'", "the log ends: All is well"),
        ("exit 0", "it lacks a line"),
    ],
)
def test_a_grader_without_result_is_no_verdict(tmp_path: Path, run: str, message: str) -> None:
    shop = Shop(tmp_path, run=run)
    other = shop.make_patch("NOTE", "A note.\n")
    with pytest.raises(NoResultError, match=rf"{message}.*; the gold patch has no result either"):
        get_shop_verdict(shop, other)
    assert not (tmp_path / "logs" / "verdicts").exists()


def test_a_patch_that_applies_no_worse_than_the_gold_patch_is_no_verdict(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.rewrite("gold.patch", "max(", "min(")
    with pytest.raises(NoResultError, match="does not apply; the gold patch has no result either"):
        get_shop_verdict(shop, shop.gold.replace("max(", "least("))
    assert get_shop_verdict(shop, shop.gold).resolved


def test_without_a_gold_patch_no_result_is_no_verdict(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    task = shop.load()
    bare = task.model_copy(update={"instance": {**task.instance, "patch": ""}})
    with pytest.raises(NoResultError, match="no gold patch"):
        get_shop_verdict(shop, shop.make_patch("till.py", BROKEN), bare)
    assert get_shop_verdict(shop, "not a patch", bare).detail == "the patch does not apply"


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        (GOOD_TILL, True),
        (BROKEN, False),
        ("import unittest\nraise unittest.SkipTest\n", False),
        (f"{GOOD_TILL}import os\nos._exit(0)\n", False),
        ("def total(prices):\n    raise ValueError\n", False),
    ],
    ids=["fixed", "broken import", "skipped module", "ended process", "raises"],
)
@pytest.mark.parametrize("run", [UNITTEST, TWO_MODULES, f"python3 -m unittest -v test_other; {UNITTEST}"])
def test_a_missing_result_of_a_fail_only_task_is_no_pass(
    tmp_path: Path, run: str, text: str, resolved: bool
) -> None:
    shop = Shop(tmp_path, run=run, eval_type="fail_only")
    verdict = get_shop_verdict(shop, shop.make_patch("till.py", text))
    assert verdict.resolved is resolved
    assert (verdict.fail_to_pass_failures == 0) is resolved


@pytest.mark.cases(8)
@pytest.mark.parametrize(
    ("output", "exit_code", "failures"),
    [
        ("3 specs, 0 failures", 0, (0, 0)),
        (f"{KEPT} ... ok", 0, (1, 0)),
        (f"{FIXED} ... FAIL", 1, (1, 1)),
        (f"{FIXED} ... ERROR", 1, (1, 1)),
        (f"3 specs, 1 failure\n{FIXED} ... FAIL", 1, (1, 0)),
        (f"3 specs, 1 failures\n{FIXED} ... FAIL", 1, (1, 0)),
        (f"3 specs, 0 failures\n{FIXED} ... skipped", 0, (1, 0)),
        ("3 specs, 1 failures\ntest_other (test_other) ... FAIL", 1, (0, 0)),
        ("3 specs, 1 failures\ntest_other (test_other) ... ERROR", 1, (1, 1)),
        ("Executed 2 of 40 DISCONNECTED", 1, (1, 1)),
        ("Executed 2 of 40 (skipped 1) DISCONNECTED", 0, (1, 1)),
        ("Executed 39 of 40 (skipped 1) SUCCESS", 0, (0, 0)),
        ("Test Suites: 1 failed, 1 total\nTests:       0 total", 0, (1, 1)),
        (f"Test suite failed to run\nTests: 1 failed, 1 total\n{FIXED} ... FAIL", 1, (1, 1)),
        ("  2 passing (3ms)\n  1 failing", 0, (1, 1)),
        ("3 specs, 1 failure", 0, (1, 1)),
        ("Executed 3 of 3 (1 FAILED)", 0, (1, 1)),
        ("TOTAL: 1 FAILED\nTOTAL: 2 SUCCESS", 0, (1, 1)),
        ("# tests 3\n# pass 2\n# fail 1", 0, (1, 1)),
        ("3 specs, 0 failures\nSyntaxError: Unexpected token '='\n\nNode.js v20.1.0", 0, (1, 1)),
    ],
)
def test_a_fail_only_log_must_show_a_complete_run(
    tmp_path: Path, output: str, exit_code: int, failures: tuple[int, int]
) -> None:
    shop = Shop(tmp_path, run=f"cat <<'LOG'; (exit {exit_code})\n{output}\nLOG", eval_type="fail_only")
    verdict = grade_shop(shop, shop.gold)
    assert (verdict.fail_to_pass_failures, verdict.pass_to_pass_failures) == failures
    assert verdict.resolved is (failures == (0, 0))
