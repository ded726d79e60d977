"""Jobs carried out on the nodes of a Ray cluster, each with machines and a disk of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from evals.cluster import node
from evals.cluster.depot import Depot, Item
from evals.cluster.membership import Lost, come_to, first_of, given, join, leave
from evals.cluster.roster import Node, Roster
from evals.run import stages, threads
from evals.run.config import CONFIG_FILE, STAGES, BadUsage, RunConfig
from evals.run.executors import Executor, Job
from evals.run.journal import FAILED, Row
from evals.run.places import Places
from evals.tasks import Task
from handoff.record import NOTES_FILE, RecordRefused
from handoff.redaction import redacted
from sandbox.machine import OutOfDisk, SandboxUnavailable

_AHEAD = 2
"""Jobs a slot among which one is chosen that suits a node."""
_TRIES = 4
_WAIT_S = 5.0
_STAGE_OF = {
    "run_predecessor": "predecessors",
    "label": "labels",
    "write_note": "notes",
    "run_takeover": "takeovers",
}


class NodesLost(SandboxUnavailable):
    """No node of the cluster is left that can work."""


class _Work:
    """A job, how often it was begun, and the node that it last came to nothing on."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.begun = _begun(job)
        self.thread = threads.thread_of(self.begun) if "trace" in self.begun else None
        self.tries = 0
        self.not_on = ""

    def suits(self, there: Node) -> bool:
        """Whether that node has what it begins with, or went some way with it already."""
        has = self.job.record in there.records or self.thread in there.threads
        return has and self.not_on != there.member.id


class Cluster:
    """The nodes of a cluster as an executor: one job a slot, each where its record lies if there is room."""

    def __init__(self, address: str, depot: str | None, node_dir: str | None) -> None:
        self._address, self._url, self._parent = address, depot, node_dir
        self._under_way: dict[Any, tuple[_Work, Node]] = {}
        self._checkouts: dict[str, Item] = {}
        self._failed = False

    def check(self, config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
        """Join the cluster and ask its nodes. Raises BadUsage where none can work."""
        if self._url is not None and redacted(self._url) != self._url:
            raise BadUsage("--depot: it holds a secret; set it on each node, where fsspec looks for it")
        if self._parent is not None and not Path(self._parent).is_absolute():
            raise BadUsage(f"--node-dir: {self._parent}: give an absolute path, which every node can have")
        self._config, self._places = config, Places(out.absolute())
        self._depot = Depot(f"{(self._url or f'file://{self._own_depot}').rstrip('/')}/{config.run_id}")
        join(self._address)
        try:
            self._roster = Roster(config, tuple(map(_absolute, tasks)), self._depot, self._parent)
            self._roster.ask_all()
        except BaseException:
            leave()
            if not (out / CONFIG_FILE).exists():  # else it may hold what the run needs
                self._remove_depot()
            raise

    @contextmanager
    def opened(self) -> Iterator[Executor]:
        """The executor, while the nodes have their directories; they keep them unless all went well."""
        how: node.End = "killed"
        try:
            self._roster.lay_out()
            yield self
            how = "tidied" if self._failed else "removed"
        except SystemExit:
            how = "told"
            raise
        finally:
            try:
                self._roster.end(how)
            finally:
                leave()
        if how == "removed":
            self._remove_depot()

    def run(self, jobs: Iterable[Job]) -> Iterator[Row]:
        """Carry the jobs out; one whose node is lost is begun again on another."""
        left, waiting = iter(jobs), deque[_Work]()
        while True:
            slots = sum(each.member.slots for each in self._roster.nodes.values())
            waiting.extend(map(_Work, islice(left, max(_AHEAD * slots - len(waiting), not waiting))))
            yield from self._place(waiting)
            if not self._under_way and not waiting:
                return
            self._roster.look_around()
            awaited = [*self._under_way, *self._roster.asked]
            if not awaited and not self._roster.nodes:
                raise NodesLost("no node of the cluster is left that can work")
            done = first_of(awaited, _WAIT_S) if awaited else None
            if done in self._roster.asked:
                self._roster.hear(done)
            elif done is not None:
                yield from self._ended(done, waiting)

    def _place(self, waiting: deque[_Work]) -> Iterator[Row]:
        """Give the free slots jobs; the rows of those that cannot be done anywhere."""
        while True:
            free = sorted(self._free(), key=lambda each: -each.free)
            chosen = ((there, self._chosen(there, waiting)) for there in free)
            there, work = next(((there, work) for there, work in chosen if work is not None), (None, None))
            if there is None or work is None:
                return
            waiting.remove(work)
            try:
                self._begin(work, there)
            except OutOfDisk:
                raise
            except (RecordRefused, SandboxUnavailable) as error:
                yield self._failure(work, str(error))

    def _free(self) -> list[Node]:
        return [each for each in self._roster.nodes.values() if each.free > 0]

    def _chosen(self, there: Node, waiting: deque[_Work]) -> _Work | None:
        """The job that suits a node best, if none of them is better left to another that has room."""
        others = [each for each in self._free() if each is not there]
        only = len(self._roster.nodes) == 1
        may = [work for work in waiting if only or work.not_on != there.member.id]
        for work in may:
            if work.suits(there):
                return work
        return next((work for work in may if not any(work.suits(each) for each in others)), None)

    def _begin(self, work: _Work, there: Node) -> None:
        job, post = work.job, self._roster.post(there.member)
        task = _absolute(job.arguments[0])
        parcel = node.Parcel(
            job.stage, (task, *job.arguments[1:]), tuple(self._needed(job, task)), tuple(there.safe)
        )
        reference = given(there.member, node.carried_out, post, parcel, slots=1)
        self._under_way[reference] = work, there
        work.tries += 1
        there.busy += 1
        there.safe.clear()
        if job.record is not None:
            there.records.add(job.record)

    def _needed(self, job: Job, task: Task) -> Iterator[Item]:
        """What a node must have for a job, lying in the depot. Raises RecordRefused or SandboxUnavailable."""
        directory = self._places.spec(self._config, task).directory
        if directory is not None:
            if task.id not in self._checkouts:
                self._checkouts[task.id] = self._depot.put_tree("checkouts", task.id, directory)
            yield self._checkouts[task.id]
        if job.record is not None:
            directory = self._places.records.directory(job.record)
            yield self._depot.put_record(directory)
            if (directory / NOTES_FILE).is_file():
                yield self._depot.put("notes", job.record, directory / NOTES_FILE)

    def _ended(self, reference: Any, waiting: deque[_Work]) -> Iterator[Row]:
        """The row of a job that has ended; one that came to nothing waits for its next try."""
        work, there = self._under_way.pop(reference)
        there.busy -= 1
        try:
            delivery: node.Delivery = come_to(reference)
            row, trouble = delivery.row, delivery.trouble
            for item in delivery.items:
                node.taken_up(self._depot, item, self._places)
            if delivery.full:
                self._roster.leave_out(there.member, trouble)
        except Lost as error:
            row, trouble = None, f"node {there.member}: {error}"
            self._roster.doubt(there)
        except OutOfDisk:
            raise
        except node.FAILURES as error:
            row, trouble = None, str(error)
        if row is not None:
            row |= {"node": there.member.short, "tries": work.tries}
            self._failed = self._failed or row["outcome"] == FAILED
            there.records.update(row.get("records", ()))
            yield row
            if "trace" in row:
                known = ("task_id", "record_id", "trace", "outcome")
                safe = {name: row[name] for name in known if name in row}
                there.safe.append((_absolute(work.job.arguments[0]), safe))
            return
        # What lay in the depot may be what is missing.
        self._depot.forget()
        self._checkouts.clear()
        if work.tries < _TRIES:
            work.not_on = there.member.id
            waiting.appendleft(work)
        else:
            yield self._failure(work, trouble)

    def _failure(self, work: _Work, trouble: str) -> Row:
        self._failed = True
        failure = stages.failed(SandboxUnavailable(trouble), time.monotonic())
        return work.begun | failure | {"tries": work.tries}

    @property
    def _own_depot(self) -> Path:
        return self._places.out / "depot"

    def _remove_depot(self) -> None:
        with suppress(SandboxUnavailable):
            self._depot.remove()
        with suppress(OSError):  # where it is not ours alone
            self._own_depot.rmdir()


def _begun(job: Job) -> Row:
    """What is known of a job's row before it is done."""
    stage, task = _STAGE_OF[job.stage.__name__], job.arguments[0]
    row: Row = dict(zip(STAGES[stage], job.key, strict=True))
    if stage == "predecessors":
        row["trace"] = job.config.run_of(*job.key)
    if stage == "takeovers":
        row |= {"task_id": task.id, "trace": threads.takeover_of(*job.key)}
    return row


def _absolute(task: Task) -> Task:
    if task.directory is None:
        return task
    return task.model_copy(update={"directory": task.directory.absolute()})
