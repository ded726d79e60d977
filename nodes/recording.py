"""How a handoff record is made of a run as it stands: once, however often its node is run."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path

from langgraph.runtime import Runtime

from handoff.event import Event, HandoffPoint
from handoff.payload import Payload
from handoff.record import HandoffRecord, RecordRefused, TaskBrief
from nodes.progress import tell
from nodes.settings import AgentContext, given
from nodes.state import AgentState, task_of
from sandbox.machine import Sandbox
from sandbox.repository import RepositoryBroken, files_below, patch_since
from sandbox.transfer import bring

_LONGEST_NAME = 120


def record_id(run_id: str, point: HandoffPoint) -> str:
    """The name of a point's record, the same however often it is made."""
    plain = re.sub(r"[^\w.+-]", "_", run_id)
    if len(plain.encode()) > _LONGEST_NAME:
        # A file's name holds 255 bytes, of which a point's kind and a checkpoint's id take some.
        digest = hashlib.sha256(run_id.encode()).hexdigest()[:12]
        plain = f"{plain.encode()[: _LONGEST_NAME - 13].decode(errors='ignore')}-{digest}"
    return f"{plain}.{point.kind}".lstrip(".")


def trace_of(state: AgentState, context: AgentContext) -> tuple[Event, ...]:
    """The events so far: what a successor hands over is what was done before it, too."""
    before = context.session.records.load(state["record"]).trace if "record" in state else ()
    own = [Event.model_validate(event | {"index": event["index"] + len(before)}) for event in state["events"]]
    return (*before, *own)


def recorded(
    state: AgentState,
    runtime: Runtime[AgentContext],
    point: HandoffPoint,
    run_id: str,
    *,
    task: TaskBrief | None = None,
    payload: Payload | None = None,
) -> HandoffRecord:
    """The record of a point that the state's events end with, for its own task or another one in its place."""
    context = given(runtime)
    session, store, own_task = context.session, context.session.records, task_of(state)
    placed = runtime.execution_info
    checkpoint = placed.checkpoint_id if placed else ""
    name = record_id(run_id, point)
    trace = trace_of(state, context)
    point = point.model_copy(update={"event_index": point.event_index + len(trace) - len(state["events"])})

    def make(directory: Path) -> HandoffRecord:
        machine = session.enter(state["machine"], own_task)
        snapshot = session.keep(state["machine"])
        bring(snapshot, session.store_of(snapshot), directory)
        return HandoffRecord(
            id=name,
            task=task or own_task,
            predecessor=context.model_name,
            point=point,
            patch=_patch(machine, own_task.base_commit),
            snapshot=snapshot,
            thread_id=session.thread,
            checkpoint_id=checkpoint,
            files=files_below(machine),
            trace=trace,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            payload=payload,
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


def _patch(machine: Sandbox, base_commit: str) -> str:
    try:
        return patch_since(machine, base_commit)
    except RepositoryBroken:
        return ""
