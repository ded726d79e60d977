"""The nodes at which a run is interrupted: a handoff that the agent requests, and a handoff point."""

from __future__ import annotations

from functools import partial

from langgraph.runtime import Runtime
from langgraph.types import interrupt

from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.notes.structured_note import render_structured_note
from langgraph_takeover.handoff.records.record import HandoffRecord, Review
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.handoff.views import VIEWS
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import (
    last_action,
    record_observation,
    report_progress,
    report_wait,
    store_texts_once,
)
from langgraph_takeover.nodes.model.notes import write_model_notes
from langgraph_takeover.nodes.records import create_record
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.state import AgentState, ReviewRequest


def handoff(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Fire the point `requested`: the agent asks for a successor."""
    message = redact(last_action(state).arguments.get("message", "").strip())
    update = record_observation(state, get_agent_context(runtime), Observation(text="[handed over]"))
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]), detail=message[:200] or "requested by the agent"
    )
    update["fired"] = [*update.get("fired", []), point.model_dump(mode="json")]
    return store_texts_once(state, update)


def interruption(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Create one record for each point that the last step fired, then apply the policy.

    `record` continues unless the handoff was requested; `stop` ends the run; `takeover` ends it and hands over to
    a successor; `review` waits for a person, who approves or refuses the handoff. After a periodic record the run
    continues under every policy.
    """
    context = get_agent_context(runtime)
    fired = [HandoffPoint.model_validate(point) for point in state["fired"]]
    run_id = context.run_id or context.session.thread
    made = [create_record(state, runtime, point, run_id) for point in fired]
    records = [record for record in made if record.point.kind != "periodic"]
    update = AgentState(records=[record.id for record in records], fired=[])
    if periodic := [record.id for record in made if record.point.kind == "periodic"]:
        update["periodic_records"] = [*state.get("periodic_records", []), *periodic]
    if not records:
        return update
    requested = any(record.point.kind == "requested" for record in records)
    # A pending review stays pending, even if the run was resumed under another policy.
    if context.policy == "review" or context.session.records.is_review_pending(records[0].id):
        if _ask_review(state, runtime, records[0]):
            update["stop_reason"] = state.get("stop_reason") or "handoff"
    elif not state.get("stop_reason"):
        if context.policy == "takeover" or requested:
            update["stop_reason"] = "handoff"
        elif context.policy == "stop":
            update["stop_reason"] = "point"
    # A pass within a team does not answer a request from outside, which may have arrived meanwhile.
    if requested and not state.get("passing"):
        context.session.answer_handoff_request()
    if update.get("stop_reason") == "handoff" and state.get("handoff"):
        handoffs.advance(
            context.session.ledger, state["handoff"], "completed", by=context.name, reason=f"handed over as {records[0].id}"
        )  # fmt: skip
    return update


def _ask_review(state: AgentState, runtime: Runtime[AgentContext], record: HandoffRecord) -> bool:
    """Return whether a person approves the handoff; the decision is saved with the record."""
    context = get_agent_context(runtime)
    records = context.session.records
    record = _add_notes(state, runtime, record)
    if record.review is None:
        with context.session.hold_lease():
            records.mark_review_pending(record.id)
    report_progress(runtime, "review", state, record=record.id)
    return wait_for_review(context.session, record)


def wait_for_review(session: Session, record: HandoffRecord) -> bool:
    """Interrupt the graph until a person decides; save the decision, and return whether it approves the handoff."""
    answer = interrupt(
        ReviewRequest(
            record=record.id,
            point=record.point.kind,
            detail=record.point.detail,
            note=render_structured_note(record),
            views=tuple(VIEWS),
        ).model_dump(mode="json"),
        response_schema=Review,
    )
    review = Review.model_validate(answer)
    with session.hold_lease():
        session.records.add_review(record.id, review)
    return review.decision == "approve"


def _add_notes(state: AgentState, runtime: Runtime[AgentContext], record: HandoffRecord) -> HandoffRecord:
    """Return the record with the model's notes; if the model fails, without."""
    context = get_agent_context(runtime)
    if record.notes is not None:
        return record
    notes = write_model_notes(
        record,
        context.model,
        context.display_model,
        timeout_s=context.model_timeout_s,
        cancellation=context.session.stop.cancellation,
        on_wait=partial(report_wait, runtime, state),
    )
    if notes is None:
        return record
    with context.session.hold_lease():
        context.session.records.add_notes(record.id, notes)
        notes = context.session.records.load_notes(record.id) or notes
    return record.model_copy(update={"notes": notes})
