"""Run jobs as tasks of a Ray cluster, on a pool of checked nodes."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_takeover.evals.cluster.artifacts import ArtifactStore, collect_versions
from langgraph_takeover.evals.cluster.ray_tasks import (
    NODE_ERRORS,
    STORE_HINT,
    ClusterJob,
    ClusterRun,
    JobResult,
    join_node,
    leave_node,
    run_job,
)
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

# Ray reads these when it is imported. Without them, it warns about variables that no sandbox has, and prints pages of a
# lost node's log.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
try:
    import ray
    from ray.exceptions import NodeDiedError, ObjectLostError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise RunUsageError(
        "--executor ray: Ray is not installed (pip install 'langgraph-takeover[ray]')"
    ) from error

RESOURCE = "sandbox"
"""The Ray resource of a node that counts its parallel jobs."""
NODE_LABEL = "ray.io/node-id"
_CONNECT_S = 5.0
# Ray takes minutes to report that no cluster answers, so we open an HTTP/2 connection to the address first.
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_HTTP2_SETTINGS = 4


class Node(NamedTuple):
    """A living node that offers sandboxes."""

    id: str
    host: str
    slots: int

    @property
    def name(self) -> str:
        return self.id[:12]

    def __str__(self) -> str:
        return f"{self.name} ({self.host})"


def connect(address: str) -> None:
    """Join the cluster as its driver. Raises RunUsageError."""
    disconnect()
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        if address != "auto":
            _check_listener(address)
        ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RunUsageError(
            f"--address: no Ray cluster answers at {address} ({reason}); start one: "
            f"ray start --head --port=6379 --resources='{{\"{RESOURCE}\": 4}}'"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)


def disconnect() -> None:
    ray.shutdown()


def _check_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S) as connection:
        connection.sendall(_HTTP2_PREFACE)
        if connection.recv(9)[3:4] != bytes([_HTTP2_SETTINGS]):
            raise ConnectionError("the listener is not a Ray head")


def list_nodes() -> dict[str, Node]:
    """The living nodes that offer sandboxes, by id."""
    nodes = [
        Node(node["NodeID"], node["NodeManagerHostname"], int(node["Resources"].get(RESOURCE, 0)))
        for node in ray.nodes()
        if node["Alive"]
    ]
    return {node.id: node for node in nodes if node.slots}


_LOST_NODE_ERRORS = (NodeDiedError, ObjectLostError, TaskUnschedulableError)
"""The exceptions of Ray for a task on a lost node."""
_CHECK_S = 180.0
_CLEAN_UP_S = 120.0
_POLL_S = 5.0


class WorkerPool:
    """The nodes of the cluster that one run uses. Raises RunUsageError if none can work."""

    def __init__(self, run: ClusterRun) -> None:
        self.run = ray.put(run)
        self._store, self._token = ArtifactStore(run.store_url), run.token
        self._updated_at = time.monotonic()
        self.living_nodes = list_nodes()
        self._known_ids = set(self.living_nodes)
        self.ready_nodes: dict[str, Node] = {}
        self.thread_nodes: dict[str, str] = {}
        """The id of each thread's node."""
        self.pending_checks: dict[Any, tuple[Node, float]] = {}
        """Running checks: reference, node and deadline."""
        self._prepared_nodes: dict[str, Node] = {}
        if not self.living_nodes:
            raise RunUsageError(
                f"--executor ray: no node of the cluster offers {RESOURCE!r}; start nodes: "
                f"ray start --address=HOST:PORT --resources='{{\"{RESOURCE}\": 4}}'"
            )
        self._start_checks(self.living_nodes.values(), prepare=False)
        self._process_all_checks()

    def prepare(self) -> None:
        """Prepare the nodes' directories. Raises RunUsageError if no node can work any more."""
        nodes, self.ready_nodes = self.ready_nodes, {}
        self._start_checks(nodes.values(), prepare=True)
        self._process_all_checks()

    def update(self) -> None:
        """Every few seconds, remove dead nodes, check new ones, and exclude those that do not answer."""
        now = time.monotonic()
        if now - self._updated_at < _POLL_S:
            return
        self._updated_at = now
        for reference in [reference for reference, (_, end) in self.pending_checks.items() if end < now]:
            self._exclude_silent(reference)
        self.living_nodes = list_nodes()
        self.ready_nodes = {id: node for id, node in self.ready_nodes.items() if id in self.living_nodes}
        self._start_checks(
            [node for id, node in self.living_nodes.items() if id not in self._known_ids], prepare=True
        )
        self._known_ids |= set(self.living_nodes)

    def process_check(self, reference: Any) -> None:
        """Accept or exclude a node after its check."""
        node, _ = self.pending_checks.pop(reference)
        try:
            problem, threads = ray.get(reference)
            if not problem and self._store.read(f"check/{node.name}") != self._token:
                problem = f"its writes to the artifact store are not visible here; {STORE_HINT}"
        except _LOST_NODE_ERRORS as error:
            problem = f"the node was lost during its check: {describe_ray_error(error)}"
        except Exception as error:  # any exception, if the node has another version of this package
            problem = f"the node cannot run this package's check: {describe_ray_error(error)}"
        if problem:
            self.exclude(node, problem)
        else:
            self.ready_nodes[node.id] = node
            self.thread_nodes |= dict.fromkeys(threads, node.id)

    def exclude(self, node: Node, reason: str) -> None:
        self.ready_nodes.pop(node.id, None)
        print(f"excluded: node {node}: {' '.join(reason.split())}", file=sys.stderr, flush=True)

    def clean_up(self, *, remove: bool) -> None:
        """Remove the run's files from its nodes, including those excluded later."""
        living = list_nodes()
        nodes = [node for id, node in self._prepared_nodes.items() if id in living]
        ends = {_submit(node, leave_node, self.run, remove): node for node in nodes}
        done = ray.wait(list(ends), num_returns=len(ends), timeout=_CLEAN_UP_S)[0] if ends else []
        for reference, node in ends.items():
            try:
                if reference not in done:
                    raise SandboxUnavailableError("the node does not answer")
                ray.get(reference)
            except _LOST_NODE_ERRORS:
                continue  # a node that joins later on the same host cleans up
            except Exception as error:  # continue with the other nodes
                print(f"node {node} was not cleaned up: {describe_ray_error(error)}", file=sys.stderr)

    def _start_checks(self, nodes: Iterable[Node], *, prepare: bool) -> None:
        living = frozenset(node.name for node in self.living_nodes.values()) if prepare else None
        end = time.monotonic() + _CHECK_S
        for node in nodes:
            self.pending_checks[_submit(node, join_node, self.run, living)] = node, end
            if prepare:
                self._prepared_nodes[node.id] = node

    def _exclude_silent(self, reference: Any) -> None:
        ray.cancel(reference, force=True)
        self.exclude(self.pending_checks.pop(reference)[0], f"no answer within {_CHECK_S:.0f} s")

    def _process_all_checks(self) -> None:
        references = list(self.pending_checks)
        done, silent = ray.wait(references, num_returns=len(references), timeout=_CHECK_S)
        for reference in done:
            self.process_check(reference)
        for reference in silent:
            self._exclude_silent(reference)
        if not self.ready_nodes:
            raise RunUsageError(
                f"--executor ray: none of the {len(self.living_nodes)} nodes that offer {RESOURCE!r} can work here; "
                "the reasons are listed above"
            )


def describe_ray_error(error: Exception) -> str:
    """The first line of an error; if Ray wraps a task's error, of that error."""
    lines = str(getattr(error, "cause", None) or error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _submit(node: Node, function: Callable[..., Any], *arguments: Any) -> Any:
    """A reference to the function's result on exactly that node."""
    strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
    remote = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(function)
    return remote.remote(*arguments)


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
        living = self._pool.living_nodes
        stranded = {ref: job for ref, (job, nodes) in self._active_jobs.items() if nodes.isdisjoint(living)}
        for reference in stranded:
            ray.cancel(reference, force=True)
            del self._active_jobs[reference]
        return list(stranded.values())

    def _finish(self, reference: Any, queue: deque[Job]) -> Iterator[Row]:
        """The row of a completed job, once all of its files have arrived."""
        from ray.exceptions import RayError, RayTaskError

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
