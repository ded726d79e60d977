"""What the nodes that deliver a handoff work with: how patiently, who decides in the end, and what they remember."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, ConfigDict, Field
from tenacity import RetryCallState, wait_exponential, wait_random
from typing_extensions import TypedDict

from langgraph_takeover.handoff.ledger import Ledger
from langgraph_takeover.handoff.ledger.handoffs import Handoff, HandoffState
from langgraph_takeover.sandbox.interface import Frozen


class DeliveryPolicy(Frozen):
    """How often a handoff is tried, and how long is waited."""

    attempts: int = Field(default=4, ge=1)
    """In a row, before somebody is asked."""
    rounds: int = Field(default=2, ge=1)
    """Of such attempts, before it is blocked."""
    confirm_timeout_s: float = Field(default=900.0, gt=0)
    """From an offer to its confirmation."""
    initial_pause_s: float = Field(default=1.0, ge=0)
    max_pause_s: float = Field(default=60.0, ge=0)

    def compute_pause_s(self, tries: int) -> float:
        """How long to wait after so many tries: twice as long each time, and never as long as somebody else."""
        waiting = wait_exponential(self.initial_pause_s, self.max_pause_s) + wait_random(
            0, self.initial_pause_s
        )
        asked = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
        asked.attempt_number = max(tries, 1)
        return float(min(waiting(asked), self.max_pause_s))


class SupervisorDecision(Frozen):
    """What a supervisor decides on a handoff that nobody takes."""

    decision: Literal["retry", "roll_back", "block"]
    reason: str = Field(default="", max_length=500)


class DeliveryState(TypedDict, total=False):
    """What a delivery remembers; where the handoff stands, the ledger says."""

    handoff: str
    tries: int
    """In this round."""
    rounds: int
    """How often a supervisor was asked."""
    came_to: HandoffState
    """Where the last attempt left the handoff."""
    failed: bool
    why: str
    """What the last attempt failed by, or how it ended."""
    may: Literal["retry", "escalate", "block"]
    """What patience leaves where it failed."""
    decision: str
    reason: str


class DeliveryContext(BaseModel):
    """What the nodes are given from outside."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    ledger: Ledger
    policy: DeliveryPolicy
    attempt: Callable[[Handoff], None]
    roll_back: Callable[[str, str], Any]
    """Takes a handoff's id and a reason."""
    supervisor: BaseChatModel | None
    """None: a person, who is asked by an interrupt."""
    on_blocked: Callable[[Handoff], None]
    by: str
