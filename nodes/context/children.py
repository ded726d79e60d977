"""What a delegating node asks for and gets back; who runs the children is given to it from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from pydantic import Field

from langgraph_takeover.handoff.records.payload import Mode
from langgraph_takeover.sandbox.interface import Frozen


class Budget(Frozen):
    """The most that one child may spend; None: as much as it likes."""

    max_steps: int = Field(gt=0)
    max_events: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    max_seconds: float = Field(gt=0)


class Assignment(Frozen):
    """One child to be run: on which thread, from which record, and with how much."""

    thread: str
    record: str
    goal: str
    mode: Mode
    budget: Budget


class ChildResult(Frozen):
    """What a child came to."""

    thread: str
    stop_reason: str | None
    """None where it was stopped from outside and can go on."""
    message: str = ""
    """What it finished with."""
    patch: str = ""
    """What differs from the task's base commit, what its parent had changed before included."""
    problem: str = ""
    """Why there is no patch."""
    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


@runtime_checkable
class DelegationRunner(Protocol):
    """Who runs children."""

    depth: int
    """How deep the agent is that delegates; 0 for one that nobody delegated to."""
    max_depth: int
    max_parallel: int
    max_tasks: int
    """In one call."""
    window_tokens: int
    """What a child can read."""

    def limit_budget(self, budget: Budget) -> Budget:
        """The budget, as far as a child may have it at all."""

    def run(
        self,
        assignments: Sequence[Assignment],
        *,
        should_stop: Callable[[], bool],
        report: Callable[..., Any],
    ) -> tuple[ChildResult, ...]:
        """Run the children, or go on with them; one that has ended before is told as it is.

        `stopping` says that they are to end after what they are at; `tell(moment, **told)` may be called from any
        thread. Raises what a child failed by, once the others have ended.
        """
