"""The study `agents`: each agent takes over from each, with continuations as the baseline."""

from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_takeover.evals.run.preparation import resolve_run
from langgraph_takeover.evals.run.settings.config import (
    RunUsageError,
    TakeoverOptions,
    load_config,
    read_views,
)
from langgraph_takeover.evals.run.settings.study import add_continuation
from langgraph_takeover.handoff.views import VIEWS

from ...conftest import RunCommand, assert_refused

BUILT_IN = ("builtin:oracle", "builtin:oracle+0.001s")


def test_continuation_is_chosen_by_name_only() -> None:
    assert read_views("all") == tuple(VIEWS)
    assert read_views("all,continuation") == (*VIEWS, "continuation")
    assert read_views("continuation") == ("repository", "continuation")
    with pytest.raises(
        RunUsageError, match=r"unknown view 'continue' \(use repository, .*, continuation, all\)"
    ):
        read_views("continue")
    assert add_continuation("trace, continuation") == "trace, continuation"
    assert add_continuation("trace") == "trace,continuation"


def test_every_named_agent_has_both_roles(tmp_path: Path) -> None:
    options = TakeoverOptions(study="agents", successor=[BUILT_IN[0]], predecessor=[*BUILT_IN[::-1]])
    config, _ = resolve_run(options, {"predecessor", "successor"}, tmp_path, resume=False)
    assert config.predecessors == config.successors == BUILT_IN[::-1]


def test_the_study_sets_views_and_agents_but_no_tasks(run_main: RunCommand, tmp_path: Path) -> None:
    options = ("--study", "agents", "--predecessor", BUILT_IN[0], "--successor", BUILT_IN[1])
    done = run_main(*options, "--limit", "2", "--dry-run", "--out", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    assert "2 tasks of bundled" in done.stdout
    names = ", ".join(BUILT_IN)
    assert f"predecessors: {names}; successors: {names}\n" in done.stdout
    assert "views: repository, transcript, structured, cited, continuation; repeats: 1" in done.stdout
    assert "study agents: each agent takes over from each" in done.stdout
    assert "paper" not in done.stdout.partition("study agents")[2]


def test_a_study_without_an_external_agent_is_refused(
    run_main: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_refused(
        run_main("--study", "agents", "--out", tmp_path / "o"),
        "--study agents: no external agent is installed: codex, claude-code, mini, qwen-code, opencode (put one on PATH",
    )
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_a_continuation_that_cannot_exist_is_refused(run_main: RunCommand, tmp_path: Path) -> None:
    models = ("--predecessor", BUILT_IN[0], "--successor", BUILT_IN[1])
    one = ("--task-ids", "galley__galley-31", "--view", "continuation")
    assert_refused(
        run_main(*one, *models, "--out", tmp_path / "o"),
        "--view continuation: no successor is a predecessor (pass the same model as both",
    )
    first = tmp_path / "first"
    assert run_main(*one, "--points", "first_source_edit", "--out", first).returncode == 0
    assert load_config(first).views == ("repository", "continuation")
    again = (*one, "--points", "first_source_edit", "--from", first, "--out", tmp_path / "o")
    assert_refused(
        run_main(*again), f"the conversation of builtin:oracle is only in {first} (leave --from out)"
    )
