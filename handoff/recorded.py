"""Handoff records of runs that were only recorded: what a successor would have been shown, without a machine to go on with."""

from __future__ import annotations

from handoff import detectors
from handoff.event import HandoffPoint
from handoff.record import HandoffRecord, TaskBrief
from handoff.trace import Trace


def points_of(trace: Trace) -> tuple[HandoffPoint, ...]:
    """The handoff points of a recorded run, and its end as one that was requested."""
    found = detectors.points(trace.events, trace.base_directories, trace.workspace)
    if not trace.events:
        return found
    return (*found, HandoffPoint(kind="requested", event_index=len(trace.events) - 1, detail="the recording ends"))


def recorded(trace: Trace, point: HandoffPoint) -> HandoffRecord:
    """The record of a recorded run at one of its points."""
    return HandoffRecord(
        id=f"{trace.id}.{point.kind}",
        task=TaskBrief(
            id=trace.id,
            prompt=trace.task,
            base_commit="",
            base_directories=trace.base_directories,
            workspace=trace.workspace,
        ),
        predecessor=trace.model,
        point=point,
        patch="",
        snapshot=None,
        thread_id="",
        checkpoint_id="",
        trace=trace.events[: point.event_index + 1],
        created_at="",
    ).sealed()
