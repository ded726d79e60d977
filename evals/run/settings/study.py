"""The studies of the protocol as data: tasks, views, points and repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

from langgraph_takeover.evals.run.settings.config import RunUsageError
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.evals.tasks.study_order import TIERS
from langgraph_takeover.sandbox.interface import Frozen

DATASET = "SWE-bench/SWE-bench_Verified"
_STUDIES = files("langgraph_takeover.evals.run.settings") / "studies"


class Study(Frozen):
    """One study. The user sets the fields that it leaves open."""

    title: str
    tasks: int | None = None
    """Number of tasks, from the start of the fixed order; None: the user's tasks."""
    views: tuple[str, ...]
    repeats: int = 1
    max_points: int | None = None
    """Per predecessor."""
    quotas: tuple[str, ...] = ()
    """Numbers of points by state, as `point_selection.read_quotas` reads them."""
    predecessors: int = 1
    """Number of models in the paper."""
    successors: int = 1
    mixes_agents: bool = False
    """Whether each agent of the run takes over from each."""
    paper: Mapping[str, int] = {}
    """Counts of the paper's study; empty for a study that the paper does not have."""

    def list_task_ids(self, limit: int | None = None) -> tuple[str, ...]:
        """The study's tasks; those that follow them in the order too, if the limit is higher."""
        listed = (_STUDIES / "task_order.txt").read_text(encoding="utf-8").split()
        return tuple(listed[: max(self.tasks or 0, limit or 0)])

    def get_options(self, limit: int | None = None) -> dict[str, Any]:
        """The options that the study sets, named like the command line's."""
        if self.tasks is None:
            return {"view": ",".join(self.views)}
        return {
            "tasks": DATASET,
            "task_ids": ",".join(self.list_task_ids(limit)),
            "view": ",".join(self.views),
            "repeats": self.repeats,
            "max_points": self.max_points,
            "quota": list(self.quotas),
            "prompt": "paper",
            "grading_network": True,
        }


@lru_cache
def load_studies() -> dict[str, Study]:
    read = yaml.safe_load((_STUDIES / "studies.yaml").read_text(encoding="utf-8"))
    return {name: Study.model_validate(settings) for name, settings in read.items()}


def get_study(name: str) -> Study:
    """Raises RunUsageError."""
    if name not in load_studies():
        raise RunUsageError(f"--study: unknown study {name!r} (use {', '.join(load_studies())})")
    return load_studies()[name]


def check_tiers(tasks: Sequence[Task], source: str) -> None:
    """Check that a study's tasks have its two difficulties. Raises RunUsageError."""
    for task in tasks:
        tier = task.instance.get("difficulty")
        if tier not in TIERS:
            raise RunUsageError(
                f"--tasks: {source}: task {task.id} has difficulty {tier!r}, but the study requires {' or '.join(TIERS)} "
                "(use SWE-bench Verified)"
            )
