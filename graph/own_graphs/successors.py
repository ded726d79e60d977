"""Records between agents of one's own graphs: what a successor receives, and what a handoff tool saves."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, ToolMessage

from langgraph_takeover.graph.delivery.offers import renew_offer
from langgraph_takeover.graph.own_graphs.agent_handoffs import read_field
from langgraph_takeover.graph.own_graphs.agent_trace import find_trace
from langgraph_takeover.graph.own_graphs.call_order import find_attended_call
from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox
from langgraph_takeover.graph.usage_errors import HandoffError
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.acceptance import Receiver, find_refusal
from langgraph_takeover.handoff.ledger.handoffs import OPEN_STATES, Handoff
from langgraph_takeover.handoff.names import ViewName
from langgraph_takeover.handoff.records.envelope import Understanding
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore, TaskBrief
from langgraph_takeover.handoff.trace.events import Event
from langgraph_takeover.handoff.views import VIEWS_WITH_NOTES, Recipient, find_view
from langgraph_takeover.nodes.context.team_members import name_model
from langgraph_takeover.nodes.model.note_calls import MODEL_TIMEOUT_S, complete_notes
from langgraph_takeover.nodes.records import save_files
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import BASE_STATE

_CONFIRM_TIMEOUT_S = 900.0


def receive_record(
    work: ThreadSandbox,
    record_id: str,
    view: ViewName = "structured",
    *,
    window_tokens: int = 128_000,
    agent_name: str | None = None,
    handoff: str | None = None,
    notes_model: BaseChatModel | None = None,
    understanding: Understanding | None = None,
) -> dict[str, Any]:
    """Return the input of an agent that takes over a record on a new thread, under a view.

    The thread's sandbox gets the record's snapshot. If the record was offered by `hand_over`, this accepts the offer, and
    the source's thread is closed to writers; `complete_handoff` ends it. A repeated call on the same thread changes
    nothing, until something has been done there. In an event loop: `await work.run_blocking(lambda: receive_record(work, …))`.

    Args:
        work: the sandbox of the new thread.
        record_id: id of the record.
        view: what the agent sees of it. For `cited`, give the agent the tool of `create_recall_tool(records=home.records)`.
        window_tokens: the context window of the agent's model.
        agent_name: the name that the offer is for, if the record was offered to several.
        handoff: id of the offer that this accepts, of `hand_over`. Without it, a record that nobody offered is received too.
        notes_model: writes the notes that the views `structured`, `summary` and `cited` show, if the record has none;
            usually the predecessor's model. Without notes their fields are unknown.
        understanding: what the agent confirms, for the ledger.

    Raises RecordError, UnknownViewError, SnapshotCorruptError and SandboxUnavailableError; HandoffError for a refused
    offer, if several are open, if `handoff` or `agent_name` names no offer of this record that this thread can accept,
    or if something has been done on the thread; IllegalTransitionError and HandedOverError if another agent was faster.
    """
    record = work.session.records.load(record_id)
    offer = _find_offer(work, record_id, agent_name, handoff)
    if notes_model is not None and view in VIEWS_WITH_NOTES:
        record = write_notes(work.session, record, notes_model)
    if offer is not None and offer.envelope:
        record = record.model_copy(update={"envelope": offer.envelope})
    messages = find_view(view)(record, Recipient(protocol="native", window_tokens=window_tokens))
    work.session.require_no_act()
    if work.list_states() - {BASE_STATE, work.session.adopt_record(record)}:
        raise HandoffError(
            f"thread {work.thread!r}: work has been done there, which record {record_id} would replace (continue it with "
            "agent.invoke(None, config), or receive the record on a new thread)"
        )
    state = work.session.enter_record(record)
    if offer is not None and offer.successor != work.thread:
        _accept(work, offer, understanding)
    for number, message in enumerate(messages):
        message.id = f"{record.id}:{number}"  # by which the agent knows them from its own task's requests
    return {
        "messages": messages,
        "requests": [each.id for each in messages if isinstance(each, HumanMessage)],
        "sandbox_state": state,
        "task": record.task.model_dump(mode="json"),
        "record": record.id,
    }


def complete_handoff(work: ThreadSandbox, reason: str = "finished") -> Handoff | None:
    """Note in the ledger that the work of the handoff that `receive_record` accepted is done; None if it accepted none.

    Raises IllegalTransitionError if the handoff was taken back.
    """
    ledger = work.session.ledger
    found = handoffs.find_by_successor(ledger, work.thread)
    if found is None:
        return None
    handoffs.advance(ledger, found.id, "completed", by=found.target, reason=reason)
    return handoffs.load(ledger, found.id)


def write_notes(session: Session, record: HandoffRecord, model: BaseChatModel) -> HandoffRecord:
    """Return the record with notes of the model, saved with it; as it is, if it has notes or the model fails."""
    return complete_notes(
        record,
        model,
        name_model(model),
        records=session.records,
        guard=session.hold_lease,
        timeout_s=MODEL_TIMEOUT_S,
        cancellation=session.stop.cancellation,
    )


def _find_offer(
    work: ThreadSandbox, record_id: str, agent_name: str | None, handoff: str | None
) -> Handoff | None:
    """Return the handoff that this thread accepted, or the one offer that it can accept. Raises HandoffError."""
    found = [
        each
        for each in handoffs.list_handoffs(work.session.ledger, OPEN_STATES)
        if each.record == record_id and agent_name in (None, each.target) and handoff in (None, each.id)
    ]
    if accepted := [each for each in found if each.successor == work.thread]:
        return accepted[-1]
    offers = [each for each in found if each.state in ("offered", "timed_out")]
    if len(offers) > 1:
        raise HandoffError(
            f"record {record_id}: it is offered to {', '.join(each.target for each in offers)[:200]} (pass agent_name=)"
        )
    if not offers and (handoff or agent_name):
        named = f"handoff {handoff!r:.60}" if handoff else f"agent {agent_name!r:.60}"
        raise HandoffError(f"{named}: no open offer of record {record_id} (hand it over with hand_over)")
    return offers[0] if offers else None


def _accept(work: ThreadSandbox, offer: Handoff, understanding: Understanding | None) -> None:
    ledger = work.session.ledger
    offer = renew_offer(ledger, offer, offer.target, confirm_timeout_s=_CONFIRM_TIMEOUT_S)
    refusal = find_refusal(ledger, work.session.records, offer, Receiver(name=offer.target))
    if refusal is not None:
        handoffs.change_state(
            ledger, offer.id, "rejected", by=offer.target, version=offer.version, reason=str(refusal)
        )
        raise HandoffError(f"handoff {offer.id} is rejected: {refusal}")
    handoffs.change_state(
        ledger,
        offer.id,
        "accepted",
        by=offer.target,
        version=offer.version,
        reason=understanding.next_step if understanding else f"thread {work.thread}",
        successor=work.thread,
        understanding=understanding,
    )
    handoffs.advance(ledger, offer.id, "active", by=offer.target)


@dataclass(frozen=True)
class HandoffSandbox:
    """The sandbox of an agent that hands over, after the calls before the handoff."""

    session: Session
    state_id: str
    task: TaskBrief
    events: tuple[Event, ...]
    """What the sandbox observed during the agent's turn."""
    results: tuple[ToolMessage, ...]
    """Results of calls beside the handoff in its reply, which the agent's messages lack."""

    @property
    def records(self) -> RecordStore:
        return self.session.records

    def hold_lease(self) -> AbstractContextManager[None]:
        return self.session.hold_lease()

    def save(self, record: HandoffRecord, directory: Path) -> HandoffRecord:
        """Save the snapshot in the record's directory, and return the record with it."""
        fields = save_files(self.session, self.state_id, record.task, record.trace, directory)
        own = {"patch": record.patch, "patch_error": ""} if record.patch else {}
        return record.model_copy(update=fields | own)


def find_sandbox(state: Any, call_id: str) -> HandoffSandbox | None:
    """Return the sandbox behind a call of a handoff tool; None if its agent has no `SandboxMiddleware`."""
    call, task = find_attended_call(call_id), read_field(state, "task")
    if call is None or not task:
        return None
    earlier = find_trace(call.order.work).load(read_field(state, "trace")).events
    events, results = [*earlier, *(read_field(state, "events") or ())], []
    for place, other in sorted(call.step.calls.items()):
        added = [event for _, update in sorted(other.updates.items()) for event in update["events"]]
        events += added
        if added:
            text, call_id = str(added[-1]["text"]), str(call.step.call_ids[place])
            results.append(ToolMessage(text, tool_call_id=call_id, name=added[-1]["tool"]))
    return HandoffSandbox(
        session=call.order.work.session,
        state_id=call.order.find_state(call),
        task=TaskBrief.model_validate(task),
        events=tuple(map(Event.model_validate, events)),
        results=tuple(results),
    )
