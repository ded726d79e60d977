"""The nodes that work on a run: which of the cluster's can, what they hold, and that nothing of theirs is left."""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evals.cluster import node
from evals.cluster.depot import Depot, Item
from evals.cluster.likeness import difference, likeness
from evals.cluster.membership import RESOURCE, Lost, Member, come_to, first_of, given, members, shared
from evals.run.config import BadUsage, RunConfig
from evals.run.journal import Row
from evals.tasks import SUITE, Task
from sandbox.machine import SandboxUnavailable

_ANSWER_S = 180.0
_END_S = 120.0
_LOOK_S = 5.0
_IMAGE = "image "


class Node:
    """A node that can work, and what it has to do."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.records: set[str] = set()
        self.threads: frozenset[str] = frozenset()
        self.busy = 0
        self.safe: list[tuple[Task, Row]] = []
        """Rows of its that are journaled, which it has not been told of."""

    @property
    def free(self) -> int:
        return self.member.slots - self.busy

    def holds(self, held: node.Held) -> Node:
        self.records, self.threads = set(held.records), held.threads
        return self


class Roster:
    """Who works; asked at the beginning, and again whoever is new or in doubt."""

    def __init__(self, config: RunConfig, tasks: tuple[Task, ...], depot: Depot, parent: str | None) -> None:
        self._config, self._depot, self._parent = config, depot, parent
        self._tasks = shared(tasks)
        self._wanted = {
            name: value for name, value in likeness(config, tasks).items() if not name.startswith(_IMAGE)
        }
        self._token = self._put_token()
        self._left_out: set[str] = set()
        self._looked = time.monotonic()
        self.nodes: dict[str, Node] = {}
        self.asked: dict[Any, tuple[Node, float]] = {}
        """Answers that are awaited, from whom, and since when."""

    def post(self, member: Member) -> node.Post:
        return node.Post(member.short, self._config, self._depot.url, self._parent, SUITE)

    def ask_all(self) -> None:
        """Ask every node of the cluster. Raises BadUsage where none can work."""
        found = members()
        if not found:
            raise BadUsage(
                f"--executor ray: no node of the cluster offers {RESOURCE!r}; start nodes with: "
                f"ray start --address=HOST:PORT --resources='{{\"{RESOURCE}\": 4}}'"
            )
        for member in found.values():
            self._ask(Node(member))
        for reference, (_, since) in list(self.asked.items()):
            if first_of([reference], max(since + _ANSWER_S - time.monotonic(), 0)) is not None:
                self.hear(reference)
        self._give_up_on_the_silent()
        if not self.nodes:
            raise BadUsage(
                f"--executor ray: none of the {len(found)} nodes that offer {RESOURCE!r} can work here; "
                "each is named above with its reason"
            )

    def lay_out(self) -> None:
        """Let every node make or find its directory. Raises BadUsage where none can."""
        alive = self._alive()
        begun = {
            given(each.member, node.begun, self.post(each.member), alive): each
            for each in self.nodes.values()
        }
        for reference, each in begun.items():
            try:
                each.holds(come_to(reference))
            except (Lost, *node.FAILURES, OSError) as error:
                self.leave_out(each.member, str(error))
        if not self.nodes:
            raise BadUsage("--executor ray: no node could make its directory; see --node-dir")

    def doubt(self, each: Node) -> None:
        """Give a node nothing more to do until it has answered again."""
        if self.nodes.pop(each.member.id, None) is not None and each.member.id in members():
            self._ask(each)

    def leave_out(self, member: Member, reason: str) -> None:
        """Give a node nothing more to do, and say why."""
        self.nodes.pop(member.id, None)
        self._left_out.add(member.id)
        print(f"left out: node {member}: {' '.join(reason.split())}", file=sys.stderr, flush=True)

    def look_around(self) -> None:
        """Now and then: let go of the nodes that are no more, and ask those that are new."""
        if time.monotonic() - self._looked < _LOOK_S:
            return
        self._looked = time.monotonic()
        found = members()
        for gone in self.nodes.keys() - found.keys():
            del self.nodes[gone]
        known = {each.member.id for each, _ in self.asked.values()} | self.nodes.keys() | self._left_out
        for new in found.keys() - known:
            self._ask(Node(found[new]), self._alive())
        self._give_up_on_the_silent()

    def hear(self, reference: Any) -> None:
        """Take up an answer: the node works, or is left out."""
        each, _ = self.asked.pop(reference)
        try:
            answer: node.Answer = come_to(reference)
            reason = answer.reason or difference(answer.likeness, self._wanted) or self._misses(answer.token)
        except Lost as error:
            reason = f"it was lost before it answered: {error}"
        except Exception as error:  # whatever another version of this package does
            reason = f"it cannot be asked, which takes this package in this version: {_last_line(error)}"
        if reason:
            self.leave_out(each.member, reason)
            return
        self._wanted |= {name: value for name, value in answer.likeness.items() if name.startswith(_IMAGE)}
        self.nodes[each.member.id] = each.holds(answer.held) if answer.held else each

    def end(self, how: node.End) -> None:
        """End what the nodes do, and leave no machine of theirs."""
        there = [*self.nodes.values(), *(each for each, _ in self.asked.values())]
        ending = {given(each.member, node.ended, self.post(each.member), how): each for each in there}
        until = None if how == "told" else time.monotonic() + _END_S
        for reference, each in ending.items():
            left = None if until is None else max(until - time.monotonic(), 0)
            try:
                if first_of([reference], left) is None:
                    raise Lost("it does not answer")
                come_to(reference)
            except (Lost, *node.FAILURES, OSError) as error:
                print(f"node {each.member} was not tidied: {_last_line(error)}", file=sys.stderr)

    def _ask(self, each: Node, alive: frozenset[str] | None = None) -> None:
        member = each.member
        reference = given(member, node.answer, self.post(member), self._tasks, self._token, alive)
        self.asked[reference] = each, time.monotonic()

    def _give_up_on_the_silent(self) -> None:
        for reference, (each, since) in list(self.asked.items()):
            if time.monotonic() - since > _ANSWER_S:
                del self.asked[reference]
                self.leave_out(each.member, f"it gave no answer in {_ANSWER_S:.0f} s")

    def _alive(self) -> frozenset[str]:
        return frozenset(member.short for member in members().values())

    def _put_token(self) -> Item:
        with tempfile.TemporaryDirectory(prefix="takeover-token-") as room:
            path = Path(room) / "token"
            path.write_text(secrets.token_hex(16))
            return self._depot.put("tokens", "host", path)

    def _misses(self, token: Item | None) -> str | None:
        """What is wrong where a node's token does not come back."""
        if token is None:
            return None
        with tempfile.TemporaryDirectory(prefix="takeover-token-") as room:
            try:
                self._depot.fetch(token, Path(room) / "token")
            except SandboxUnavailable as error:
                return f"what it puts into the depot is not seen here ({error}); {node.DEPOT_CURE}"
        return None


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
