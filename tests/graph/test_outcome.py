"""What an outcome tells: the run's own changes, those since the commit, the answer and the cost."""

from __future__ import annotations

import re

import pytest

from langgraph_takeover import Prices, RunStatus
from langgraph_takeover.errors import RepositoryError

from .conftest import DONE, EDIT, FIX, NOTE, RunHarness, scripted_model


def list_changes(patch: str) -> list[str]:
    """The added and removed lines of a patch, without headings."""
    return [line for line in patch.splitlines() if re.match(r"[+-](?![+-])", line)]


def test_a_successors_patch_is_its_own_work(bench: RunHarness) -> None:
    first = bench.run_to_outcome(
        scripted_model(EDIT, DONE), policy="stop", points=("first_source_edit",), run_id="run"
    )
    assert list_changes(first.patch) == ["-    return n + 1", "+    return n * 3"]
    assert first.diff_from_base == first.patch
    with bench.open_run(scripted_model(FIX, NOTE.format("new"), DONE), "successor") as opened:
        outcome = opened.take_over("run.first_source_edit", "repository")
    assert list_changes(outcome.patch) == ["+new", "-    return n * 3", "+    return n * 2"]
    assert list_changes(outcome.diff_from_base) == ["+new", "-    return n + 1", "+    return n * 2"]
    assert outcome.patch_error is None


def test_nothing_done_is_an_empty_patch(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), policy="stop", points=("first_source_edit",), run_id="run")
    with bench.open_run(scripted_model(DONE), "successor") as opened:
        outcome = opened.take_over("run.first_source_edit", "repository")
    assert outcome.patch == ""
    assert "n * 3" in outcome.diff_from_base


def test_changes_before_the_start_are_not_the_agents(bench: RunHarness) -> None:
    assert bench.spec.directory is not None
    (bench.spec.directory / "pkg" / "core.py").write_text("def double(n):\n    return n + 1  # é\n")
    (bench.spec.directory / "raw").write_bytes(b"\xff\0\n")
    outcome = bench.run_to_outcome(scripted_model(NOTE.format("mine"), "```bash\nprintf x >> raw\n```", DONE))
    assert "+mine" in outcome.patch
    assert "raw" in outcome.patch
    assert "core.py" not in outcome.patch
    assert "# é" in outcome.diff_from_base


def test_a_start_that_is_too_different(bench: RunHarness) -> None:
    assert bench.spec.directory is not None
    (bench.spec.directory / "large").write_text("x\n" * 600_000)
    outcome = bench.run_to_outcome(scripted_model(NOTE.format("mine"), DONE))
    assert outcome.patch == ""
    assert "too much" in str(outcome.patch_error)
    assert "+mine" in outcome.diff_from_base


def test_answer_and_cost(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format("a"), "<finish>All `tests` pass.</finish>")
    stopped = bench.run_to_outcome(model, max_steps=1)
    assert (stopped.answer, stopped.cost) == (None, None)
    finished = bench.resume(model, prices=Prices(prompt=1e6, completion=0))
    assert (finished.status, finished.answer) == (RunStatus.FINISHED, "All `tests` pass.")
    assert finished.cost == pytest.approx(10)


def test_an_earlier_patch_that_does_not_apply(bench: RunHarness) -> None:
    from langgraph_takeover.sandbox import start
    from langgraph_takeover.sandbox.repository import head_commit, patch_since

    with start(bench.spec) as sandbox:
        commit = head_commit(sandbox)
        sandbox.run("echo one > new", timeout_s=10)
        patch = patch_since(sandbox, commit).text
        sandbox.run("echo two >> new", timeout_s=10)
        assert list_changes(patch_since(sandbox, commit, patch).text) == ["+two"]
        with pytest.raises(RepositoryError, match=r"corrupt|No valid|error"):
            patch_since(sandbox, commit, "no patch at all\n")
        assert sandbox.run("ls ${TMPDIR:-/tmp} | grep takeover-git", timeout_s=10).output == ""


def test_a_child_without_a_patch_of_its_own_still_has_its_work() -> None:
    """Only a missing difference from the commit is a problem for the parent, which merges that one."""
    from langgraph_takeover import Outcome
    from langgraph_takeover.graph.runs.child_runs import _child_result

    partial = Outcome(thread="c", diff_from_base="diff", patch_error="no patch: it does not apply", state={})
    lost = Outcome(thread="c", patch_error="no patch: no repository", state={})
    assert (_child_result(partial).patch, _child_result(partial).problem) == ("diff", "")
    assert _child_result(lost).problem == "no patch: no repository"


def shell(command: str) -> str:
    return f"```bash\n{command}\n```"


def test_observed_changes_that_git_ignores_are_named(bench: RunHarness) -> None:
    """Renamed, quoted, binary and restored files are in the patch; generated files do not count."""
    assert bench.spec.directory is not None
    (bench.spec.directory / ".gitignore").write_text("*.log\n.env\n__pycache__\n")
    outcome = bench.run_to_outcome(
        scripted_model(
            shell("echo a > x.log; echo SECRET=1 > .env; mkdir -p __pycache__; echo c > __pycache__/c.pyc"),
            shell(
                "git mv test_core.py 'tést \"q\".py'; printf '\\377\\0' > \"$(printf 'b\\351.bin')\"; : > empty"
            ),
            shell("echo b > y.log; cp pkg/core.py /tmp/core.kept; echo z > pkg/core.py"),
            shell("rm y.log; cp /tmp/core.kept pkg/core.py"),
            DONE,
        ),
        points=("first_source_edit",),
        policy="record",
        run_id="run",
    )
    assert [each.path for each in outcome.left_out] == [".env", "x.log"]
    assert "git ignores it" in outcome.left_out[0].reason
    assert (outcome.left_out_count, outcome.patch_error) == (2, None)


def test_a_large_file_is_named_in_outcome_and_record(bench: RunHarness) -> None:
    first = bench.run_to_outcome(
        scripted_model(
            shell("truncate -s 17M big.bin; echo a > x.log; echo '*.log' > .gitignore"), EDIT, DONE
        ),
        policy="stop",
        points=("first_source_edit",),
        run_id="run",
    )
    record = bench.store.load("run.first_source_edit")
    named = [(each.path, each.reason) for each in record.left_out]
    assert named[0] == ("big.bin", "larger than 16 MiB")
    assert [path for path, _ in named] == ["big.bin", "x.log"]
    assert [(each.path, each.reason) for each in first.left_out] == named
    assert (record.left_out_count, record.patch_error) == (2, "")
    with bench.open_run(scripted_model(shell("echo b > y.log"), DONE), "successor") as opened:
        outcome = opened.take_over("run.first_source_edit", "repository")
    # An ignored file of the predecessor does not count as a change of this run.
    assert [each.path for each in outcome.left_out] == ["big.bin", "y.log"]


def test_a_record_without_a_patch_says_why(bench: RunHarness) -> None:
    from langgraph_takeover.handoff.notes.evidence import Evidence
    from langgraph_takeover.handoff.notes.writer import build_prompt

    bench.run(
        scripted_model(shell('rm -rf "$TMPDIR"; touch "$TMPDIR"'), EDIT, DONE),
        policy="stop",
        points=("first_source_edit",),
        run_id="run",
    )
    record = bench.store.load("run.first_source_edit")
    assert record.patch == ""
    assert "git in the sandbox" in record.patch_error
    (message,) = build_prompt("summary", Evidence(record), 20_000)
    assert "\nThe record has no patch: git in the sandbox" in message.text


def test_a_childs_left_out_files_exclude_its_parents() -> None:
    from langgraph_takeover import Outcome
    from langgraph_takeover.graph.runs.child_runs import _child_result
    from langgraph_takeover.sandbox.repository import LeftOut

    old, new = (LeftOut(path=name, reason="larger than 16 MiB") for name in ("old", "new"))
    outcome = Outcome(thread="c", left_out=(new, old), left_out_count=2, state={})
    result = _child_result(outcome, (old,))
    assert (result.left_out, result.left_out_count) == ((new,), 1)
