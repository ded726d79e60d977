"""The worker pool: the nodes of a run, checked when they join; incompatible nodes are excluded by name."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from langgraph_takeover.evals.cluster.artifacts import ArtifactStore
from langgraph_takeover.evals.cluster.connection import RESOURCE, Node, list_nodes
from langgraph_takeover.evals.cluster.jobs import STORE_HINT, ClusterRun, join_node, leave_node
from langgraph_takeover.evals.run.settings.config import RunUsageError
from langgraph_takeover.sandbox.interface import SandboxUnavailableError

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
