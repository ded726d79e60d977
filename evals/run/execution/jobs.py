"""All jobs of a run, by stage, completed or not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.evals.run.execution import stages
from langgraph_takeover.evals.run.execution.executors import Job
from langgraph_takeover.evals.run.journal import Journals
from langgraph_takeover.evals.run.settings.config import RunConfig
from langgraph_takeover.evals.run.settings.study import ReachedPoint, choose_points, read_shard
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.handoff.views import VIEWS_WITH_NOTES


class RunJobs(NamedTuple):
    """The jobs of a run. Jobs after the first stage are known once the predecessors have run."""

    config: RunConfig
    out: Path
    tasks: Mapping[str, Task]
    journals: Journals

    def list_jobs(self, stage: str) -> list[Job]:
        jobs: list[Job] = getattr(self, f"_{stage}")()
        return jobs

    def select_points(self) -> tuple[ReachedPoint, ...]:
        """The selected handoff points among the reached ones."""
        rows = {self.journals.predecessors.key(row): row for row in self.journals.predecessors.rows()}
        reached = [
            ReachedPoint(task, predecessor, record)
            for task in self.tasks.values()
            for predecessor in self.config.predecessors
            for record in rows.get((task.id, predecessor), {}).get("records", ())
        ]
        return choose_points(reached, self.get_point_limit())

    def get_point_limit(self) -> int | None:
        """Maximum number of points, for this shard if the run is one."""
        most, shard = self.config.max_points, self.config.shard
        if most is None or shard is None:
            return most
        return max(1, len(read_shard(shard).select(range(most))))

    def _predecessors(self) -> list[Job]:
        return [
            Job(stages.run_predecessor, self.config, self.out, (task, model), (task.id, model))
            for task in self.tasks.values()
            for model in self.config.predecessors
        ]

    def _labels(self) -> list[Job]:
        return [
            Job(stages.grade_snapshot, self.config, self.out, (task, record), (record,), record)
            for task, _, record in self.select_points()
        ]

    def _notes(self) -> list[Job]:
        if not any(view in VIEWS_WITH_NOTES for view in self.config.views):
            return []
        return [job._replace(stage=stages.write_note) for job in self._labels()]

    def _takeovers(self) -> list[Job]:
        how = [
            *itertools.product(self.config.views, self.config.successors, range(1, self.config.repeats + 1))
        ]
        return [
            Job(stages.run_takeover, self.config, self.out, (task, record, *each), (record, *each), record)
            for task, _, record in self.select_points()
            for each in how
        ]
