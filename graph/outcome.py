"""What a run has come to."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from nodes.state import AgentState, StopReason
from sandbox.machine import Frozen


class Outcome(Frozen):
    """What a run has come to: its end, a wait for a person, or a stop from outside."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    thread: str
    stop_reason: StopReason | None = None
    """None while the run can simply go on: it waits, or was stopped from outside."""
    waiting: dict[str, Any] | None = None
    """What a person is asked under the policy `review`; `resume` takes the answer."""
    records: tuple[str, ...] = ()
    steps: int = 0
    events: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    patch: str = ""
    """What differs from the task's base commit."""
    trouble: str = ""
    """Why there is no patch."""
    predecessor: Outcome | None = None
    """Under the policy `takeover`: the run that was handed over to this one."""
    state: AgentState = Field(repr=False)
