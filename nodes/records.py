"""How a handoff record is made of a run as it stands: once, however often its node is run."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path

from langgraph.runtime import Runtime

from langgraph_takeover.handoff.records.payload import Payload
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError, TaskBrief
from langgraph_takeover.handoff.trace.events import Event, HandoffPoint
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.events import report_progress
from langgraph_takeover.nodes.state import AgentState, get_task
from langgraph_takeover.sandbox.interface import Sandbox
from langgraph_takeover.sandbox.repository.patches import RepositoryError, list_files, patch_since
from langgraph_takeover.sandbox.snapshots.transfer import copy_to_store

_MAX_NAME_BYTES = 120


def build_record_id(run_id: str, point: HandoffPoint) -> str:
    """The name of a point's record, the same however often it is made."""
    plain = re.sub(r"[^\w.+-]", "_", run_id)
    if len(plain.encode()) > _MAX_NAME_BYTES:
        # A file's name holds 255 bytes, of which a point's kind and a checkpoint's id take some.
        digest = hashlib.sha256(run_id.encode()).hexdigest()[:12]
        plain = f"{plain.encode()[: _MAX_NAME_BYTES - 13].decode(errors='ignore')}-{digest}"
    return f"{plain}.{point.kind}".lstrip(".")


def build_full_trace(state: AgentState, context: AgentContext) -> tuple[Event, ...]:
    """The events so far: what a successor hands over is what was done before it, too."""
    before = context.session.records.load(state["record"]).trace if "record" in state else ()
    own = [Event.model_validate(event | {"index": event["index"] + len(before)}) for event in state["events"]]
    return (*before, *own)


def create_record(
    state: AgentState,
    runtime: Runtime[AgentContext],
    point: HandoffPoint,
    run_id: str,
    *,
    task: TaskBrief | None = None,
    payload: Payload | None = None,
) -> HandoffRecord:
    """The record of a point that the state's events end with, for its own task or another one in its place."""
    context = get_agent_context(runtime)
    session, store, own_task = context.session, context.session.records, get_task(state)
    placed = runtime.execution_info
    checkpoint = placed.checkpoint_id if placed else ""
    name = build_record_id(run_id, point)
    trace = build_full_trace(state, context)
    point = point.model_copy(update={"event_index": point.event_index + len(trace) - len(state["events"])})

    def build(directory: Path) -> HandoffRecord:
        machine = session.enter_state(state["sandbox_state"], own_task)
        snapshot = session.save_snapshot(state["sandbox_state"])
        copy_to_store(snapshot, session.snapshot_directory(snapshot), directory)
        return HandoffRecord(
            id=name,
            task=task or own_task,
            predecessor=context.display_model,
            point=point,
            patch=_compute_patch(machine, own_task.base_commit),
            snapshot=snapshot,
            thread_id=session.thread,
            checkpoint_id=checkpoint,
            files=list_files(machine),
            trace=trace,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            payload=payload,
        )

    if (there := _find_existing_record(context, name)) is not None:
        if there.checkpoint_id == checkpoint and there.thread_id == session.thread:
            return there
        # Another branch of the run, or another of its requests: its record stays.
        name = f"{name}.{checkpoint[-12:]}"
        if (there := _find_existing_record(context, name)) is not None:
            return there
    report_progress(runtime, "point", state, kind=point.kind, text=point.detail)
    record = store.create(name, build, commit_guard=session.hold_lease)
    report_progress(runtime, "record", state, kind=point.kind, record=record.id)
    return record


def _find_existing_record(context: AgentContext, name: str) -> HandoffRecord | None:
    try:
        return context.session.records.load(name)
    except RecordError:
        return None


def _compute_patch(sandbox: Sandbox, base_commit: str) -> str:
    try:
        return patch_since(sandbox, base_commit)
    except RepositoryError:
        return ""
