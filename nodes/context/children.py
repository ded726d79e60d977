"""Types for delegation: what a delegating node asks for and gets back, and who runs the children."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from pydantic import Field

from langgraph_takeover.handoff.ledger.stops import StopMode
from langgraph_takeover.handoff.records.payload import Mode
from langgraph_takeover.sandbox.interface import Frozen
from langgraph_takeover.sandbox.repository.patches import LeftOut


class Budget(Frozen):
    """The limits of one child; None: no limit."""

    max_steps: int = Field(gt=0)
    max_events: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    max_seconds: float = Field(gt=0)


class Assignment(Frozen):
    """One child to run: its thread, its record and its budget."""

    thread: str
    record: str
    goal: str
    mode: Mode
    budget: Budget


class ChildResult(Frozen):
    """The result of a child."""

    thread: str
    stop_reason: str | None
    """None if it was stopped from outside and can be resumed."""
    message: str = ""
    """The message that it finished with."""
    patch: str = ""
    """Difference from the task's base commit, including its parent's earlier changes."""
    problem: str = ""
    """The reason for a missing patch."""
    left_out: tuple[LeftOut, ...] = ()
    """Its changes that the patch lacks."""
    left_out_count: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    uncounted_calls: int = 0
    cost: float | None = None
    seconds: float = 0.0


@runtime_checkable
class DelegationRunner(Protocol):
    """Runs children."""

    depth: int
    """Depth of the delegating agent; 0 for one that no agent delegated to."""
    max_depth: int
    max_parallel: int
    max_tasks: int
    """Maximum number of tasks in one call."""
    window_tokens: int
    """Context window of a child."""

    def limit_budget(self, budget: Budget) -> Budget:
        """Return the budget, reduced to what a child may have."""

    def run(
        self,
        assignments: Sequence[Assignment],
        *,
        find_stop: Callable[[], StopMode | None],
        report: Callable[..., Any],
    ) -> tuple[ChildResult, ...]:
        """Run the children or resume them; the result of a finished child is returned unchanged.

        When `find_stop()` returns a mode they stop; `report(event, **fields)` may be called from any
        thread. Raises a child's error once the others have ended.
        """
