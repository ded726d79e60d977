"""The worker pool: the nodes that work on a run, checked when first seen, and left out by name if they cannot."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evals.cluster.artifacts import ArtifactStore
from evals.cluster.connection import RESOURCE, Node, list_nodes
from evals.cluster.jobs import STORE_CURE, ClusterRun, join_node, leave_node
from evals.run.config import BadUsage
from sandbox.machine import SandboxUnavailable

_LOST = (NodeDiedError, ObjectLostError, TaskUnschedulableError)
"""What Ray raises for a task of a node that is lost."""
_CHECK_S = 180.0
_END_S = 120.0
_POLL_S = 5.0


class WorkerPool:
    """The nodes of the cluster as one run sees them. Raises BadUsage if none can work."""

    def __init__(self, run: ClusterRun) -> None:
        self.run = ray.put(run)
        self._store, self._token = ArtifactStore(run.store_url), run.token
        self._updated = time.monotonic()
        self.living = list_nodes()
        self._known = set(self.living)
        self.ready: dict[str, Node] = {}
        self.threads: dict[str, str] = {}
        """The id of the node that holds a thread."""
        self.joining: dict[Any, tuple[Node, float]] = {}
        """References to checks under way, each with its node and the time at which it is too late."""
        self._prepared: dict[str, Node] = {}
        if not self.living:
            raise BadUsage(
                f"--executor ray: no node of the cluster offers {RESOURCE!r}; start nodes with: "
                f"ray start --address=HOST:PORT --resources='{{\"{RESOURCE}\": 4}}'"
            )
        self._join(self.living.values(), prepare=False)
        self._settle_all()

    def prepare(self) -> None:
        """Prepare the nodes' directories. Raises BadUsage if none can work any more."""
        nodes, self.ready = self.ready, {}
        self._join(nodes.values(), prepare=True)
        self._settle_all()

    def update(self) -> None:
        """Every few seconds: drop dead nodes, check and prepare new ones, leave out those that do not answer."""
        now = time.monotonic()
        if now - self._updated < _POLL_S:
            return
        self._updated = now
        for reference in [reference for reference, (_, end) in self.joining.items() if end < now]:
            self._leave_out_silent(reference)
        self.living = list_nodes()
        self.ready = {id: node for id, node in self.ready.items() if id in self.living}
        self._join([node for id, node in self.living.items() if id not in self._known], prepare=True)
        self._known |= set(self.living)

    def settle(self, reference: Any) -> None:
        """Accept or leave out a node whose check has ended."""
        node, _ = self.joining.pop(reference)
        try:
            problem, threads = ray.get(reference)
            if not problem and self._store.read(f"check/{node.name}") != self._token:
                problem = f"what it puts into the artifact store is not seen here; {STORE_CURE}"
        except _LOST as error:
            problem = f"it was lost during its check: {describe(error)}"
        except Exception as error:  # anything, where the node has another version of this package
            problem = f"it cannot run this package's check: {describe(error)}"
        if problem:
            self.leave_out(node, problem)
        else:
            self.ready[node.id] = node
            self.threads |= dict.fromkeys(threads, node.id)

    def leave_out(self, node: Node, reason: str) -> None:
        self.ready.pop(node.id, None)
        print(f"left out: node {node}: {' '.join(reason.split())}", file=sys.stderr, flush=True)

    def clean_up(self, *, remove: bool) -> None:
        """Remove what the run left on its nodes, on those that were left out later too."""
        living = list_nodes()
        nodes = [node for id, node in self._prepared.items() if id in living]
        ends = {_submit(node, leave_node, self.run, remove): node for node in nodes}
        done = ray.wait(list(ends), num_returns=len(ends), timeout=_END_S)[0] if ends else []
        for reference, node in ends.items():
            try:
                if reference not in done:
                    raise SandboxUnavailable("it does not answer")
                ray.get(reference)
            except _LOST:
                continue  # a node that joins on its host later cleans up
            except Exception as error:  # the other nodes are still to be cleaned up
                print(f"node {node} was not tidied: {describe(error)}", file=sys.stderr)

    def _join(self, nodes: Iterable[Node], *, prepare: bool) -> None:
        living = frozenset(node.name for node in self.living.values()) if prepare else None
        end = time.monotonic() + _CHECK_S
        for node in nodes:
            self.joining[_submit(node, join_node, self.run, living)] = node, end
            if prepare:
                self._prepared[node.id] = node

    def _leave_out_silent(self, reference: Any) -> None:
        ray.cancel(reference, force=True)
        self.leave_out(self.joining.pop(reference)[0], f"it gave no answer in {_CHECK_S:.0f} s")

    def _settle_all(self) -> None:
        references = list(self.joining)
        done, silent = ray.wait(references, num_returns=len(references), timeout=_CHECK_S)
        for reference in done:
            self.settle(reference)
        for reference in silent:
            self._leave_out_silent(reference)
        if not self.ready:
            raise BadUsage(
                f"--executor ray: none of the {len(self.living)} nodes that offer {RESOURCE!r} can work here; "
                "each is named above with its reason"
            )


def describe(error: Exception) -> str:
    """The first line of an error, of a task's own where Ray wraps it."""
    lines = str(getattr(error, "cause", None) or error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _submit(node: Node, function: Callable[..., Any], *arguments: Any) -> Any:
    """A reference to the function's value on that node, and on no other."""
    strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
    remote = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(function)
    return remote.remote(*arguments)
