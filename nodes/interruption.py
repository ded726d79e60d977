"""The node that freezes machine and state at a handoff point, makes a record of both, and decides who goes on."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langgraph.runtime import Runtime
from langgraph.types import interrupt

from handoff.event import Event, HandoffPoint, Usage
from handoff.notes.note import structured_note
from handoff.notes.writing import TooLong, write_notes
from handoff.record import HandoffRecord, RecordRefused, Review
from handoff.views import VIEWS
from nodes.progress import tell
from nodes.replies import ContextOverflow, ModelFailed, ask_in_schema, usage_of
from nodes.settings import AgentContext, given
from nodes.state import AgentState, task_of
from sandbox.machine import Sandbox
from sandbox.repository import RepositoryBroken, files_below, patch_since
from sandbox.transfer import bring

_LONGEST_NAME = 120


def interruption(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Make one record for each point that the last step fired, then do as the policy says.

    `record` goes on, unless the handoff was requested; `stop` and `takeover` end the run, the one for good,
    the other for a successor; `review` waits for a person, who hands over or refuses.
    """
    context = given(runtime)
    points = [HandoffPoint.model_validate(point) for point in state["fired"]]
    made = [_record(state, runtime, point) for point in points]
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
    return update


def record_id(run_id: str, point: HandoffPoint) -> str:
    """The name of a point's record, the same however often it is made."""
    plain = re.sub(r"[^\w.+-]", "_", run_id)
    if len(plain.encode()) > _LONGEST_NAME:
        # A file's name holds 255 bytes, of which a point's kind and a checkpoint's id take some.
        digest = hashlib.sha256(run_id.encode()).hexdigest()[:12]
        plain = f"{plain.encode()[: _LONGEST_NAME - 13].decode(errors='ignore')}-{digest}"
    return f"{plain}.{point.kind}".lstrip(".")


def _record(state: AgentState, runtime: Runtime[AgentContext], point: HandoffPoint) -> HandoffRecord:
    context = given(runtime)
    session, store, task = context.session, context.session.records, task_of(state)
    placed = runtime.execution_info
    checkpoint = placed.checkpoint_id if placed else ""
    name = record_id(context.run_id or session.thread, point)
    # What a successor hands over is what was done before it, too.
    before = store.load(state["record"]).trace if "record" in state else ()
    own = [Event.model_validate(event | {"index": event["index"] + len(before)}) for event in state["events"]]
    point = point.model_copy(update={"event_index": point.event_index + len(before)})

    def make(directory: Path) -> HandoffRecord:
        machine = session.enter(state["machine"], task)
        snapshot = session.keep(state["machine"])
        bring(snapshot, session.store_of(snapshot), directory)
        return HandoffRecord(
            id=name,
            task=task,
            predecessor=context.model_name,
            point=point,
            patch=_patch(machine, task.base_commit),
            snapshot=snapshot,
            thread_id=session.thread,
            checkpoint_id=checkpoint,
            files=files_below(machine),
            trace=(*before, *own),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    if (there := _made_before(context, name)) is not None:
        if there.checkpoint_id == checkpoint and there.thread_id == session.thread:
            return there
        # Another branch of the run, or another of its requests: its record stays.
        name = f"{name}.{checkpoint[-12:]}"
        if (there := _made_before(context, name)) is not None:
            return there
    tell(runtime, "point", state, kind=point.kind, text=point.detail)
    record = store.create(name, make, alone=session.holding)
    tell(runtime, "record", state, kind=point.kind, record=record.id)
    return record


def _made_before(context: AgentContext, name: str) -> HandoffRecord | None:
    try:
        return context.session.records.load(name)
    except RecordRefused:
        return None


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


def _patch(machine: Sandbox, base_commit: str) -> str:
    try:
        return patch_since(machine, base_commit)
    except RepositoryBroken:
        return ""
