"""Traces of a run's agents: redacted events, and the files that takeover-detect and takeover-export read."""

from __future__ import annotations

import json

from langgraph_takeover.evals.run.paths import RunPaths
from langgraph_takeover.handoff.records.record import write_durably
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Continuation, Event, Trace
from langgraph_takeover.nodes.events import load_events
from langgraph_takeover.nodes.state import AgentState, get_task


def redact_events(state: AgentState) -> list[Event]:
    """Redact a trace as its record is redacted, because arguments of an action may contain a key."""
    return [Event.model_validate(redact(event.model_dump(mode="json"))) for event in load_events(state)]


def save_trace(
    paths: RunPaths,
    name: str,
    state: AgentState,
    model: str,
    events: list[Event],
    continues: Continuation | None = None,
) -> None:
    """Write a run's whole trace where takeover-detect and takeover-export find it."""
    task, external = get_task(state), state.get("external") or {}
    trace = Trace(
        id=name,
        format="takeover",
        events=tuple(events),
        workspace=task.workspace,
        base_directories=task.base_directories,
        task=task.prompt,
        model=model,
        agent=external.get("agent", ""),
        agent_version=external.get("version", ""),
        continues=continues,
    )
    paths.traces.mkdir(exist_ok=True)
    write_durably(paths.traces / f"{name}.json", json.dumps(trace.model_dump(mode="json")))
