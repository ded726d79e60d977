"""The order of the paper's tasks."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from langgraph_takeover.evals.run.settings.study import EXCLUDED, check_tiers, order_tasks
from langgraph_takeover.evals.tasks import Task, load_tasks
from langgraph_takeover.handoff import prompts


@pytest.fixture(scope="module")
def verified(real_data: Path) -> tuple[Task, ...]:
    return load_tasks(str(real_data / "data" / "swebench_verified_v5.parquet"))


@pytest.fixture
def published(real_data: Path) -> list[str]:
    return (real_data / "data" / "selected_075.txt").read_text().split()


def test_the_order_is_the_paper_s(verified: tuple[Task, ...], published: list[str]) -> None:
    order = order_tasks(task.instance for task in verified)
    assert order.index(EXCLUDED) == 20
    order.remove(EXCLUDED)
    assert order[:75] == published
    assert len(order) == len(set(order)) == 302
    stored = files("langgraph_takeover.evals.run.settings") / "studies" / "task_order.txt"
    assert stored.read_text().split() == order
    check_tiers([task for task in verified if task.id in order], "verified")


def test_the_order_does_not_depend_on_the_order_of_the_source(verified: tuple[Task, ...]) -> None:
    instances: list[Any] = [task.instance for task in verified]
    assert order_tasks(reversed(instances)) == order_tasks(instances)


def test_the_long_prompt_is_as_long_as_the_paper_s(verified: tuple[Task, ...], published: list[str]) -> None:
    """The paper's first prompts of the repository view: median 7.2k characters, P90 10k."""
    takeover = prompts.load_prompt("takeover")
    sizes = [
        len(takeover) + len(task.model_copy(update={"prompt_name": "paper"}).prompt)
        for task in verified
        if task.id in published
    ]
    assert 6_500 < median(sizes) < 7_900


def test_every_prompt_contains_the_issue_once(verified: tuple[Task, ...]) -> None:
    for name in ("short", "paper"):
        task = verified[0].model_copy(update={"prompt_name": name})
        issue = str(task.instance["problem_statement"]).replace("\r\n", "\n").strip()
        assert task.prompt.count(issue) == 1
        assert "{problem_statement}" not in task.prompt
