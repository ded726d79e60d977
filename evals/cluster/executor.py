"""Run jobs as tasks of a Ray cluster: Ray schedules and retries them, the coordinator stores their rows."""

from __future__ import annotations

import secrets
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph_takeover.evals.cluster.artifacts import ArtifactStore
from langgraph_takeover.evals.cluster.compatibility import collect_versions
from langgraph_takeover.evals.cluster.connection import NODE_LABEL, RESOURCE, connect, disconnect
from langgraph_takeover.evals.cluster.jobs import NODE_ERRORS, ClusterJob, ClusterRun, JobResult, run_job
from langgraph_takeover.evals.run.execution import stages, threads
from langgraph_takeover.evals.run.execution.executors import Executor, Job
from langgraph_takeover.evals.run.rows import STAGES, Fields, Row
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    RunConfig,
    RunPaths,
    RunUsageError,
)
from langgraph_takeover.evals.tasks import SUITE, Task
from langgraph_takeover.graph.runs.stop_requests import announce_wait
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.records.record import NOTES_FILE
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError

if TYPE_CHECKING:
    from langgraph_takeover.evals.cluster.pool import WorkerPool

_JOBS_PER_SLOT = 2
"""Submitted jobs per slot."""
_RETRIES = 3
_WAIT_S = 5.0
_KILL_S = 120.0
_REPLY_S = 0.2
_STAGE_NAMES = {
    stages.run_predecessor: "predecessors",
    stages.grade_snapshot: "labels",
    stages.write_note: "notes",
    stages.run_takeover: "takeovers",
}


class NodesLostError(SandboxUnavailableError):
    """The cluster has no working node left."""


class RayExecutor:
    """An executor whose workers are the sandbox slots of the cluster's nodes."""

    _pool: WorkerPool

    def __init__(self, address: str, store_url: str | None, node_dir: str | None) -> None:
        self._address, self._store_url, self._node_dir = address, store_url, node_dir
        self._active_jobs: dict[Any, tuple[Job, frozenset[str]]] = {}
        """The submitted jobs, and the nodes on which each may run."""
        self._withdrawals = Counter[tuple[str, ...]]()
        self._has_failures = False

    def check(self, config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
        """Connect to the cluster and check its nodes. Raises RunUsageError if none can work."""
        if self._store_url is not None and redact(self._store_url) != self._store_url:
            raise RunUsageError(
                "--artifact-store: the URL contains a secret (set it in each node's fsspec configuration)"
            )
        if self._node_dir is not None and not Path(self._node_dir).is_absolute():
            raise RunUsageError(
                f"--node-dir: {self._node_dir}: not an absolute path (use one that every node can create)"
            )
        if CONTINUATION in config.views:
            raise RunUsageError(
                f"--view {CONTINUATION}: not with --executor ray, whose nodes do not share conversations (use local)"
            )
        self._config, self._paths = config, RunPaths(out.absolute())
        self._own_store = self._paths.out / "artifacts"
        parent = (self._store_url or f"file://{self._own_store}").rstrip("/")
        self._store = ArtifactStore(f"{parent}/{config.run_id}")
        connect(self._address)
        try:
            from langgraph_takeover.evals.cluster.pool import WorkerPool

            token, tasks = secrets.token_hex(16), tuple(map(_make_path_absolute, tasks))
            self._store.write("check/coordinator", token)
            versions = collect_versions(config, tasks)
            run = ClusterRun(config, tasks, versions, token, self._store.url, self._node_dir, SUITE)
            self._pool = WorkerPool(run)
        except BaseException:
            disconnect()
            if not (out / CONFIG_FILE).exists():  # else it may contain files that the run needs
                self._remove_store()
            raise

    @contextmanager
    def open_executor(self) -> Iterator[Executor]:
        """The open executor. The nodes keep their directories unless every job succeeds."""
        has_to_kill, is_done = True, False
        try:
            self._pool.prepare()
            yield self
            is_done = not self._has_failures
        except (SystemExit, KeyboardInterrupt):
            announce_wait()
            has_to_kill = False  # agents complete their current action
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
        """Run the jobs, a window at a time. Ray moves the jobs of a lost node to another."""
        import ray

        resources, retried = {RESOURCE: 1}, list(NODE_ERRORS)
        remote = ray.remote(num_cpus=0, resources=resources, max_retries=_RETRIES, retry_exceptions=retried)(
            run_job
        )
        pool, left, queue = self._pool, iter(jobs), deque[Job]()
        while True:
            free = max(
                _JOBS_PER_SLOT * sum(node.slots for node in pool.ready_nodes.values())
                - len(self._active_jobs),
                0,
            )
            queue.extend(islice(left, max(free - len(queue), int(not queue and not self._active_jobs))))
            if not queue and not self._active_jobs:
                return
            if not (pool.ready_nodes or pool.pending_checks or self._active_jobs):
                raise NodesLostError("the cluster has no working node left")
            for _ in range(min(free, len(queue))):
                yield from self._submit(queue.popleft(), remote)
            pool.update()
            for job in self._withdraw_stranded_jobs():
                name = (job.stage.__name__, *job.key)
                self._withdrawals[name] += 1
                if self._withdrawals[name] > _RETRIES:
                    yield self._make_failure_row(job, "each node that ran the job was lost")
                else:
                    queue.append(job)
            awaited = [*self._active_jobs, *pool.pending_checks]
            for reference in ray.wait(awaited, timeout=_WAIT_S)[0] if awaited else []:
                if reference in pool.pending_checks:
                    pool.process_check(reference)
                else:
                    yield from self._finish(reference, queue)

    def _submit(self, job: Job, remote: Any) -> Iterator[Row]:
        """Submit a job to the ready nodes. Return a row if its inputs cannot be uploaded."""
        task = _make_path_absolute(job.arguments[0])
        try:
            archives, records = self._upload_inputs(job, task)
        except OutOfDiskError:
            raise
        except NODE_ERRORS as error:
            yield self._make_failure_row(job, str(error))
            return
        nodes = frozenset(self._pool.ready_nodes)
        holder = self._pool.thread_nodes.get(_name_thread(job))
        if holder in nodes:  # an interrupted job resumes on the node of its thread
            nodes = frozenset([holder])
        key = dict(zip(STAGES[_STAGE_NAMES[job.stage]].key_fields, job.key, strict=True))
        sent = ClusterJob(job.stage, (task, *job.arguments[1:]), key, archives, records)
        selector = {NODE_LABEL: f"in({','.join(sorted(nodes))})"}
        reference = remote.options(label_selector=selector).remote(self._pool.run, sent)
        self._active_jobs[reference] = job, nodes

    def _upload_inputs(self, job: Job, task: Task) -> tuple[dict[str, str], tuple[str, ...]]:
        """Upload the inputs of a job that the store lacks. Raises RecordError or SandboxUnavailableError."""
        paths: dict[str, Path] = {}
        records: tuple[str, ...] = ()
        directory = self._paths.spec(self._config, task).directory
        if directory is not None:
            paths[f"checkouts/{task.id}"] = directory
        if job.record_id is not None:
            directory = self._paths.records.directory(job.record_id)
            records = (self._store.put_record(directory),)
            notes = directory / NOTES_FILE
            if notes.is_file():
                paths[f"notes/{job.record_id}-{notes.stat().st_mtime_ns}"] = notes
        archives = {name: str(path.relative_to(self._paths.out)) for name, path in paths.items()}
        for name, path in archives.items():
            if not self._store.has(name):
                self._store.put(name, self._paths.out, path)
        return archives, records

    def _withdraw_stranded_jobs(self) -> list[Job]:
        """The submitted jobs whose permitted nodes are all dead."""
        import ray

        living = self._pool.living_nodes
        stranded = {ref: job for ref, (job, nodes) in self._active_jobs.items() if nodes.isdisjoint(living)}
        for reference in stranded:
            ray.cancel(reference, force=True)
            del self._active_jobs[reference]
        return list(stranded.values())

    def _finish(self, reference: Any, queue: deque[Job]) -> Iterator[Row]:
        """The row of a completed job, once all of its files have arrived."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        from langgraph_takeover.evals.cluster.pool import describe_ray_error

        job, _ = self._active_jobs.pop(reference)
        try:
            result: JobResult = ray.get(reference)
            for record in result.records:
                self._store.fetch_record(record, self._paths.records)
            if result.archive:
                self._store.fetch(result.archive, self._paths.out, *result.paths)
        except OutOfDiskError:
            raise
        except (*NODE_ERRORS, RayError) as error:
            if isinstance(error, RayTaskError) and not isinstance(error, NODE_ERRORS):
                raise
            yield self._make_failure_row(job, describe_ray_error(error))
            return
        if result.row is None:
            for node in [node for node in self._pool.ready_nodes.values() if node.name == result.node]:
                self._pool.exclude(node, result.problem)
            queue.append(job)
        else:
            row = STAGES[_STAGE_NAMES[job.stage]].model_validate(result.row)
            self._has_failures |= row.is_failure
            yield row

    def _make_failure_row(self, job: Job, problem: str) -> Row:
        self._has_failures = True
        stage, task = _STAGE_NAMES[job.stage], job.arguments[0]
        known: Fields = dict(zip(STAGES[stage].key_fields, job.key, strict=True))
        if stage == "predecessors":
            known["trace"] = job.config.name_run(*job.key)
        if stage == "takeovers":
            known |= {"task_id": task.id, "trace": threads.name_takeover(*job.key)}
        error = SandboxUnavailableError(problem)
        return stages.make_failure_row(STAGES[stage], known, error, time.monotonic())

    def _cancel(self, *, kill: bool) -> None:
        """End the running jobs, at once or after their current action."""
        import ray

        references = [*self._active_jobs, *self._pool.pending_checks]
        if not references:
            return
        # Ray 2.60 aborts this process if a task is cancelled while its reply is being processed, and an interrupt often
        # arrives with a reply.
        _, running = ray.wait(references, num_returns=len(references), timeout=_REPLY_S)
        for reference in running:
            ray.cancel(reference, force=kill)
        if running:
            ray.wait(running, num_returns=len(running), timeout=_KILL_S if kill else None)

    def _remove_store(self) -> None:
        with suppress(SandboxUnavailableError):
            self._store.remove()
        with suppress(OSError):  # other executors may share it
            self._own_store.rmdir()


def _name_thread(job: Job) -> str:
    """The thread of a job; empty if it has none."""
    stage = _STAGE_NAMES[job.stage]
    if stage == "predecessors":
        return threads.name_predecessor_thread(job.config.name_run(*job.key))
    return threads.name_takeover_thread(threads.name_takeover(*job.key)) if stage == "takeovers" else ""


def _make_path_absolute(task: Task) -> Task:
    if task.directory is None:
        return task
    return task.model_copy(update={"directory": task.directory.absolute()})
