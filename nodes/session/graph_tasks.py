"""The task of a user's graph that acts now, and the order of acts whose tasks run side by side.

Tasks of one step begin in the same state of the sandbox, but a thread has one sandbox. So their acts form one sequence:
each begins in the state that the previous act of a parallel task left, if that one began where this one would. The step
ends in the sequence's last state.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from langgraph.config import get_config

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.ledger.effects import Move

Relation = Literal["same", "parallel", "called", "other"]
"""Of two tasks: the same one; two of one step; two that one task called, so that its code orders them; none of these."""
_STEP_STATE = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4,})-[0-9a-f]{12}")
_NAMESPACE_SEPARATOR = "|"


class ActConflictError(TakeoverError, ValueError):
    """Acts that contradict each other: a repeated key, an act in an act, or two states of which neither follows the other."""


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


def find_graph_task() -> GraphTask | None:
    """Return the LangGraph task that calls this; None outside of a graph."""
    try:
        at: dict[str, Any] = get_config().get("configurable", {})
    except RuntimeError:
        return None
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
    """Whether acts of two tasks follow each other, though both begin in one state."""
    return task is not None and other is not None and task.compare(other.place) == "parallel"


def find_next_state(moves: Iterable[Move], task: GraphTask, state_id: str) -> str:
    """Return the state that parallel tasks of the step have made of a state. Raises ActConflictError."""
    parallel = [move for move in moves if move.step == task.step and task.compare(move.place) == "parallel"]
    while True:
        following = {move.state_after for move in parallel if move.state_before == state_id}
        if not following:
            return state_id
        if len(following) > 1:
            raise ActConflictError(
                f"sandbox state {state_id}: a parallel task of this step has left {len(following)} states that begin there, "
                "so an act cannot follow (let one task act after the other)"
            )
        state_id = following.pop()


def find_left_state(moves: Iterable[Move], task: GraphTask, state_id: str) -> str | None:
    """Return the last state that a task, and graphs that it called, made of a state. Raises ActConflictError."""
    ahead, reached = [move for move in moves if move.step == task.step], {state_id}
    while following := {move.state_after for move in ahead if move.state_before in reached} - reached:
        reached |= following
    left = [each.state_after for each in ahead if each.state_before in reached and task.includes(each.place)]
    return choose_last_state(left) if left else None


def find_later_state(first: str, second: str) -> str | None:
    """Return the later one of two states; None if not the same step made both."""
    found = [_STEP_STATE.fullmatch(state) for state in (first, second)]
    if found[0] is None or found[1] is None or found[0][1] != found[1][1]:
        return None
    return max((first, second), key=lambda state: int(state.split("-")[1], 16))


def create_state_id(task: GraphTask | None = None, before: str = "") -> str:
    """Return a new id of a sandbox state; those of one step are numbered along their sequence."""
    if task is None:
        return uuid.uuid4().hex[:16]
    tag = hashlib.sha256(task.step.encode()).hexdigest()[:8]
    found = _STEP_STATE.fullmatch(before)
    number = int(found[2], 16) + 1 if found is not None and found[1] == tag else 1
    return f"{tag}-{number:04x}-{uuid.uuid4().hex[:12]}"


def choose_last_state(states: Sequence[str]) -> str:
    """Return the last of the states that tasks of one step left. Raises ActConflictError if they are not one sequence."""
    numbered = [(_STEP_STATE.fullmatch(state), state) for state in dict.fromkeys(states)]
    if len(numbered) == 1:
        return numbered[0][1]
    steps = {found[1] if found else "" for found, _ in numbered}
    numbers = [int(found[2], 16) for found, _ in numbered if found]
    if len(steps) != 1 or "" in steps or len(set(numbers)) != len(numbers):
        raise ActConflictError(
            f"tasks of one step left {len(numbered)} states of the sandbox, and none includes the others: "
            f"{', '.join(state for _, state in numbered)[:200]} (let one task act after the other, or return one state)"
        )
    return max(zip(numbers, (state for _, state in numbered), strict=True))[1]
