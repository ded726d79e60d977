"""Offer a record to an agent, a program or a person."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, datetime

from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.usage_errors import HandoffError
from langgraph_takeover.handoff import views
from langgraph_takeover.handoff.ledger import Ledger, handoffs
from langgraph_takeover.handoff.ledger.handoffs import KEY_LABEL, Handoff, IllegalTransitionError
from langgraph_takeover.handoff.ledger.leases import check_name
from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.nodes.context.settings import SettingsError
from langgraph_takeover.nodes.context.team_members import UnknownAgentError
from langgraph_takeover.nodes.deliver import DeliveryPolicy


def hand_over(
    home: Home,
    record_id: str,
    *,
    target: str | None = None,
    source: str | None = None,
    envelope: Envelope | None = None,
    agents: Collection[str] | None = None,
    idempotency_key: str | None = None,
    confirm_timeout_s: float = DeliveryPolicy().confirm_timeout_s,
) -> Handoff:
    """Offer a record to an agent, a program or a person. `deliver` or `Run.receive` takes it from there.

    Default target and message: those that the agent named when it called `handoff(to=…, message=…)`. Default source:
    the agent that made the record. `agents` names all receivers that exist; without it any target is accepted. A
    repeated call with the same source and `idempotency_key` returns the same handoff for 24 hours; with another record,
    target or envelope it is refused.

    Raises RecordError, UnknownViewError, UnknownAgentError, HandoffError, KeyReusedError, HandedOverError,
    ThreadNameError for an invalid name or key, and SettingsError for an invalid deadline.

    Example:
        >>> handoff = hand_over(home, "fix-1.first_validation", target="tester")
        >>> handoff.state
        'offered'
    """
    if idempotency_key is not None:
        check_name(idempotency_key, KEY_LABEL)
    if not 0 < confirm_timeout_s < math.inf:
        raise SettingsError(
            f"confirm_timeout_s: not a positive number of seconds: {confirm_timeout_s!r:.60} (for example 900)"
        )
    record = home.records.load(record_id)
    source = source or record.predecessor
    request = next((each.arguments for each in reversed(record.trace) if each.kind == "action"), {})
    target = target or request.get("to")
    if envelope is None:
        envelope = record.envelope or Envelope()
    if not target:
        raise HandoffError(f"record {record.id}: its agent named no target (pass target=)")
    require_known_agent(target, agents)
    if source == target:
        raise HandoffError(f"{source} cannot hand over to itself (pass another target, or resume the thread)")
    if envelope.view:
        views.find_view(envelope.view)
    sent_at = datetime.now(UTC).isoformat(timespec="seconds")
    prepared = handoffs.prepare(
        home.ledger,
        record=record.id,
        digest=record.digest,
        task=record.task.id,
        thread=record.thread_id,
        source=source,
        target=target,
        envelope=envelope.model_copy(update={"source": source, "target": target, "sent_at": sent_at}),
        by=source,
        key=idempotency_key or "",
    )
    handoff = handoffs.load(home.ledger, prepared.id)  # a repeated call gets the first one's result
    if handoff.state != "prepared":
        return handoff
    try:
        return handoffs.change_state(
            home.ledger,
            handoff.id,
            "offered",
            by=source,
            version=handoff.version,
            deadline_s=confirm_timeout_s,
        )
    except IllegalTransitionError:
        handoff = handoffs.load(home.ledger, handoff.id)
        if handoff.state == "prepared":
            raise
        return handoff  # a parallel call with the same key was faster


def renew_offer(ledger: Ledger, offer: Handoff, agent: str, *, confirm_timeout_s: float) -> Handoff:
    """Return an offer with time to confirm it: an expired one is made again. Raises IllegalTransitionError."""
    if offer.state == "offered" and handoffs.compute_remaining_s(ledger, offer) <= 0:
        reason = f"{agent} did not confirm in time"
        offer = handoffs.change_state(
            ledger, offer.id, "timed_out", by=agent, version=offer.version, reason=reason
        )
    if offer.state == "timed_out":
        offer = handoffs.change_state(
            ledger, offer.id, "offered", by=agent, version=offer.version, reason=f"{agent} takes it now",
            deadline_s=confirm_timeout_s,
        )  # fmt: skip
    return offer


def require_known_agent(target: str, agents: Collection[str] | None) -> None:
    """Raise UnknownAgentError unless the target is among the agents; None: every name is known."""
    if agents is not None and target not in tuple(agents):
        names = ", ".join(f"{each:.60}" for each in sorted(agents)) or "none"
        raise UnknownAgentError(f"target: unknown agent {target!r:.60} (known agents: {names})")
