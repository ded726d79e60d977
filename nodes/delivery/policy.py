"""The policy, the state and the context of a delivery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, ConfigDict, Field
from tenacity import RetryCallState, wait_exponential, wait_random
from typing_extensions import TypedDict

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.ledger import Ledger
from langgraph_takeover.handoff.ledger.handoffs import Handoff, HandoffState
from langgraph_takeover.handoff.records.record import HandoffRecord


class DeliveryPolicy(Frozen):
    """Number of delivery attempts, and the pauses between them.

    Example:
        >>> from langgraph_takeover.protocol import DeliveryPolicy
        >>> DeliveryPolicy(attempts=2).rounds
        2
    """

    attempts: int = Field(default=4, ge=1)
    """Attempts in a round, before a supervisor is asked."""
    rounds: int = Field(default=2, ge=1)
    """Rounds before the handoff is blocked."""
    resends: int = Field(default=1, ge=0)
    """Times that the source is asked to send a refused record again, before a supervisor is asked."""
    confirm_timeout_s: float = Field(default=900.0, gt=0)
    """Time from an offer to its confirmation; a later confirmation is not accepted."""
    initial_pause_s: float = Field(default=1.0, ge=0)
    """Pause after the first failed attempt; it doubles with each further one."""
    max_pause_s: float = Field(default=60.0, ge=0)
    """Longest pause between two attempts."""

    def compute_pause_s(self, tries: int) -> float:
        """Return the pause after a number of attempts: exponential, with jitter."""
        wait = wait_exponential(self.initial_pause_s, self.max_pause_s) + wait_random(0, self.initial_pause_s)
        call = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
        call.attempt_number = max(tries, 1)
        return float(min(wait(call), self.max_pause_s))


NextStep = Literal["retry", "resend", "escalate", "block"]


class SupervisorDecision(Frozen):
    """A supervisor's decision on a handoff that cannot be delivered.

    Example:
        >>> from langgraph_takeover.protocol import SupervisorDecision
        >>> SupervisorDecision(decision="retry", reason="the endpoint is back").decision
        'retry'
    """

    decision: Literal["retry", "roll_back", "block"]
    reason: str = Field(default="", max_length=500)


class DeliveryState(TypedDict, total=False):
    """The state of a delivery; the state of the handoff is in the ledger."""

    handoff: str
    tries: int
    """Attempts in this round."""
    rounds: int
    """Number of times that a supervisor was asked."""
    resends: int
    """Number of times that the source was asked to send the record again."""
    came_to: HandoffState
    """The handoff's state after the last attempt."""
    failed: bool
    why: str
    """Why the last attempt failed, or how it ended."""
    may: NextStep
    """The action that the policy allows after a failed attempt."""
    decision: str
    reason: str


class DeliveryContext(BaseModel):
    """The caller's inputs to a delivery."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    ledger: Ledger
    policy: DeliveryPolicy
    attempt: Callable[[Handoff], None]
    resend: Callable[[Handoff], HandoffRecord | None]
    """Returns another record of the source; None, or an error of this package, if it has none."""
    roll_back: Callable[[str, str], Any]
    """Arguments: the handoff's id and a reason."""
    supervisor: BaseChatModel | None
    """None: a person decides, by an interrupt."""
    on_escalated: Callable[[Handoff], None]
    on_blocked: Callable[[Handoff], None]
    by: str
