"""A person takes part in a handoff: they take a record, work in its sandbox, and hand it on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from langgraph_takeover.graph.delivery.offer import hand_over, renew_offer, require_known_agent
from langgraph_takeover.graph.delivery.resending import find_original_id
from langgraph_takeover.graph.delivery.rollback import sandbox_spec_for
from langgraph_takeover.graph.errors import HandoffError, RecordNotTakenError
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.graph.runs.api import open_run
from langgraph_takeover.graph.runs.run import Run
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.handoffs import Handoff
from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.nodes.model.human import HumanLeftError, HumanModel
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec

_NO_TIME_LIMIT_S = 30 * 24 * 3600.0
_MAX_STEPS = 100_000
_COMMAND_TIMEOUT_S = 3600.0
_CONFIRM_TIMEOUT_S = 3600.0
"""Time that a person at a terminal has to confirm, whatever was left of the offer's deadline."""
_UNTAKEN = ("refused", "unconfirmed")
"""Stop reasons of a thread that never took its handoff: another attempt starts it again."""


class HumanHandoff(NamedTuple):
    """The result of a person's work on a record."""

    outcome: Outcome | None
    """None if they left without handing over."""
    handoff: Handoff | None


def human_thread(record: HandoffRecord, person: str) -> str:
    """Return the name of the thread on which a person works on a record."""
    return f"{record.id}.by.{person}"[:255]


def take_record(
    home: Home,
    record: HandoffRecord,
    person: str,
    *,
    read: Callable[[str], str],
    show: Callable[[str], None],
    sandbox: SandboxSpec | None = None,
) -> HumanHandoff:
    """Let a person work in a record's sandbox, line by line, until they hand it over or leave.

    If the record was offered to them, they confirm that first, within an hour; an expired offer is made again. If they
    leave, the same call resumes. Default sandbox: an isolated one. Raises RecordError, RollbackError,
    SandboxUnavailableError, ThreadHeldError, and HandoffError if another record was sent in place of this one.
    """
    given_to: list[tuple[str, str]] = []
    with (
        _open_human_run(home, record, person, read, show, given_to, sandbox) as held,
        contextlib.suppress(HumanLeftError),
    ):
        begun = held.state()
        offered = _renew_offer(home, record, person)
        if begun is not None and begun.get("stop_reason") in _UNTAKEN:
            held.discard()
            begun = None
        if begun is None and offered is None:
            _require_newest_record(home, record.id, person)
        if begun is not None:
            outcome = held.resume(go_back=True)
        elif offered is not None:
            outcome = held.receive(offered.id)
        else:
            outcome = held.take_over(record.id, "structured")
        if not given_to or not outcome.records:
            return HumanHandoff(outcome, None)
        return HumanHandoff(outcome, _hand_over_record(home, outcome, person, *given_to[-1]))
    return HumanHandoff(None, None)


def give_record(
    home: Home,
    record: HandoffRecord,
    person: str,
    agent: str,
    message: str = "",
    *,
    agents: Collection[str] | None = None,
    sandbox: SandboxSpec | None = None,
) -> HumanHandoff:
    """Take a snapshot of a person's work on a record, and hand it to an agent, which must be among `agents` if passed.

    Raises UnknownAgentError, RecordNotTakenError, and what `take_record` raises.
    """
    require_known_agent(agent, agents)
    thread = human_thread(record, person)
    if home.saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}}) is None:
        raise RecordNotTakenError(f"{person} has not taken {record.id} (first: handoff take {record.id})")
    line = f"give {agent} {message}".strip()
    return take_record(home, record, person, read=lambda _: line, show=lambda _: None, sandbox=sandbox)


@contextlib.contextmanager
def _open_human_run(
    home: Home,
    record: HandoffRecord,
    person: str,
    read: Callable[[str], str],
    show: Callable[[str], None],
    recipients: list[tuple[str, str]],
    sandbox: SandboxSpec | None,
) -> Iterator[Run]:
    entered: list[Run] = []

    def enter_sandbox() -> Sandbox:
        (held,) = entered
        found = home.saver.get_tuple(held.config)
        assert found is not None
        return held.session.enter_state(found.checkpoint["channel_values"]["sandbox_state"])

    model = HumanModel(
        read_line=read,
        show_text=show,
        enter_sandbox=enter_sandbox,
        on_handoff=lambda to, arguments: recipients.append((to, arguments)),
    )
    settings: dict[str, Any] = {
        "protocol": "native", "offer_handoff": True, "points": (), "policy": "record", "max_steps": _MAX_STEPS,
        "max_seconds": _NO_TIME_LIMIT_S, "model_timeout_s": _NO_TIME_LIMIT_S, "command_timeout_s": _COMMAND_TIMEOUT_S,
    }  # fmt: skip
    with open_run(
        home,
        human_thread(record, person),
        model=model,
        model_name=f"person:{person}",
        agent_name=person,
        sandbox=sandbox or sandbox_spec_for(record),
        **settings,
    ) as held:
        entered.append(held)
        yield held


def load_record_to_take(home: Home, record_id: str, person: str) -> HandoffRecord:
    """Load a record. Raises RecordError, or HandoffError if it is damaged and another one replaced it."""
    try:
        return home.records.load(record_id)
    except RecordError:
        _require_newest_record(home, record_id, person)
        raise


def _require_newest_record(home: Home, record_id: str, person: str) -> None:
    """Raise HandoffError, with the record to take, if the person's offer has another record in place of this one."""
    for offer in _list_open_offers(home, person):
        original, named = (find_original_id(each, offer.id) for each in (offer.record, record_id))
        if offer.record != record_id and original == named:
            raise HandoffError(
                f"record {record_id}: handoff {offer.id} offers {offer.record} in its place "
                f"(take that: handoff take {home.records.directory(offer.record)})"
            )


def _list_open_offers(home: Home, person: str) -> list[Handoff]:
    """List the offers to a person that can be accepted: those in time first, then those that have expired."""
    offers = handoffs.list_handoffs(home.ledger, ["offered", "timed_out"])
    return sorted(
        (each for each in offers if each.target == person), key=lambda each: each.state == "timed_out"
    )


def _renew_offer(home: Home, record: HandoffRecord, person: str) -> Handoff | None:
    """Return the open offer of a record to a person, with enough time to confirm it; None without an offer."""
    ledger = home.ledger
    offers = [each for each in _list_open_offers(home, person) if each.record == record.id]
    if not offers:
        return None
    offer = offers[0]
    remaining_s = handoffs.compute_remaining_s(ledger, offer)
    if offer.state == "offered" and 0 < remaining_s < _CONFIRM_TIMEOUT_S:
        handoffs.set_deadline(ledger, offer, _CONFIRM_TIMEOUT_S)
    return renew_offer(ledger, offer, person, confirm_timeout_s=_CONFIRM_TIMEOUT_S)


def _hand_over_record(home: Home, outcome: Outcome, person: str, agent: str, message: str) -> Handoff:
    record = outcome.records[-1]
    return hand_over(
        home,
        record,
        target=agent,
        source=person,
        envelope=Envelope(message=message),
        idempotency_key=f"given {record}"[:255],
    )
