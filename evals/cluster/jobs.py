"""The Ray tasks of a run: check and prepare a node, run one job there, clean up."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import sandbox
from evals.cluster.artifacts import ArtifactStore
from evals.cluster.compatibility import Versions, collect_versions, find_difference
from evals.models import BadModel
from evals.run import threads
from evals.run.config import RunConfig
from evals.run.endings import ending_on_sigterm
from evals.run.journal import FAILED, Row
from evals.run.places import Places
from evals.run.setup import check, usage_errors
from evals.run.tidying import tidy
from evals.tasks import SUITE, Task
from handoff.carrying import carried_digest
from handoff.ledger import LedgerUnusable
from handoff.record import NOTES_FILE, RecordRefused
from handoff.redaction import redacted
from nodes.session import owner_of
from sandbox.machine import OutOfDisk, SandboxUnavailable
from sandbox.removal import remove_tree

FAILURES = (SandboxUnavailable, RecordRefused, LedgerUnusable)
"""Errors of one node that another node may not have."""
STORE_CURE = "use a store that all nodes can write to: --depot s3://BUCKET/DIRECTORY"


class ClusterRun(NamedTuple):
    """The settings of a run that every node needs."""

    config: RunConfig
    tasks: tuple[Task, ...]
    versions: Versions
    token: str
    """What the coordinator and the nodes write into the artifact store to see whether they share it."""
    store_url: str
    parent: str | None
    suite: Path
    """Directory of the bundled tasks on the coordinator's host."""


class NodeRun:
    """A run on one node, whose directory and sandboxes are its own even where nodes share a host."""

    def __init__(self, run: ClusterRun, name: str) -> None:
        self.name = name
        self._run = run
        self._prefix = f"takeover-{run.config.run_id}-"
        self._parent = Path(run.parent or tempfile.gettempdir())
        self.config = run.config.model_copy(update={"run_id": f"{run.config.run_id}.{name}"})
        self.directory = self._parent / f"{self._prefix}{name}"
        self.paths = Places(self.directory)
        self.store = ArtifactStore(run.store_url)

    def siblings(self) -> Iterator[NodeRun]:
        """The same run on other nodes, dead ones too, whose directories are on this host."""
        for path in self._parent.glob(f"{self._prefix}*"):
            if path != self.directory:
                yield NodeRun(self._run, path.name.removeprefix(self._prefix))

    def locate(self, task: Task) -> Task:
        """The task with its directory as this host has it."""
        if task.directory is None or not task.directory.is_relative_to(self._run.suite):
            return task
        return task.model_copy(update={"directory": SUITE / task.directory.relative_to(self._run.suite)})

    def tidy(self) -> None:
        """Remove the sandboxes, and snapshots that nothing needs."""
        with self.paths.home() as home:
            tidy(self.config, self.paths, home)

    def remove(self) -> None:
        """Remove the directory, its sandboxes and their snapshots."""
        owners = [self.config.run_id]
        with contextlib.suppress(LedgerUnusable), self.paths.home() as home:
            owners += [owner_of(self.config.run_id, home.ledger, thread) for thread in home.threads()]
        with contextlib.suppress(SandboxUnavailable):
            sandbox.remove_leftovers(self.config.sandbox, *owners)
        remove_tree(self.directory)


class ClusterJob(NamedTuple):
    """One job, and what it takes from the artifact store."""

    stage: Callable[..., Row]
    arguments: tuple[Any, ...]
    key: dict[str, Any]
    archives: dict[str, str]
    """Names of archives, with the path in the run's directory that each holds."""
    records: tuple[str, ...]

    @property
    def name(self) -> str:
        parts = json.dumps([self.stage.__name__, *self.key.values()])
        return hashlib.sha256(parts.encode()).hexdigest()[:32]


class Result(NamedTuple):
    """A row, and what belongs to it in the artifact store; no row if the node's disk is full."""

    node: str
    row: Row | None
    archive: str = ""
    paths: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    problem: str = ""

    @property
    def names(self) -> list[str]:
        return [*self.records, self.archive] if self.archive else [*self.records]


def join_node(run: ClusterRun, living: frozenset[str] | None) -> tuple[str, list[str]]:
    """Why this node cannot work on the run (empty if it can), and the threads that it holds.

    With the names of the living nodes, its directory is prepared too.
    """
    node = _this_node(run)
    problem = _check(run, node)
    if problem or living is None:
        return problem, []
    for sibling in node.siblings():
        if sibling.name not in living:
            sibling.remove()
    node.tidy()
    with node.paths.home() as home:
        return "", list(home.threads())


def run_job(run: ClusterRun, job: ClusterJob) -> Result:
    """Run a job in the node's directory; if it has run before, its result comes from the artifact store."""
    node = _this_node(run)
    try:
        with _ending_when_cancelled():
            stored = node.store.read(f"rows/{job.name}")
            is_there = stored and all(map(node.store.has, Result(*stored).names))
            return Result(*stored) if is_there else _run_job(node, job)
    except OutOfDisk as error:
        return Result(node.name, None, problem=str(error))
    except SystemExit as error:
        raise SandboxUnavailable("the job received SIGTERM or was cancelled") from error


def leave_node(run: ClusterRun, remove: bool) -> None:
    """Remove the node's sandboxes, and its directory if nothing will resume there."""
    node = _this_node(run)
    if remove:
        node.remove()
    elif node.directory.is_dir():
        node.tidy()


def _this_node(run: ClusterRun) -> NodeRun:
    import ray

    return NodeRun(run, ray.get_runtime_context().get_node_id()[:12])


def _check(run: ClusterRun, node: NodeRun) -> str:
    try:
        if node.store.read("check/coordinator") != run.token:
            return f"it does not share the artifact store {run.store_url}; {STORE_CURE}"
        node.store.write(f"check/{node.name}", run.token)
    except SandboxUnavailable as error:
        return f"it does not share the artifact store ({error}); {STORE_CURE}"
    tasks = tuple(node.locate(task) for task in run.tasks)
    try:
        node.directory.parent.mkdir(parents=True, exist_ok=True)
        # Only the coordinator has the earlier run that --from names.
        check(node.config.model_copy(update={"records_of": None}), tasks, node.directory)
    except BadModel as error:
        return f"{error} (what counts is the environment of its `ray start`)"
    except usage_errors(OSError) as error:
        return str(error)
    return find_difference(collect_versions(run.config, tasks), run.versions)


def _run_job(node: NodeRun, job: ClusterJob) -> Result:
    store, paths, attempt = node.store, node.paths, secrets.token_hex(8)
    store.write(f"attempts/{job.name}/{attempt}", node.name)
    # Jobs of a node share records and checkouts.
    with (node.directory / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for record in job.records:
            store.fetch_record(record, paths.records)
        for archive, path in job.archives.items():
            if not (
                node.directory / path
            ).is_dir():  # checkouts stay the same, notes may be another attempt's
                store.fetch(archive, node.directory, path)
    task = node.locate(job.arguments[0])
    row = job.stage(node.config, node.directory, task, *job.arguments[1:])
    row |= {"node": node.name, "tries": store.count(f"attempts/{job.name}")}
    if "digest" in row:  # the daemon here may have the same record as an image
        row["digest"] = carried_digest(paths.records.load(row["record_id"]))
    records = tuple(store.put_record(paths.records.directory(name)) for name in row.get("records", ()))
    files = tuple(_files(node.directory, row))
    result = Result(node.name, row, f"results/{attempt}" if files else "", files, records)
    if files:
        store.put(result.archive, node.directory, *files)
    if row["outcome"] != FAILED:
        store.write(f"rows/{job.name}", result._replace(row=redacted(row) | job.key))
        if "trace" in row:
            with paths.home() as home:
                threads.forget_machines(node.config, home, task, row)
    for path in files:
        if path.startswith("grading/"):
            remove_tree(node.directory / path)
    return result


def _files(root: Path, row: Row) -> Iterator[str]:
    """The paths below a run's directory that belong to a row, besides records."""
    names = [f"traces/{row.get('trace')}.json", f"grading/{row.get('trace')}"]
    names.append(f"grading/snapshot.{row.get('record_id')}")
    if row["outcome"] == "written":
        names.append(f"records/{row['record_id']}/{NOTES_FILE}")
    return (name for name in names if (root / name).exists())


@contextlib.contextmanager
def _ending_when_cancelled() -> Iterator[None]:
    """End as a local worker does on SIGTERM; Ray cancels a task by SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    with ending_on_sigterm():
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
