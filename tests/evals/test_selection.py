"""Selection of handoff points end to end, on bundled tasks."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from .conftest import TWO_TASKS, RunCommand, assert_refused, read_rows

ORACLES = ("builtin:oracle", "builtin:oracle+0.001s")


@pytest.mark.slow
def test_points_are_chosen_by_state_once_all_have_labels(
    run_main: RunCommand, complete_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    quotas = ("--quota", "needs_completion=2", "--quota", "already_solved=1:first_validation")
    chosen = (*TWO_TASKS, *quotas, "--repeats", "2", "--view", "repository", "--from", complete_run)
    done = run_main(*chosen, "--out", out, "--stages", "predecessors")
    assert done.returncode == 0, done.stderr
    states = {row["record_id"]: row["handoff_state"] for row in read_rows(out, "labels")}
    assert Counter(states.values()) == {"needs_completion": 2, "already_solved": 3}
    assert "points: 3 (1 first_source_edit, 2 first_validation), selected from 5\n" in (
        run_main("--resume", "--out", out, "--dry-run").stdout
    )
    assert run_main("--resume", "--out", out).returncode == 0
    found = Counter((states[row["record_id"]], row["point"]) for row in read_rows(out))
    assert found == {
        ("needs_completion", "first_source_edit"): 2,
        ("needs_completion", "first_validation"): 2,
        ("already_solved", "first_validation"): 2,
    }
    assert run_main("--resume", "--out", out).returncode == 0
    assert len(read_rows(out)) == 6


@pytest.mark.slow
def test_a_selection_waits_for_all_its_results(run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = ("--task-ids", "galley__galley-31", "--quota", "needs_completion=2", "--view", "repository")
    done = run_main(*one, "--out", out, "--stages", "predecessors,takeovers")
    assert "Handoff points not selected: the results of 2 labels are missing (continue with --resume" in (
        done.stdout.replace("\n", " ")
    )
    assert (len(read_rows(out, "predecessors")), read_rows(out)) == (1, [])
    assert run_main("--resume", "--out", out).returncode == 0
    assert len(read_rows(out, "labels")) == 2
    # Both points are solved already.
    again = run_main("--resume", "--out", out)
    assert "Too few handoff points: 0 of 2 needs_completion points by builtin:oracle." in again.stdout
    assert read_rows(out) == []


@pytest.mark.slow
def test_each_predecessor_gets_its_points_and_the_earlier_run_s_are_reused(
    run_main: RunCommand, complete_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    predecessors = [part for name in ORACLES for part in ("--predecessor", name)]
    chosen = (*TWO_TASKS, "--limit", "1", "--max-points", "2", "--view", "repository")
    done = run_main(*chosen, *predecessors, "--from", complete_run, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "predecessors reused from" in done.stdout
    assert Counter((row["predecessor"], row["point"]) for row in read_rows(out)) == {
        (name, kind): 1 for name in ORACLES for kind in ("first_source_edit", "first_validation")
    }
    assert_refused(
        run_main(*chosen, "--predecessor", ORACLES[1], "--from", complete_run, "--out", tmp_path / "other"),
        f"--from: {complete_run} has no predecessor {ORACLES[1]} (it has builtin:oracle)",
    )


def test_two_rules_at_once_are_refused(run_main: RunCommand, tmp_path: Path) -> None:
    both = ("--quota", "needs_completion=2", "--max-points", "2")
    assert_refused(
        run_main(*both, "--out", tmp_path / "out"), "--max-points: cannot be combined with --quota"
    )
    assert_refused(
        run_main("--quota", "solved=2", "--out", tmp_path / "out"), "--quota: unknown state 'solved'"
    )
    assert_refused(
        run_main("--prompt", "long", "--out", tmp_path / "out"),
        "--prompt: unknown value 'long' (use short, paper)",
    )


@pytest.mark.slow
def test_a_damaged_source_is_one_line(run_main: RunCommand, complete_run: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(complete_run, tmp_path / "source"))
    chosen = ("--task-ids", "galley__galley-31", "--view", "structured", "--from", source)
    trace, notes = source / "traces/galley__galley-31.json", next(source.glob("records/galley*/notes.json"))
    trace.unlink()
    notes.write_text(notes.read_text().replace('"summary": "', '"summary": "not ', 1))
    done = run_main(*chosen, "--out", tmp_path / "out")
    assert_refused(done, f"--from: trace not found: {trace} (restore it from a copy, or")
    shutil.copy(complete_run / "traces" / trace.name, trace)
    done = run_main("--resume", "--out", tmp_path / "out")
    assert_refused(done, "notes.json does not match its digest")
