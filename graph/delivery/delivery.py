"""Handing work over by the protocol: offered, confirmed, worked on; tried again, escalated and blocked where it fails."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from pydantic import ValidationError

from langgraph_takeover.graph.agent import Checkpointer
from langgraph_takeover.graph.checkpoints.savers import open_saver
from langgraph_takeover.graph.delivery.rollback import roll_back as rolled_back
from langgraph_takeover.graph.errors import NotWaitingError, invalid_answer_error
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.graph.runs.api import open_run
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.ledger import acquire, handoffs
from langgraph_takeover.handoff.ledger.handoffs import TRANSFERRED_STATES, Handoff
from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.nodes.delivery.policy import (
    DeliveryContext,
    DeliveryPolicy,
    DeliveryState,
    SupervisorDecision,
)
from langgraph_takeover.nodes.delivery.steps import attempt, block, escalate, offer, roll_back
from langgraph_takeover.sandbox.interface import SandboxSpec, TakeoverError

_LOG = logging.getLogger(__name__)
_ACTOR = "the delivery"
_TERMINAL_STATES = ("blocked", "rolled_back")
"""Nothing is done about these but by a person, who unblocks the one, and resumes the source of the other."""


class HandoffError(TakeoverError, ValueError):
    """A handoff that cannot be: to oneself, under no view, or of no record; one line."""


class Delivery(NamedTuple):
    """How far a handoff was brought."""

    handoff: Handoff
    outcome: Outcome | None
    """Of the successor, as of the last attempt in this call."""
    question: dict[str, Any] | None
    """What a supervising person is asked; `deliver` takes the answer, a `Decision`."""


def hand_over(
    home: Home,
    record_id: str,
    target: str = "",
    *,
    source: str = "",
    envelope: Envelope | None = None,
    idempotency_key: str = "",
    confirm_s: float = DeliveryPolicy().confirm_timeout_s,
) -> Handoff:
    """Offer a record to an agent, a program or a person of that name; `deliver` brings it about, or `open_run().receive`.

    An agent that called `handoff(to=…, message=…)` has named the target, and said what the letter says, where these
    are left out. Who asks again with the same `key` gets the same handoff. Raises RecordError, HandoffError or KeyReusedError.
    """
    record = home.records.load(record_id)
    source = source or record.predecessor
    asked_for = next((each.arguments for each in reversed(record.trace) if each.kind == "action"), {})
    target = target or asked_for.get("to", "")
    said = envelope or Envelope(
        message=asked_for.get("message", "") if record.point.kind == "requested" else ""
    )
    if not target:
        raise HandoffError(f"record {record.id}: its agent named nobody who is to go on; give a target")
    if source == target:
        raise HandoffError(f"{source} would hand over to itself; name another target, or resume the thread")
    if said.view:
        views.find_view(said.view)
    asked = f"{idempotency_key}\0{record.digest}\0{target}"
    handoff_id = hashlib.sha256(asked.encode()).hexdigest()[:12] if idempotency_key else uuid.uuid4().hex[:12]
    found = handoffs.find(home.ledger, handoff_id)
    sent_at = found.envelope.sent_at if found else datetime.now(UTC).isoformat(timespec="seconds")
    filled = said.model_copy(update={"source": source, "target": target, "sent_at": sent_at})
    made = handoffs.prepare(
        home.ledger,
        handoff_id=handoff_id,
        record=record.id,
        digest=record.digest,
        task=record.task.id,
        thread=record.thread_id,
        source=source,
        target=target,
        envelope=filled,
        by=source,
    )
    if made.state != "prepared":
        return made
    return handoffs.change_state(
        home.ledger, made.id, "offered", by=source, version=made.version, deadline_s=confirm_s
    )


def build_delivery(saver: Checkpointer = None) -> CompiledStateGraph[DeliveryState, Any, Any, Any]:
    """Its input is `{"handoff": id}`."""
    graph = StateGraph(DeliveryState, context_schema=DeliveryContext)
    for node in (offer, attempt, escalate, block, roll_back):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "offer")
    graph.add_edge("offer", "attempt")
    graph.add_conditional_edges("attempt", route_after_attempt)
    graph.add_conditional_edges("escalate", route_after_decision)
    graph.add_edge("block", END)
    graph.add_edge("roll_back", END)
    return graph.compile(checkpointer=saver, name="delivery")


def route_after_attempt(state: DeliveryState) -> Literal["offer", "escalate", "block", "__end__"]:
    """A refusal is no matter of patience: what was sent must be mended, or somebody else asked."""
    came_to, may = state["came_to"], state["may"]
    if came_to in ("completed", "rolled_back", "blocked"):
        return "__end__"
    if came_to in TRANSFERRED_STATES and not state["failed"]:
        return "__end__"  # a budget was spent, or it was stopped: it can go on
    if came_to == "rejected":
        return "block" if may == "block" else "escalate"
    return "offer" if may == "retry" else may


def route_after_decision(state: DeliveryState) -> Literal["offer", "block", "roll_back"]:
    return "offer" if state["decision"] == "retry" else cast(Any, state["decision"])


def deliver(
    home: Home,
    handoff_id: str,
    answer: SupervisorDecision | dict[str, Any] | None = None,
    *,
    agent: str,
    model: BaseChatModel,
    sandbox: SandboxSpec,
    patience: DeliveryPolicy | None = None,
    supervisor: BaseChatModel | None = None,
    on_blocked: Callable[[Handoff], None] | None = None,
    **options: Any,
) -> Delivery:
    """Bring a handoff to `agent`, who validates it, confirms it and works to its end; options are those of `open_run`.

    What fails is tried again after growing pauses, then `supervisor` is asked, or, where none is given, a person:
    `waiting` holds the question, and another call takes the `answer`. What nobody can take is blocked, and
    `on_blocked` told. Called again after a crash or a stop, at whatever moment, it goes on where the ledger stands.
    Raises HandoffNotFoundError, NotWaitingError, InputError, and ThreadHeldError while another process delivers the same handoff.
    """
    found = handoffs.load(home.ledger, handoff_id)
    if found.state in _TERMINAL_STATES:
        return Delivery(found, None, None)
    outcomes: list[Outcome] = []

    def run_attempt(handoff: Handoff) -> None:
        outcomes.append(_attempt_handoff(home, handoff, agent=agent, model=model, sandbox=sandbox, **options))

    context = DeliveryContext(
        ledger=home.ledger,
        policy=patience or DeliveryPolicy(),
        attempt=run_attempt,
        roll_back=lambda name, why: rolled_back(home, name, by=_ACTOR, reason=why, sandbox=sandbox),
        supervisor=supervisor,
        on_blocked=on_blocked or _log_blocked,
        by=_ACTOR,
    )
    with _open_delivery_graph(home, handoff_id) as (graph, config):
        given = _build_input(graph, config, found, answer)
        if given is not None:
            told = graph.invoke(given, config, context=context, durability="sync")
            asked = told.get("__interrupt__", ())
        else:
            asked = graph.get_state(config).interrupts
        waiting = asked[0].value if asked else None
    return Delivery(handoffs.load(home.ledger, handoff_id), outcomes[-1] if outcomes else None, waiting)


def _build_input(graph: Any, config: RunnableConfig, handoff: Handoff, answer: Any) -> Any:
    """What the delivery goes on with; None where it waits for an answer and gets none."""
    state = graph.get_state(config)
    waits = state.interrupts and state.interrupts[0].value["version"] == handoff.version
    if answer is not None:
        if not waits:
            raise NotWaitingError(f"handoff {handoff.id} waits for no answer; it is {handoff.state}")
        try:
            return Command(resume=SupervisorDecision.model_validate(answer).model_dump())
        except ValidationError as error:
            raise invalid_answer_error(error, '{"decision": "retry"}') from error
    if waits:
        return None
    # A new beginning: what is done is in the ledger, and nobody waited for what came of the last one.
    return {"handoff": handoff.id, "tries": 0, "rounds": 0}


def _attempt_handoff(home: Home, handoff: Handoff, **options: Any) -> Outcome:
    thread = handoff.successor if handoff.state in TRANSFERRED_STATES else f"{handoff.id}.{handoff.offers}"
    with open_run(home, thread, **options) as taking:
        begun = home.saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
        return taking.resume(go_back=True) if begun else taking.receive(handoff.id)


@contextmanager
def _open_delivery_graph(home: Home, handoff_id: str) -> Iterator[tuple[Any, RunnableConfig]]:
    """The delivery's own graph, which nobody else runs meanwhile."""
    thread = f"delivery.{handoff_id}"
    lease = acquire(home.ledger, thread)
    try:
        with open_saver(home.ledger, lease) as saver:
            yield build_delivery(saver), {"configurable": {"thread_id": thread}}
    finally:
        lease.release()


def _log_blocked(handoff: Handoff) -> None:
    _LOG.error(
        "handoff %s from %s to %s is blocked: %s; python -m handoff history %s says more, and unblock lets it go on",
        handoff.id, handoff.source, handoff.target, handoff.reason, handoff.id,
    )  # fmt: skip
