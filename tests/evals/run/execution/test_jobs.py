"""The jobs of a run: which takeovers each handoff point has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from langgraph_takeover.evals.run.execution.jobs import RunJobs, list_point_takeovers
from langgraph_takeover.evals.run.journal import get_journals, open_journal
from langgraph_takeover.evals.run.plan import make_plan
from langgraph_takeover.evals.run.rows import PredecessorRow
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.tasks import BUNDLED, load_tasks

CODEX, CLAUDE, BUILT_IN = "codex:builtin:oracle", "claude-code:builtin:oracle", "builtin:oracle"


def make_config(predecessors: tuple[str, ...], successors: tuple[str, ...], repeats: int = 1) -> RunConfig:
    return RunConfig(
        run_id="a",
        views=("repository", "transcript", "continuation"),
        predecessors=predecessors,
        successors=successors,
        repeats=repeats,
        tasks=BUNDLED,
        points=("first_source_edit", "first_validation"),
        sandbox="host",
    )


def test_an_agent_continues_only_its_own_work() -> None:
    config = make_config((CODEX, BUILT_IN), (CODEX, CLAUDE, BUILT_IN), repeats=2)
    for predecessor in config.predecessors:
        jobs = list_point_takeovers(config, predecessor)
        assert len(jobs) == 2 * (2 * 3 + 1)
        assert [each for each in jobs if each[0] == "continuation"] == [
            ("continuation", predecessor, 1),
            ("continuation", predecessor, 2),
        ]
    # The same agent with another model is another agent.
    assert ("continuation", CODEX, 1) not in list_point_takeovers(config, "codex:openai:a")


@pytest.mark.parametrize("has_run", [False, True])
def test_the_plan_counts_each_continuation_once(tmp_path: Path, has_run: bool) -> None:
    config = make_config((CODEX, CLAUDE, BUILT_IN), (CODEX, CLAUDE, BUILT_IN))
    tasks = {task.id: task for task in load_tasks(BUNDLED, limit=2)}
    with open_journal(tmp_path) as database:
        jobs = RunJobs(config, tmp_path, tasks, get_journals(database, "a"))
        if has_run:
            for task in tasks:
                for name in config.predecessors:
                    records = [f"{config.name_run(task, name)}.{kind}" for kind in config.points]
                    row = {"task_id": task, "predecessor": name, "outcome": "run", "records": records}
                    jobs.journals.predecessors.append(PredecessorRow.model_validate(row))
            listed = jobs.list_jobs("takeovers")
            assert len({job.key for job in listed}) == len(listed)
            by_view = Counter(job.key[1] for job in listed)
            assert by_view == {"repository": 36, "transcript": 36, "continuation": 12}
        plan = make_plan(jobs)
    assert plan.is_estimated is not has_run
    # Two tasks, three predecessors and two points: 12 points, each with 2 x 3 + 1 takeovers.
    assert {line.stage: line.jobs for line in plan.lines}["takeovers"] == 12 * 7
