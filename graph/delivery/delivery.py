"""Deliver a handoff by the protocol: offer, confirm, work; retry, escalate or block on failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command
from pydantic import ValidationError
from typing_extensions import Unpack

from langgraph_takeover.base.failures import ObserverErrors, clean_up, get_logger
from langgraph_takeover.graph.agent import Checkpointer
from langgraph_takeover.graph.checkpoints.inspection import DELIVERY_METADATA
from langgraph_takeover.graph.checkpoints.savers import open_saver
from langgraph_takeover.graph.delivery.recovery import find_fresh_record
from langgraph_takeover.graph.delivery.recovery import roll_back as roll_back_handoff
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.graph.runs.api import DeliveryOptions, open_run
from langgraph_takeover.graph.runs.argument_checks import invalid_answer_error
from langgraph_takeover.graph.usage_errors import NotWaitingError
from langgraph_takeover.handoff.ledger import acquire, handoffs
from langgraph_takeover.handoff.ledger.handoffs import TRANSFERRED_STATES, Handoff
from langgraph_takeover.nodes.context.settings import SettingsError
from langgraph_takeover.nodes.deliver import (
    DeliveryContext,
    DeliveryPolicy,
    DeliveryState,
    NextStep,
    SupervisorDecision,
    SupervisorRequest,
    alert,
    attempt,
    block,
    escalate,
    offer,
    resend,
    roll_back,
)
from langgraph_takeover.sandbox.interface import SandboxSpec

_LOG = get_logger(__name__)
_STEPS: dict[NextStep, Literal["offer", "resend", "alert", "block"]] = {
    "retry": "offer",
    "resend": "resend",
    "escalate": "alert",
    "block": "block",
}
"""The node of each action that the policy allows."""
_ACTOR = "the delivery"
_TERMINAL_STATES = ("blocked", "rolled_back")
"""Final for `deliver`: a person unblocks the one, and resumes the source of the other."""


class Delivery(NamedTuple):
    """The result of one call of `deliver`.

    Example:
        >>> delivery = deliver(home, handoff.id, agent_name="tester", model=model, sandbox=sandbox_spec)
        >>> delivery.outcome.status, delivery.waiting
        (<RunStatus.FINISHED: 'finished'>, None)
    """

    handoff: Handoff
    outcome: Outcome | None
    """Outcome of the successor's last attempt in this call."""
    waiting: SupervisorRequest | None
    """The question to a person who supervises; `deliver` takes the answer, a `SupervisorDecision`."""


def build_delivery(saver: Checkpointer = None) -> CompiledStateGraph[DeliveryState, Any, Any, Any]:
    """Build the graph of a delivery; its input is `{"handoff": id}`.

    Example:
        >>> from langgraph_takeover.protocol import build_delivery
        >>> "escalate" in build_delivery().nodes
        True
    """
    graph = StateGraph(DeliveryState, context_schema=DeliveryContext)
    for node in (offer, attempt, resend, alert, escalate, block, roll_back):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "offer")
    graph.add_edge("offer", "attempt")
    graph.add_conditional_edges("attempt", route_after_attempt)
    graph.add_conditional_edges("resend", route_after_resend)
    graph.add_edge("alert", "escalate")
    graph.add_conditional_edges("escalate", route_after_decision)
    graph.add_edge("block", END)
    graph.add_edge("roll_back", END)
    return graph.compile(checkpointer=saver, name="delivery")


def route_after_attempt(state: DeliveryState) -> Literal["offer", "resend", "alert", "block", "__end__"]:
    """Route after an attempt: to the end, or to the step that the policy allows."""
    came_to, may = state["came_to"], state["may"]
    if came_to in ("completed", "rolled_back", "blocked"):
        return "__end__"
    if came_to in TRANSFERRED_STATES and not state["failed"]:
        return "__end__"  # a budget was spent, or it was stopped: it can continue
    return _STEPS[may]


def route_after_resend(state: DeliveryState) -> Literal["attempt", "alert", "block"]:
    """Route a record that was sent again to its receiver, else to a supervisor."""
    return "attempt" if state["may"] == "retry" else cast(Any, _STEPS[state["may"]])


def route_after_decision(state: DeliveryState) -> Literal["offer", "block", "roll_back"]:
    return "offer" if state["decision"] == "retry" else cast(Any, state["decision"])


def deliver(
    home: Home,
    handoff_id: str,
    *,
    answer: SupervisorDecision | dict[str, Any] | None = None,
    agent_name: str,
    model: BaseChatModel,
    sandbox: SandboxSpec,
    delivery_policy: DeliveryPolicy | None = None,
    resend: Callable[[Handoff], str | None] | None = None,
    supervisor: BaseChatModel | None = None,
    on_escalated: Callable[[Handoff], None] | None = None,
    on_blocked: Callable[[Handoff], None] | None = None,
    **options: Unpack[DeliveryOptions],
) -> Delivery:
    """Deliver a handoff to the agent of that name, which validates it, confirms it and works on it until it ends.

    A failed attempt is retried after growing pauses. If the record is refused as damaged or missing, `resend` gets the
    handoff and returns the id of another record of the source, or None; by default the runtime makes the record again
    from the source's checkpoint. Then `on_escalated` is called and `supervisor` decides; without one, `Delivery.waiting`
    holds the question for a person, and another call takes the `answer`. If nothing helps, the handoff is blocked and
    `on_blocked` is called. Both alerts default to a line in the log, as does one that raises. After a crash or a stop,
    call it again: it resumes from the ledger. Options: `open_run`.

    Raises HandoffNotFoundError, NotWaitingError, InputError, SettingsError, and ThreadHeldError while another process
    delivers the same handoff.

    Example:
        >>> delivery = deliver(home, handoff.id, agent_name="tester", model=model, sandbox=sandbox_spec)
        >>> delivery.handoff.state
        'completed'
    """
    _check_arguments(delivery_policy, supervisor)
    handoff = handoffs.load(home.ledger, handoff_id)
    if handoff.state in _TERMINAL_STATES:
        return Delivery(handoff, None, None)
    outcomes: list[Outcome] = []

    def run_attempt(handoff: Handoff) -> None:
        outcomes.append(
            _attempt_handoff(
                home, handoff, agent_name=agent_name, model=model, sandbox=sandbox, options=options
            )
        )

    context = DeliveryContext(
        ledger=home.ledger,
        policy=delivery_policy or DeliveryPolicy(),
        attempt=run_attempt,
        resend=lambda handoff: find_fresh_record(home, handoff, sandbox=sandbox, resend=resend),
        roll_back=lambda handoff_id, reason: roll_back_handoff(
            home, handoff_id, by=_ACTOR, reason=reason, sandbox=sandbox
        ),
        supervisor=supervisor,
        on_escalated=_contain_alert("on_escalated", on_escalated, _log_escalated),
        on_blocked=_contain_alert("on_blocked", on_blocked, _log_blocked),
        by=_ACTOR,
    )
    with _open_delivery_graph(home, handoff_id) as (graph, config):
        graph_input = _build_input(graph, config, handoff, answer)
        if graph_input is not None:
            values = graph.invoke(graph_input, config, context=context, durability="sync")
            interrupts = values.get("__interrupt__", ())
        else:
            interrupts = graph.get_state(config).interrupts
        waiting = SupervisorRequest.model_validate(interrupts[0].value) if interrupts else None
    return Delivery(handoffs.load(home.ledger, handoff_id), outcomes[-1] if outcomes else None, waiting)


def _check_arguments(policy: object, supervisor: object) -> None:
    """Raises SettingsError."""
    if policy is not None and not isinstance(policy, DeliveryPolicy):
        raise SettingsError(
            f"delivery_policy: not a DeliveryPolicy: {policy!r:.60} (pass DeliveryPolicy(attempts=4))"
        )
    if supervisor is not None and not isinstance(supervisor, BaseChatModel):
        raise SettingsError(
            f"supervisor: not a chat model: {supervisor!r:.60} (pass any LangChain chat model)"
        )


def _build_input(graph: Any, config: RunnableConfig, handoff: Handoff, answer: Any) -> Any:
    """Return the input that the delivery continues with; None if it waits for an answer and has none."""
    state = graph.get_state(config)
    is_waiting = state.interrupts and state.interrupts[0].value["version"] == handoff.version
    if answer is not None:
        if not is_waiting:
            raise NotWaitingError(
                f"handoff {handoff.id} does not wait for an answer; it is {handoff.state} (call deliver without one)"
            )
        try:
            return Command(resume=SupervisorDecision.model_validate(answer).model_dump())
        except ValidationError as error:
            raise invalid_answer_error(error, '{"decision": "retry"}') from error
    if is_waiting:
        return None
    # Start over: completed steps are in the ledger, and an earlier question is out of date.
    return {"handoff": handoff.id, "tries": 0, "rounds": 0}


def _attempt_handoff(
    home: Home,
    handoff: Handoff,
    *,
    agent_name: str,
    model: BaseChatModel,
    sandbox: SandboxSpec,
    options: DeliveryOptions,
) -> Outcome:
    thread = handoff.successor if handoff.state in TRANSFERRED_STATES else f"{handoff.id}.{handoff.offers}"
    with open_run(home, thread, agent_name=agent_name, model=model, sandbox=sandbox, **options) as run:
        has_started = home.saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
        return run.resume(go_back=True) if has_started else run.receive(handoff.id)


@contextmanager
def _open_delivery_graph(home: Home, handoff_id: str) -> Iterator[tuple[Any, RunnableConfig]]:
    """Open the graph of a delivery, under a lease of its own."""
    thread = f"delivery.{handoff_id}"
    lease = acquire(home.ledger, thread)
    with clean_up(lease.release), open_saver(home.ledger, lease) as saver:
        yield build_delivery(saver), {"configurable": {"thread_id": thread}, "metadata": DELIVERY_METADATA}


def _contain_alert(
    name: str, alert: Callable[[Handoff], None] | None, log: Callable[[Handoff], None]
) -> Callable[[Handoff], None]:
    """Return the alert with its errors logged instead of raised; without one, or after an error, the handoff is logged."""

    def call(handoff: Handoff) -> None:
        if alert is not None:
            with ObserverErrors(name):
                alert(handoff)
                return
        log(handoff)

    return call


def _log_escalated(handoff: Handoff) -> None:
    _LOG.warning(
        "handoff %s from %s to %s is %s and needs a supervisor's decision: %s",
        handoff.id, handoff.source, handoff.target, handoff.state, handoff.reason,
    )  # fmt: skip


def _log_blocked(handoff: Handoff) -> None:
    _LOG.error(
        "handoff %s from %s to %s is blocked: %s (see handoff history %s; unblock lets it continue)",
        handoff.id, handoff.source, handoff.target, handoff.reason, handoff.id,
    )  # fmt: skip
