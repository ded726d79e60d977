"""The question to a supervisor about a handoff that cannot be delivered."""

from __future__ import annotations

from typing import Literal

from langgraph_takeover.handoff.ledger.handoffs import HandoffState
from langgraph_takeover.sandbox.interface import Frozen


class SupervisorRequest(Frozen):
    """The facts that a supervisor, a person or an agent, sees before the decision.

    Example:
        >>> from langgraph_takeover.protocol import SupervisorRequest
        >>> SupervisorRequest.model_fields["choices"].default
        ('retry', 'roll_back', 'block')
    """

    handoff: str
    record: str
    task: str
    source: str
    target: str
    state: HandoffState
    version: int
    attempts: int
    """Failed attempts in this round."""
    problem: str
    """Why the last attempt failed."""
    choices: tuple[Literal["retry", "roll_back", "block"], ...] = ("retry", "roll_back", "block")
