"""The node that freezes machine and state at a handoff point and makes a record of both."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from langgraph.runtime import Runtime

from handoff.event import Event, HandoffPoint
from handoff.record import HandoffRecord
from nodes.state import AgentContext, AgentState
from sandbox.machine import Sandbox
from sandbox.repository import RepositoryBroken, patch_since


def interruption(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Make one record for each point that the last step fired; `stop` ends the run after that."""
    points = [HandoffPoint.model_validate(point) for point in state["fired"]]
    made = [_record(state, runtime, point).id for point in points]
    update = AgentState(records=made, fired=[])
    if runtime.context.policy == "stop" and "stop_reason" not in state:
        update["stop_reason"] = "point"
    return update


def record_id(run_id: str, point: HandoffPoint) -> str:
    """The name of a point's record, the same however often it is made."""
    return f"{run_id}.{point.kind}"


def _record(state: AgentState, runtime: Runtime[AgentContext], point: HandoffPoint) -> HandoffRecord:
    context = runtime.context
    placed = runtime.execution_info

    def make(directory: Path) -> HandoffRecord:
        machine = context.workbench.machine()
        return HandoffRecord(
            id=record_id(context.run_id, point),
            task=context.task,
            predecessor=context.model_name,
            point=point,
            patch=_patch(machine, context.task.base_commit),
            snapshot=machine.freeze(directory).result(),
            thread_id=(placed.thread_id if placed else None) or "",
            checkpoint_id=placed.checkpoint_id if placed else "",
            trace=tuple(Event.model_validate(event) for event in state["events"]),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    return context.store.create(record_id(context.run_id, point), make)


def _patch(machine: Sandbox, base_commit: str) -> str:
    try:
        return patch_since(machine, base_commit)
    except RepositoryBroken:
        return ""
