"""The task of a user's graph that acts now, and the states that tasks of one step leave.

Tasks of one step begin in forks of the same state of the sandbox. What they leave is merged before the next act.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.ledger.effects import Move

Relation = Literal["same", "parallel", "called", "other"]
"""Of two tasks: the same one; two of one step; two that one task called, so that its code orders them; none of these."""
_STATE_SEPARATOR = "+"
_NAMESPACE_SEPARATOR = "|"


class ActConflictError(TakeoverError, ValueError):
    """Acts that contradict each other: a repeated key, an act in an act, or acts of one task at once."""


class GraphTask(NamedTuple):
    """A task of a user's graph."""

    id: str
    path: tuple[tuple[str, str], ...]
    """From the outermost graph inwards: the checkpoint that the step began with, and the name and id of the task."""
    execution: object
    """The same object for one execution of the task; a retry or a resumption has another one."""
    attempt: int

    @property
    def step(self) -> str:
        """The step of the outermost graph, by the checkpoint that it began with."""
        return self.path[0][0]

    @property
    def place(self) -> str:
        """The path as text."""
        return json.dumps(self.path)

    def name_place(self, name: str) -> str:
        """Return the place with another name of the task."""
        (checkpoint, node), task_id = self.path[-1], self.path[-1][1].partition(":")[2]
        return json.dumps([*self.path[:-1], (checkpoint, f"{name}:{task_id}" if task_id else node)])

    def compare(self, place: str) -> Relation:
        """Return how another task's place relates to this task."""
        other = [(str(checkpoint), str(name)) for checkpoint, name in json.loads(place)]
        for depth, (here, there) in enumerate(zip(self.path, other, strict=False)):
            if here == there:
                continue
            if here[0] != there[0]:
                return "other"
            # A called task has no step of its own: it has the checkpoint of the task that called it.
            return "called" if depth and here[0] == self.path[depth - 1][0] else "parallel"
        return "same" if len(other) == len(self.path) else "other"

    def includes(self, place: str) -> bool:
        """Whether a place is this task, or belongs to a graph that it called."""
        return [tuple(each) for each in json.loads(place)][: len(self.path)] == [*self.path]


def find_checkpointer() -> BaseCheckpointSaver[str] | None:
    """Return the saver of the graph whose node or tool calls this; None without one."""
    found = _read_configurable().get("__pregel_checkpointer")
    return found if isinstance(found, BaseCheckpointSaver) else None


def is_saved_at_exit() -> bool:
    """Whether the running graph writes its only checkpoint when it ends, which follows from none of its steps."""
    return _read_configurable().get("__pregel_durability") == "exit"


def find_begun_checkpoints() -> frozenset[str]:
    """Return the ids of the checkpoints that the calling task began with: one in each of the graphs around it."""
    return frozenset((_read_configurable().get("checkpoint_map") or {}).values())


def _read_configurable() -> dict[str, Any]:
    """Return LangGraph's settings of the calling task; empty outside of a graph."""
    try:
        return get_config().get("configurable", {})
    except RuntimeError:
        return {}


def find_graph_task() -> GraphTask | None:
    """Return the LangGraph task that calls this; None outside of a graph."""
    at = _read_configurable()
    checkpoints, task_id = at.get("checkpoint_map") or {}, at.get("__pregel_task_id")
    path: list[tuple[str, str]] = []
    parent = ""
    for name in str(at.get("checkpoint_ns") or "").split(_NAMESPACE_SEPARATOR):
        if name and not name.isdigit():  # a number counts the graphs that one task calls
            path.append((str(checkpoints.get(parent, "")), name))
        parent = f"{parent}{_NAMESPACE_SEPARATOR}{name}" if parent else name
    if not task_id or not path or not path[0][0]:
        return None
    runtime = at.get("__pregel_runtime")
    attempt = getattr(getattr(runtime, "execution_info", None), "node_attempt", 1)
    return GraphTask(str(task_id), tuple(path), at.get("__pregel_scratchpad"), attempt)


def is_parallel(task: GraphTask | None, other: GraphTask | None) -> bool:
    """Whether two tasks run in one step, so that what they make of one state is merged."""
    return task is not None and other is not None and task.compare(other.place) == "parallel"


def find_left_state(
    moves: Iterable[Move], task: GraphTask, state_id: str, parents: Mapping[str, Sequence[str]]
) -> str | None:
    """Return what a task, and graphs that it called, made of a state: the last state, or several of parallel tasks.

    `parents` has the states that each state was made of: a merge continues what it merged.
    """
    ahead, reached = [move for move in moves if move.step == task.step], {state_id}
    ways = [(move.state_before, move.state_after) for move in ahead]
    ways += [(branch, merged) for merged, above in parents.items() for branch in above[1:]]
    while following := {after for before, after in ways if before in reached} - reached:
        reached |= following
    mine = [each for each in ahead if each.state_before in reached and task.includes(each.place)]
    return join_states(list_last_states(mine)) or None


def list_last_states(moves: Sequence[Move]) -> list[str]:
    """List the states of some moves from which no other of them begins."""
    left = {move.state_before for move in moves}
    return [move.state_after for move in moves if move.state_after not in left]


def split_state(state: str) -> tuple[str, ...]:
    """Return the states that a channel holds: several if tasks of one step left states, until they are merged."""
    return tuple(state.split(_STATE_SEPARATOR))


def join_states(states: Iterable[str]) -> str:
    """Return one text for the states that tasks of one step left; the same state counts once."""
    return _STATE_SEPARATOR.join(dict.fromkeys(part for state in states for part in split_state(state)))


def create_state_id() -> str:
    """Return a new id of a sandbox state."""
    return uuid.uuid4().hex[:16]
