"""The directory of a run, and all its jobs by stage, completed or not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from langgraph_takeover import Home, sandbox
from langgraph_takeover.evals.run.execution import stages
from langgraph_takeover.evals.run.execution.executors import Job
from langgraph_takeover.evals.run.journal import Journal, Journals, lock_output, open_journal
from langgraph_takeover.evals.run.rows import Row
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths, Shard, read_shard
from langgraph_takeover.evals.run.settings.study import (
    ReachedPoint,
    choose_points,
    describe_shortages,
    list_quotas,
)
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.handoff.ledger import effects
from langgraph_takeover.handoff.ledger.database import Database
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.views import VIEWS_WITH_NOTES
from langgraph_takeover.nodes.session.state_store import build_owner_name
from langgraph_takeover.sandbox import gc
from langgraph_takeover.sandbox.gc import CollectionRequest

_RowT = TypeVar("_RowT", bound=Row)


class RunDirectory(NamedTuple):
    """The open output directory of a run."""

    paths: RunPaths
    home: Home
    database: Database


@contextmanager
def open_run_directory(
    config: RunConfig, out: Path, journal_url: str | None = None
) -> Iterator[RunDirectory]:
    """Open the output directory for one process. Remove the run's sandboxes before and after, however it ends.

    Raises OutputInUseError, LedgerUnavailableError and JournalError.
    """
    paths = RunPaths(out)
    with lock_output(out), paths.home() as home:
        for name in list_stale_resources(config, home):
            print(f"removed from the interrupted run: {name}", flush=True)
        remove_stale_resources(config, paths, home)
        try:
            with open_journal(out, journal_url, config.run_id) as database:
                yield RunDirectory(paths, home, database)
        finally:
            remove_stale_resources(config, paths, home)


def remove_stale_resources(config: RunConfig, paths: RunPaths, home: Home) -> None:
    """Remove the sandboxes of a killed run, and image snapshots that no record and no checkpoint needs."""
    paths.records.remove_partial()
    home.remove_unused_snapshots(is_exclusive=True)
    keep = paths.records.list_snapshot_locations()
    if keep is not None:
        keep |= {snapshot.location for snapshot in effects.list_snapshots(home.ledger)}
    sandbox.remove_stale_resources(config.sandbox, *_list_owners(config, home), kept_images=keep)


def list_stale_resources(config: RunConfig, home: Home) -> list[str]:
    """What a killed run left behind besides snapshots, which its resumption removes: kind, name and reason."""
    request = CollectionRequest()
    found = gc.list_docker_resources() if config.sandbox == "docker" else gc.list_stored_resources(request)
    owners = set(_list_owners(config, home))
    return [
        f"{each.kind} {each.name} ({each.reason})"
        for each in found
        if each.owner in owners and each.is_stale and each.kind != "image"
    ]


def _list_owners(config: RunConfig, home: Home) -> tuple[str, ...]:
    threads = (build_owner_name(config.run_id, home.ledger, thread) for thread in home.threads())
    return (config.run_id, *threads)


class RunJobs(NamedTuple):
    """The jobs of a run. Jobs after the first stage are known once the predecessors have run."""

    config: RunConfig
    out: Path
    tasks: Mapping[str, Task]
    journals: Journals

    def list_jobs(self, stage: str) -> list[Job]:
        jobs: list[Job] = getattr(self, f"_{stage}")()
        return jobs

    def list_reached_points(self) -> tuple[ReachedPoint, ...]:
        """All handoff points of the completed predecessors, in the order of the tasks."""
        rows = {row.key: row for row in self.journals.predecessors.rows()}
        return tuple(
            ReachedPoint(task, predecessor, record)
            for task in self.tasks.values()
            for predecessor in self.config.predecessors
            if (row := rows.get((task.id, predecessor))) is not None
            for record in row.records or ()
        )

    def select_points(self) -> tuple[ReachedPoint, ...]:
        """The handoff points that are taken over. None while `describe_missing_results` names something."""
        quotas = list_quotas(self.config)
        if not quotas:
            return self.list_reached_points()
        if self.describe_missing_results():
            return ()
        return choose_points(self.list_reached_points(), quotas, self._read_states(), self.get_shard())

    def describe_shortages(self) -> str:
        """The quotas that the reached points do not fill; empty if none, or if points cannot be selected yet."""
        exact = bool(self.config.quotas or self.config.study)  # else the number of points is a maximum
        if not exact or self.describe_missing_results():
            return ""
        config, quotas = self.config, list_quotas(self.config)
        return ", ".join(
            describe_shortages(
                self.select_points(), quotas, self._read_states(), config.predecessors, self.get_shard()
            )
        )

    def _read_states(self) -> dict[str, str | None]:
        return {row.record_id: row.handoff_state for row in self.journals.labels.rows()}

    def describe_missing_results(self) -> str:
        """The results without which points cannot be selected, for instance `2 predecessors`; empty if none.

        A selection from a part of the results would change when the run is resumed.
        """
        if not list_quotas(self.config):
            return ""
        missing = {"predecessors": len(self._predecessors()) - _count_completed(self.journals.predecessors)}
        if self.config.quotas:
            missing["labels"] = len(self.list_reached_points()) - _count_completed(self.journals.labels)
        return " and ".join(f"{number} {stage}" for stage, number in missing.items() if number > 0)

    def get_shard(self) -> Shard | None:
        return read_shard(self.config.shard) if self.config.shard else None

    def _predecessors(self) -> list[Job]:
        return [
            Job(stages.run_predecessor, self.config, self.out, (task, model), (task.id, model))
            for task in self.tasks.values()
            for model in self.config.predecessors
            if self.config.has_task(model, task.id)
        ]

    def _labels(self) -> list[Job]:
        points = self.list_reached_points() if self.config.quotas else self.select_points()
        return self._make_record_jobs(stages.grade_snapshot, points)

    def _notes(self) -> list[Job]:
        if not any(view in VIEWS_WITH_NOTES for view in self.config.views):
            return []
        return self._make_record_jobs(stages.write_note, self.select_points())

    def _make_record_jobs(self, stage: Callable[..., Row], points: Iterable[ReachedPoint]) -> list[Job]:
        return [
            Job(stage, self.config, self.out, (task, record), (record,), record) for task, _, record in points
        ]

    def _takeovers(self) -> list[Job]:
        return [
            Job(stages.run_takeover, self.config, self.out, (task, record, *each), (record, *each), record)
            for task, predecessor, record in self.select_points()
            for each in list_point_takeovers(self.config, predecessor)
            if self.config.has_task(each[1], task.id)
        ]


def list_point_takeovers(config: RunConfig, predecessor: str) -> list[tuple[str, str, int]]:
    """View, successor and repeat of each takeover of one of this predecessor's points.

    `continuation` exists only where the successor is the predecessor.
    """
    each = itertools.product(config.views, config.successors, range(1, config.repeats + 1))
    return [
        (view, successor, repeat)
        for view, successor, repeat in each
        if view != CONTINUATION or successor == predecessor
    ]


def _count_completed(journal: Journal[_RowT]) -> int:
    return sum(not row.is_failure for row in journal.rows())
