"""Run jobs as tasks of a Ray cluster: Ray places and retries them, the coordinator keeps their rows."""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.cluster.artifacts import ArtifactStore
from evals.cluster.compatibility import collect_versions
from evals.cluster.connection import NODE_LABEL, RESOURCE, connect, disconnect
from evals.cluster.jobs import FAILURES, ClusterJob, ClusterRun, Result, run_job
from evals.run import stages, threads
from evals.run.config import CONFIG_FILE, STAGES, BadUsage, RunConfig
from evals.run.executors import Executor, Job
from evals.run.journal import FAILED, Row
from evals.run.places import Places
from evals.tasks import SUITE, Task
from handoff.record import NOTES_FILE
from handoff.redaction import redacted
from sandbox.machine import OutOfDisk, SandboxUnavailable

if TYPE_CHECKING:
    from evals.cluster.pool import WorkerPool

_AHEAD = 2
"""Jobs per slot that are submitted at a time."""
_RETRIES = 3
_WAIT_S = 5.0
_KILL_S = 120.0
_STAGE_NAMES = {
    "run_predecessor": "predecessors",
    "label": "labels",
    "write_note": "notes",
    "run_takeover": "takeovers",
}


class NodesLostError(SandboxUnavailable):
    """No node of the cluster is left that can work."""


class RayExecutor:
    """An executor whose workers are the sandbox slots of a cluster's nodes."""

    _pool: WorkerPool

    def __init__(self, address: str, store_url: str | None, node_dir: str | None) -> None:
        self._address, self._store_url, self._parent = address, store_url, node_dir
        self._under_way: dict[Any, tuple[Job, frozenset[str]]] = {}
        """Submitted jobs, and the nodes that may run each."""
        self._withdrawals = Counter[tuple[str, ...]]()
        self._has_failures = False

    def check(self, config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
        """Connect to the cluster and check its nodes. Raises BadUsage if none can work."""
        if self._store_url is not None and redacted(self._store_url) != self._store_url:
            raise BadUsage("--depot: the URL contains a secret; set it in each node's fsspec configuration")
        if self._parent is not None and not Path(self._parent).is_absolute():
            raise BadUsage(
                f"--node-dir: {self._parent}: not an absolute path (give one that every node can have)"
            )
        self._config, self._paths = config, Places(out.absolute())
        self._own_store = self._paths.out / "depot"
        parent = (self._store_url or f"file://{self._own_store}").rstrip("/")
        self._store = ArtifactStore(f"{parent}/{config.run_id}")
        connect(self._address)
        try:
            from evals.cluster.pool import WorkerPool

            token, tasks = secrets.token_hex(16), tuple(map(_with_absolute_path, tasks))
            self._store.write("check/coordinator", token)
            versions = collect_versions(config, tasks)
            run = ClusterRun(config, tasks, versions, token, self._store.url, self._parent, SUITE)
            self._pool = WorkerPool(run)
        except BaseException:
            disconnect()
            if not (out / CONFIG_FILE).exists():  # else it may hold what the run needs
                self._remove_store()
            raise

    @contextmanager
    def opened(self) -> Iterator[Executor]:
        """The executor, while the nodes have their directories; they keep them unless all went well."""
        has_to_kill, is_done = True, False
        try:
            self._pool.prepare()
            yield self
            is_done = not self._has_failures
        except SystemExit:
            has_to_kill = False  # agents end their current action
            raise
        finally:
            try:
                try:
                    self._cancel(kill=has_to_kill)
                finally:
                    self._pool.clean_up(remove=is_done)
            finally:
                disconnect()
        if is_done:
            self._remove_store()

    def run(self, jobs: Iterable[Job]) -> Iterator[Row]:
        """Run the jobs, a window of them at a time; Ray runs those of a lost node on another."""
        import ray

        resources, retried = {RESOURCE: 1}, list(FAILURES)
        remote = ray.remote(num_cpus=0, resources=resources, max_retries=_RETRIES, retry_exceptions=retried)(
            run_job
        )
        pool, left, queue = self._pool, iter(jobs), deque[Job]()
        while True:
            free = max(_AHEAD * sum(node.slots for node in pool.ready.values()) - len(self._under_way), 0)
            queue.extend(islice(left, max(free - len(queue), int(not queue and not self._under_way))))
            if not queue and not self._under_way:
                return
            if not (pool.ready or pool.joining or self._under_way):
                raise NodesLostError("no node of the cluster is left that can work")
            for _ in range(min(free, len(queue))):
                yield from self._submit(queue.popleft(), remote)
            pool.update()
            for job in self._withdraw_stranded():
                name = (job.stage.__name__, *job.key)
                self._withdrawals[name] += 1
                if self._withdrawals[name] > _RETRIES:
                    yield self._failure(job, "each node that ran it was lost")
                else:
                    queue.append(job)
            awaited = [*self._under_way, *pool.joining]
            for reference in ray.wait(awaited, timeout=_WAIT_S)[0] if awaited else []:
                if reference in pool.joining:
                    pool.settle(reference)
                else:
                    yield from self._finish(reference, queue)

    def _submit(self, job: Job, remote: Any) -> Iterator[Row]:
        """Submit a job to the nodes that are ready; the row of one whose inputs cannot be uploaded."""
        known, task = _known_fields(job), _with_absolute_path(job.arguments[0])
        try:
            archives, records = self._upload_inputs(job, task)
        except OutOfDisk:
            raise
        except FAILURES as error:
            yield self._failure(job, str(error))
            return
        nodes = frozenset(self._pool.ready)
        holder = self._pool.threads.get(threads.thread_of(known)) if "trace" in known else None
        if holder in nodes:  # an interrupted job resumes where its thread is
            nodes = frozenset([holder])
        key = {name: known[name] for name in STAGES[_STAGE_NAMES[job.stage.__name__]]}
        sent = ClusterJob(job.stage, (task, *job.arguments[1:]), key, archives, records)
        selector = {NODE_LABEL: f"in({','.join(sorted(nodes))})"}
        reference = remote.options(label_selector=selector).remote(self._pool.run, sent)
        self._under_way[reference] = job, nodes

    def _upload_inputs(self, job: Job, task: Task) -> tuple[dict[str, str], tuple[str, ...]]:
        """Upload what a node needs for a job and the store lacks. Raises RecordRefused or SandboxUnavailable."""
        paths: dict[str, Path] = {}
        records: tuple[str, ...] = ()
        directory = self._paths.spec(self._config, task).directory
        if directory is not None:
            paths[f"checkouts/{task.id}"] = directory
        if job.record is not None:
            directory = self._paths.records.directory(job.record)
            records = (self._store.put_record(directory),)
            notes = directory / NOTES_FILE
            if notes.is_file():
                paths[f"notes/{job.record}-{notes.stat().st_mtime_ns}"] = notes
        archives = {name: str(path.relative_to(self._paths.out)) for name, path in paths.items()}
        for name, path in archives.items():
            if not self._store.has(name):
                self._store.put(name, self._paths.out, path)
        return archives, records

    def _withdraw_stranded(self) -> list[Job]:
        """The submitted jobs of which every node that may run them is dead."""
        import ray

        living = self._pool.living
        stranded = {ref: job for ref, (job, nodes) in self._under_way.items() if nodes.isdisjoint(living)}
        for reference in stranded:
            ray.cancel(reference, force=True)
            del self._under_way[reference]
        return list(stranded.values())

    def _finish(self, reference: Any, queue: deque[Job]) -> Iterator[Row]:
        """The row of a job that has ended, once all that belongs to it is here."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        from evals.cluster.pool import describe

        job, _ = self._under_way.pop(reference)
        try:
            result: Result = ray.get(reference)
            for record in result.records:
                self._store.fetch_record(record, self._paths.records)
            if result.archive:
                self._store.fetch(result.archive, self._paths.out, *result.paths)
        except OutOfDisk:
            raise
        except (*FAILURES, RayError) as error:
            if isinstance(error, RayTaskError) and not isinstance(error, FAILURES):
                raise
            yield self._failure(job, describe(error))
            return
        if result.row is None:
            for node in [node for node in self._pool.ready.values() if node.name == result.node]:
                self._pool.leave_out(node, result.problem)
            queue.append(job)
        else:
            self._has_failures |= result.row["outcome"] == FAILED
            yield result.row

    def _failure(self, job: Job, problem: str) -> Row:
        self._has_failures = True
        return _known_fields(job) | stages.failed(SandboxUnavailable(problem), time.monotonic())

    def _cancel(self, *, kill: bool) -> None:
        """End the jobs under way, at once or after their current action."""
        import ray

        references = [*self._under_way, *self._pool.joining]
        for reference in references:
            ray.cancel(reference, force=kill)
        if references:
            ray.wait(references, num_returns=len(references), timeout=_KILL_S if kill else None)

    def _remove_store(self) -> None:
        with suppress(SandboxUnavailable):
            self._store.remove()
        with suppress(OSError):  # where it is not ours alone
            self._own_store.rmdir()


def _known_fields(job: Job) -> Row:
    """What is known of a job's row before it runs."""
    stage, task = _STAGE_NAMES[job.stage.__name__], job.arguments[0]
    row: Row = dict(zip(STAGES[stage], job.key, strict=True))
    if stage == "predecessors":
        row["trace"] = job.config.run_of(*job.key)
    if stage == "takeovers":
        row |= {"task_id": task.id, "trace": threads.takeover_of(*job.key)}
    return row


def _with_absolute_path(task: Task) -> Task:
    if task.directory is None:
        return task
    return task.model_copy(update={"directory": task.directory.absolute()})
