"""The node that freezes machine and state at a handoff point, makes a record of both, and decides who goes on."""

from __future__ import annotations

from typing import Any

from langgraph.runtime import Runtime
from langgraph.types import interrupt

from handoff.event import HandoffPoint, Usage
from handoff.ledger import handoffs
from handoff.notes.note import structured_note
from handoff.notes.writing import TooLong, write_notes
from handoff.record import HandoffRecord, Review
from handoff.views import VIEWS
from nodes.progress import tell
from nodes.recording import recorded
from nodes.replies import ContextOverflow, ModelFailed, ask_in_schema, usage_of
from nodes.settings import AgentContext, given
from nodes.state import AgentState


def interruption(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Make one record for each point that the last step fired, then do as the policy says.

    `record` goes on, unless the handoff was requested; `stop` and `takeover` end the run, the one for good,
    the other for a successor; `review` waits for a person, who hands over or refuses.
    """
    context = given(runtime)
    points = [HandoffPoint.model_validate(point) for point in state["fired"]]
    run_id = context.run_id or context.session.thread
    made = [recorded(state, runtime, point, run_id) for point in points]
    requested = any(point.kind == "requested" for point in points)
    update = AgentState(records=[record.id for record in made], fired=[])
    if context.policy == "review":
        if _reviewed(state, runtime, made[0]):
            update["stop_reason"] = state.get("stop_reason") or "handoff"
    elif not state.get("stop_reason"):
        if context.policy == "takeover" or requested:
            update["stop_reason"] = "handoff"
        elif context.policy == "stop":
            update["stop_reason"] = "point"
    # A team's pass is no answer to somebody outside, who may have asked meanwhile.
    if requested and not state.get("passing"):
        context.session.handed_over()
    if update.get("stop_reason") == "handoff" and state.get("handoff"):
        handoffs.reach(
            context.session.ledger, state["handoff"], "completed", by=context.name, reason=f"handed on as {made[0].id}"
        )  # fmt: skip
    return update


def _reviewed(state: AgentState, runtime: Runtime[AgentContext], record: HandoffRecord) -> bool:
    """Whether a person hands the run over; what they decided is kept with the record."""
    context = given(runtime)
    record = _with_notes(context, record)
    tell(runtime, "review", state, record=record.id)
    answer = interrupt(
        {
            "record": record.id,
            "point": record.point.kind,
            "why": record.point.detail,
            "note": structured_note(record),
            "views": list(VIEWS),
        },
        response_schema=Review,
    )
    decided = Review.model_validate(answer)
    if decided.decision == "refuse":
        return False
    with context.session.holding():
        context.session.records.add_review(record.id, decided)
    return True


def _with_notes(context: AgentContext, record: HandoffRecord) -> HandoffRecord:
    """The record with what the agent's model wrote about it; a model that fails leaves its fields unknown."""
    if record.notes is not None:
        return record

    def asked(messages: list[Any], schema: dict[str, Any] | None) -> tuple[str, Usage]:
        try:
            reply = ask_in_schema(context.model, messages, schema, timeout_s=context.model_timeout_s)
        except ContextOverflow as error:
            raise TooLong(str(error)) from error
        return reply.text, usage_of(reply, messages)

    try:
        notes = write_notes(record, asked, context.model_name)
    except ModelFailed:
        return record
    with context.session.holding():
        context.session.records.add_notes(record.id, notes)
        notes = context.session.records.notes(record.id) or notes
    return record.model_copy(update={"notes": notes})
