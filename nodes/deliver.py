"""Nodes that deliver a handoff, with their policy, state and context."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tenacity import RetryCallState, wait_exponential, wait_random
from typing_extensions import TypedDict

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.ledger import Ledger, handoffs
from langgraph_takeover.handoff.ledger.handoffs import Handoff, HandoffState, IllegalTransitionError
from langgraph_takeover.handoff.notes.parsing import clean_reply, find_first_object
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.envelope import RESENDABLE_KINDS, parse_refusal_kind
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.fence import wrap_in_fence
from langgraph_takeover.nodes.model.calls import ask_with_schema
from langgraph_takeover.nodes.model.model_errors import ContextWindowError, ModelError
from langgraph_takeover.sandbox.interface import SandboxUnavailableError


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


_SUPERVISOR_TIMEOUT_S = 600.0
_DECISION_SCHEMA = {
    "title": "decision",
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": ["retry", "roll_back", "block"]},
        "reason": {"type": "string"},
    },
    "required": ["decision", "reason"],
    "additionalProperties": False,
}


def offer(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Offer the handoff, after a pause if an attempt failed; skip if it is already offered or transferred.

    An offer never waits longer than the policy allows; an expired offer times out and is made again. Raises
    IllegalTransitionError if another process changed its state, or it has ended.
    """
    context = runtime.context
    handoff = handoffs.load(context.ledger, state["handoff"])
    tries = state.get("tries", 0)
    if handoff.state == "offered":
        handoff = _apply_deadline(context, handoff)
    if handoff.state not in ("offered", *handoffs.TRANSFERRED_STATES):
        if tries and handoff.state == "timed_out":
            time.sleep(context.policy.compute_pause_s(tries))
        handoffs.change_state(
            context.ledger,
            handoff.id,
            "offered",
            by=context.by,
            version=handoff.version,
            reason=f"attempt {tries + 1}",
            deadline_s=context.policy.confirm_timeout_s,
        )
    return DeliveryState(tries=tries)


def _apply_deadline(context: DeliveryContext, handoff: Handoff) -> Handoff:
    """Time an expired offer out; shorten another to the policy's deadline."""
    remaining_s = handoffs.compute_remaining_s(context.ledger, handoff)
    if remaining_s <= 0:
        reason = f"{handoff.target} did not confirm in time"
        return handoffs.change_state(
            context.ledger, handoff.id, "timed_out", by=context.by, version=handoff.version, reason=reason
        )
    if remaining_s > context.policy.confirm_timeout_s:
        handoffs.set_deadline(context.ledger, handoff, context.policy.confirm_timeout_s)
    return handoff


def attempt(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Attempt one delivery. Failures of model, sandbox and ledger state count as attempts; bugs are raised."""
    context = runtime.context
    ledger, handoff_id = context.ledger, state["handoff"]
    tries, problem = state.get("tries", 0) + 1, ""
    try:
        context.attempt(handoffs.load(ledger, handoff_id))
    except IllegalTransitionError as error:
        problem = str(error)  # a watcher timed the handoff out meanwhile
    except (ModelError, ContextWindowError, SandboxUnavailableError) as error:
        problem = f"{type(error).__name__}: {error}"
    handoff = handoffs.load(ledger, handoff_id)
    if handoff.state == "offered":
        handoff = handoffs.change_state(
            ledger, handoff_id, "timed_out", by=context.by, version=handoff.version, reason=problem
        )
    elif problem and handoff.state in ("accepted", "active") and tries < context.policy.attempts:
        time.sleep(context.policy.compute_pause_s(tries))
    return DeliveryState(
        tries=tries,
        came_to=handoff.state,
        failed=bool(problem),
        why=problem or handoff.reason,
        may=_choose_next_step(state, handoff, tries, context.policy),
    )


def _choose_next_step(state: DeliveryState, handoff: Handoff, tries: int, policy: DeliveryPolicy) -> NextStep:
    """Choose the step after a failed attempt. A refusal is not retried: the source or a supervisor must act."""
    if handoff.state != "rejected":
        return "retry" if tries < policy.attempts else _choose_escalation(state, policy)
    is_curable = parse_refusal_kind(handoff.reason) in RESENDABLE_KINDS
    if is_curable and state.get("resends", 0) < policy.resends:
        return "resend"
    return _choose_escalation(state, policy)


def _choose_escalation(state: DeliveryState, policy: DeliveryPolicy) -> NextStep:
    return "escalate" if state.get("rounds", 0) + 1 < policy.rounds else "block"


def resend(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Ask the source to send a refused record again, and offer it; if it cannot, a supervisor must act.

    Raises IllegalTransitionError if another process changed the handoff's state.
    """
    context = runtime.context
    handoff = handoffs.load(context.ledger, state["handoff"])
    record, problem = None, "it has no other record"
    try:
        record = context.resend(handoff)
    except TakeoverError as error:
        problem = str(error)
    if record is None:
        why = f"{handoff.reason}; {handoff.source} cannot send it again: {problem}"
        changes: dict[str, Any] = {"to": "rejected", "reason": why}
    else:
        why = f"{handoff.source} sent it again as {record.id}"
        deadline_s = context.policy.confirm_timeout_s
        changes = {"to": "offered", "reason": why, "deadline_s": deadline_s, "record": record}
    handoffs.change_state(context.ledger, handoff.id, by=context.by, version=handoff.version, **changes)
    return DeliveryState(
        resends=state.get("resends", 0) + 1,
        why=why,
        may="retry" if record else _choose_escalation(state, context.policy),
    )


def alert(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Alert that a supervisor must act, at least once: after a crash, possibly twice."""
    context = runtime.context
    context.on_escalated(handoffs.load(context.ledger, state["handoff"]))
    return DeliveryState()


def escalate(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Ask the supervisor, an agent or a person, what to do."""
    context = runtime.context
    handoff = handoffs.load(context.ledger, state["handoff"])
    question = SupervisorRequest(
        handoff=handoff.id,
        record=handoff.record,
        task=handoff.task,
        source=handoff.source,
        target=handoff.target,
        state=handoff.state,
        version=handoff.version,
        attempts=state.get("tries", 0),
        problem=state.get("why", ""),
    ).model_dump(mode="json")
    if context.supervisor is None:
        choice = SupervisorDecision.model_validate(interrupt(question, response_schema=SupervisorDecision))
    else:
        choice = _ask_supervisor(context, question)
    return DeliveryState(
        decision=choice.decision, reason=choice.reason, rounds=state.get("rounds", 0) + 1, tries=0
    )


def _ask_supervisor(context: DeliveryContext, question: dict[str, Any]) -> SupervisorDecision:
    """Return the supervising agent's decision; if it makes none, block the handoff, so that a person sees it."""
    assert context.supervisor is not None
    messages: list[Any] = [
        SystemMessage(load_prompt("escalate", "nodes")),
        HumanMessage(wrap_in_fence(json.dumps(question, indent=1))),
    ]
    try:
        reply = ask_with_schema(
            context.supervisor, messages, _DECISION_SCHEMA, timeout_s=_SUPERVISOR_TIMEOUT_S
        )
        answer = find_first_object(clean_reply(reply.text), ("decision",)) or {}
        return SupervisorDecision(decision=answer.get("decision"), reason=str(answer.get("reason", ""))[:500])
    except (ModelError, ContextWindowError) as error:
        return SupervisorDecision(decision="block", reason=f"the supervising agent failed: {error}"[:500])
    except ValidationError:
        return SupervisorDecision(decision="block", reason="the supervising agent made no decision")


def roll_back(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Return the work to the source. Raises RollbackError if checkpoint or snapshot is missing."""
    runtime.context.roll_back(state["handoff"], state.get("reason", ""))
    return DeliveryState(came_to="rolled_back")


def block(state: DeliveryState, runtime: Runtime[DeliveryContext]) -> DeliveryState:
    """Block the handoff and raise the alarm, at least once: after a crash, possibly twice."""
    context = runtime.context
    handoff = handoffs.load(context.ledger, state["handoff"])
    reason = state.get("reason") or state.get("why", "")
    if handoff.state in ("accepted", "active"):
        handoff = handoffs.change_state(
            context.ledger, handoff.id, "timed_out", by=context.by, version=handoff.version, reason=reason
        )
    if handoff.state != "blocked":
        handoff = handoffs.change_state(
            context.ledger, handoff.id, "blocked", by=context.by, version=handoff.version, reason=reason
        )
    context.on_blocked(handoff)
    return DeliveryState(came_to=handoff.state)
