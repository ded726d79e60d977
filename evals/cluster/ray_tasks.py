"""The Ray tasks of a run: check and prepare a node, run one job there, clean up."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_takeover import sandbox
from langgraph_takeover.base.telemetry import flush
from langgraph_takeover.evals.cluster.artifacts import (
    ArtifactStore,
    Versions,
    collect_versions,
    find_difference,
)
from langgraph_takeover.evals.models import ModelNameError
from langgraph_takeover.evals.run.checks import check_run
from langgraph_takeover.evals.run.execution import threads
from langgraph_takeover.evals.run.execution.executors import Job, handle_sigterm
from langgraph_takeover.evals.run.execution.jobs import remove_stale_resources
from langgraph_takeover.evals.run.preparation import usage_errors
from langgraph_takeover.evals.run.rows import AgentRow, Fields, PredecessorRow, Row, Takeover
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths
from langgraph_takeover.evals.tasks import SUITE, Task
from langgraph_takeover.handoff.ledger import LedgerUnavailableError
from langgraph_takeover.handoff.records.archive import compute_archive_digest
from langgraph_takeover.handoff.records.record import NOTES_FILE, RecordError
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.session.state_store import build_owner_name
from langgraph_takeover.sandbox.interface import OutOfDiskError, SandboxUnavailableError
from langgraph_takeover.sandbox.untrusted_trees import list_matches, remove_tree

NODE_ERRORS = (SandboxUnavailableError, RecordError, LedgerUnavailableError)
"""Errors of one node that may not occur on another."""
STORE_HINT = "use a store that all nodes can write: --artifact-store s3://BUCKET/DIRECTORY"


class ClusterRun(NamedTuple):
    """The settings of a run that every node needs."""

    config: RunConfig
    tasks: tuple[Task, ...]
    versions: Versions
    token: str
    """The test value with which the coordinator and the nodes check that they share the artifact store."""
    store_url: str
    parent: str | None
    suite: Path
    """Directory of the bundled tasks on the coordinator's host."""


class NodeRun:
    """A run on one node. Its directory and sandboxes are its own, even if nodes share a host."""

    def __init__(self, run: ClusterRun, name: str) -> None:
        self.name = name
        self._run = run
        self._prefix = f"takeover-{run.config.run_id}-"
        self._parent = Path(run.parent or tempfile.gettempdir())
        self.config = run.config.model_copy(update={"run_id": f"{run.config.run_id}.{name}"})
        self.directory = self._parent / f"{self._prefix}{name}"
        self.paths = RunPaths(self.directory)
        self.store = ArtifactStore(run.store_url)

    def list_siblings(self) -> Iterator[NodeRun]:
        """The same run on other nodes, including dead ones, whose directories are on this host."""
        for path in list_matches(self._parent, f"{glob.escape(self._prefix)}*"):
            if path != self.directory:
                yield NodeRun(self._run, path.name.removeprefix(self._prefix))

    def locate_task(self, task: Task) -> Task:
        """The task with its directory on this host."""
        if task.directory is None or not task.directory.is_relative_to(self._run.suite):
            return task
        return task.model_copy(update={"directory": SUITE / task.directory.relative_to(self._run.suite)})

    def clean_up(self) -> None:
        """Remove the sandboxes and the snapshots that nothing needs."""
        with self.paths.home() as home:
            remove_stale_resources(self.config, self.paths, home)

    def remove(self) -> None:
        """Remove the directory, its sandboxes and their snapshots."""
        owners = [self.config.run_id]
        with contextlib.suppress(LedgerUnavailableError), self.paths.home() as home:
            owners += [build_owner_name(self.config.run_id, home.ledger, thread) for thread in home.threads()]
        with contextlib.suppress(SandboxUnavailableError):
            sandbox.remove_stale_resources(self.config.sandbox, *owners)
        remove_tree(self.directory)


class ClusterJob(NamedTuple):
    """One job and its inputs in the artifact store."""

    stage: Callable[..., Row]
    arguments: tuple[Any, ...]
    key: dict[str, Any]
    archives: dict[str, str]
    """Names of archives, with their paths in the run's directory."""
    records: tuple[str, ...]

    @property
    def name(self) -> str:
        parts = json.dumps([self.stage.__name__, *self.key.values()])
        return hashlib.sha256(parts.encode()).hexdigest()[:32]


class JobResult(NamedTuple):
    """A row and its files in the artifact store. No row if the node's disk is full."""

    node: str
    row: Fields | None
    archive: str = ""
    paths: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    problem: str = ""

    @property
    def artifact_names(self) -> list[str]:
        return [*self.records, self.archive] if self.archive else [*self.records]


def join_node(run: ClusterRun, living_names: frozenset[str] | None) -> tuple[str, list[str]]:
    """Why this node cannot work on the run (empty if it can), and its threads.

    If `living_names` names the living nodes, also prepare the node's directory.
    """
    node = _get_this_node(run)
    problem = _find_problem(run, node)
    if problem or living_names is None:
        return problem, []
    for sibling in node.list_siblings():
        if sibling.name not in living_names:
            sibling.remove()
    node.clean_up()
    with node.paths.home() as home:
        return "", list(home.threads())


def run_job(run: ClusterRun, job: ClusterJob) -> JobResult:
    """Run a job in the node's directory. A repeated job returns its result from the artifact store."""
    node = _get_this_node(run)
    try:
        with _handle_cancellation():
            stored = node.store.read(f"rows/{job.name}")
            is_there = stored and all(map(node.store.has, JobResult(*stored).artifact_names))
            return JobResult(*stored) if is_there else _run_job(node, job)
    except OutOfDiskError as error:
        return JobResult(node.name, None, problem=str(error))
    except SystemExit as error:
        raise SandboxUnavailableError("the job received SIGTERM or was cancelled") from error


def leave_node(run: ClusterRun, remove: bool) -> None:
    """Remove the node's sandboxes, and its directory if no job will resume there."""
    node = _get_this_node(run)
    if remove:
        node.remove()
    elif node.directory.is_dir():
        node.clean_up()


def _get_this_node(run: ClusterRun) -> NodeRun:
    import ray

    return NodeRun(run, ray.get_runtime_context().get_node_id()[:12])


def _find_problem(run: ClusterRun, node: NodeRun) -> str:
    try:
        if node.store.read("check/coordinator") != run.token:
            return f"it does not share the artifact store {run.store_url}; {STORE_HINT}"
        node.store.write(f"check/{node.name}", run.token)
    except SandboxUnavailableError as error:
        return f"it does not share the artifact store ({error}); {STORE_HINT}"
    tasks = tuple(node.locate_task(task) for task in run.tasks)
    try:
        node.directory.parent.mkdir(parents=True, exist_ok=True)
        # Only the coordinator has the earlier run of --from.
        check_run(node.config.model_copy(update={"records_of": None}), tasks, node.directory)
    except ModelNameError as error:
        return f"{error} (set it in the environment of `ray start`)"
    except usage_errors(OSError) as error:
        return str(error)
    return find_difference(collect_versions(run.config, tasks), run.versions)


def _run_job(node: NodeRun, job: ClusterJob) -> JobResult:
    store, paths, attempt = node.store, node.paths, secrets.token_hex(8)
    store.write(f"attempts/{job.name}/{attempt}", node.name)
    # Jobs of one node share records and checkouts.
    with (node.directory / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for record in job.records:
            store.fetch_record(record, paths.records)
        for archive, path in job.archives.items():
            if not (
                node.directory / path
            ).is_dir():  # checkouts never change, notes may come from another attempt
                store.fetch(archive, node.directory, path)
    task = node.locate_task(job.arguments[0])
    arguments = (task, *job.arguments[1:])
    row = Job(job.stage, node.config, node.directory, arguments, tuple(job.key.values())).run()
    flush()  # a worker may be killed
    row = row.change(node=node.name, tries=store.count(f"attempts/{job.name}"))
    if isinstance(row, Takeover) and row.digest:  # the local daemon may have the record's image
        row = row.change(digest=compute_archive_digest(paths.records.load(row.record_id)))
    made = (row.records or ()) if isinstance(row, PredecessorRow) else ()
    records = tuple(store.put_record(paths.records.directory(name)) for name in made)
    files = tuple(_list_files(node.directory, row))
    result = JobResult(node.name, row.to_dict(), f"results/{attempt}" if files else "", files, records)
    if files:
        store.put(result.archive, node.directory, *files)
    if not row.is_failure:
        store.write(f"rows/{job.name}", result._replace(row=redact(row.to_dict()) | job.key))
        if isinstance(row, AgentRow):
            with paths.home() as home:
                threads.release_snapshots(node.config, home, task, row)
    for path in files:
        if path.startswith("grading/"):
            remove_tree(node.directory / path)
    return result


def _list_files(root: Path, row: Row) -> Iterator[str]:
    """The paths below a run's directory that belong to a row, except records."""
    trace, record = row.read("trace", "record_id")
    names = [f"traces/{trace}.json", f"grading/{trace}"]
    names += [f"grading/predecessor.{trace}", f"grading/snapshot.{record}"]
    if row.outcome == "written":
        names.append(f"records/{record}/{NOTES_FILE}")
    return (name for name in names if (root / name).exists())


@contextlib.contextmanager
def _handle_cancellation() -> Iterator[None]:
    """End like a local worker on SIGTERM. Ray cancels a task by SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    with handle_sigterm():
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
