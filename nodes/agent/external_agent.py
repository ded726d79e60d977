"""The node in which an external agent runs: it gets the model's reply, acts, and asks again or ends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.recordings.recorded_run import list_unknown_tools
from langgraph_takeover.handoff.recordings.tool_calls import is_submission
from langgraph_takeover.handoff.records.record import ExternalSession
from langgraph_takeover.handoff.shell.command_effects import find_effect
from langgraph_takeover.handoff.trace.events import NO_MODEL_CALL, HandoffPoint, count_forms
from langgraph_takeover.nodes.context.agent_program import ExternalAgentError
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context
from langgraph_takeover.nodes.external.agent_turns import count_side_work, is_lost, require_process
from langgraph_takeover.nodes.session.observation import CallResult, ExternalTurn, Observation
from langgraph_takeover.nodes.state import AgentState, Spending
from langgraph_takeover.nodes.state_events import (
    build_action_event,
    last_action,
    record_observation,
    report_progress,
    store_event,
    store_texts_once,
)
from langgraph_takeover.nodes.tools.execution import act_once
from langgraph_takeover.sandbox.interface import FileChange, Sandbox

_AGENT_FILES = re.compile(r"(?:/root|/home/[^/]+)/\.|/tmp/(?:\.|claude-|codex|opencode|node-compile-cache)")
"""Files of the agent itself, outside the repository: its sessions, caches and logs are not part of its work."""


def agent(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Deliver the model's reply to the external agent, and record what its tools did.

    Raises ExternalAgentError, SnapshotNotFoundError, SnapshotCorruptError, SandboxUnavailableError and FencedError.
    """
    context = get_agent_context(runtime)
    action = last_action(state)
    reply = state["messages"][-1]
    if not isinstance(reply, AIMessage):
        raise ExternalAgentError(
            "messages: the last message must be the model's reply (edit the reply, do not remove it)"
        )
    remaining_s = max(context.max_seconds - state["spent"]["seconds"], 1.0)
    summary = " ".join(action.arguments.get(name, "") for name in ("command", "path"))
    report_progress(runtime, "acting", state, tool=action.tool, text=summary)

    if is_lost(state, context):
        report_progress(runtime, "starting", state, text=state["external"]["agent"])
        require_process(state, context)

    def take_turn(sandbox: Sandbox) -> Observation:
        process = require_process(state, context, sandbox)
        turn = process.take_turn(reply, timeout_s=remaining_s)
        changes = tuple(each for each in sandbox.changes() if not _AGENT_FILES.match(each.path))
        text = "\n".join(each.text for each in turn.results)
        return Observation(text=text, changes=changes, turn=turn, seconds=process.last_turn_s)

    call_id = str(reply.tool_calls[0]["id"]) if reply.tool_calls else None
    observation, state_after = act_once(state, runtime, action, call_id, take_turn, "anything")
    update = _record_turn(state, context, observation)
    if state_after != state["sandbox_state"]:
        update["sandbox_state"] = state_after
    report_progress(runtime, "observed", state, exit_code=None, refused=False, text=observation.text)
    return store_texts_once(state, update)


def _record_turn(state: AgentState, context: AgentContext, observation: Observation) -> AgentState:
    """Return the update for a turn: one observation per call, and an action for every call after the first."""
    turn = observation.turn
    if turn is None:
        raise ExternalAgentError("the turn's record is damaged (resume from an earlier checkpoint)")
    results = turn.results or _make_lost_results(state, turn)
    events, points = _record_results(state, context, results, observation)
    is_lost = turn.is_ended and (bool(results) or not turn.is_complete)
    if is_lost and "requested" in context.points:
        points.append(HandoffPoint(kind="requested", event_index=0, detail=_describe_end(turn)))
    spent: Spending = {**state["spent"], "seconds": state["spent"]["seconds"] + observation.seconds}
    before = ExternalSession.model_validate(state["external"])
    session = before.model_copy(
        update={
            "session_id": turn.session_id or before.session_id,
            "running": turn.running,
            "account": turn.account or before.account,
            "unknown_forms": count_forms(list_unknown_tools(results), before.unknown_forms),
        }
    )
    update = AgentState(
        messages=_build_messages(turn, results),
        events=events,
        **count_side_work(spent, session, turn.side, context),
    )
    if observation.diff:
        update["diff"] = observation.diff
    if is_lost:
        update["stop_reason"] = "agent_ended"
    # The snapshot is that of the whole turn, so that every point is at its end.
    last = len(state["events"]) + len(events) - 1
    if latest := {point.kind: point.model_copy(update={"event_index": last}) for point in points}:
        update["fired"] = [point.model_dump(mode="json") for point in latest.values()]
    return update


def _record_results(
    state: AgentState, context: AgentContext, results: tuple[CallResult, ...], observation: Observation
) -> tuple[list[dict[str, Any]], list[HandoffPoint]]:
    """Return the events of a turn, and the points that they fire."""
    changes = _assign_changes(results, observation.changes)
    events: list[dict[str, Any]] = []
    points: list[HandoffPoint] = []
    for number, result in enumerate(results):
        if number:
            before = AgentState(**{**state, "events": [*state["events"], *events]})
            action = build_action_event(
                before, context, result.tool, "", dict(result.arguments), NO_MODEL_CALL, 0.0
            )
            events.append(store_event(action))
        seen = Observation(
            text=result.text,
            changes=changes[number],
            exit_code=result.exit_code,
            refused=result.refused,
            timed_out=result.timed_out,
            seconds=0.0 if number else observation.seconds,
        )
        before = AgentState(**{**state, "events": [*state["events"], *events]})
        update = record_observation(before, context, seen)
        events += update["events"]
        points += map(HandoffPoint.model_validate, update.get("fired", []))
    return events, points


def _make_lost_results(state: AgentState, turn: ExternalTurn) -> tuple[CallResult, ...]:
    """Return a result for the reply's first call if the agent ended, or wrote a message, instead of reporting one."""
    action = last_action(state)
    submits = turn.is_complete and is_submission(action.arguments.get("command", ""))
    if turn.is_ended and (action.tool == "finish" or submits):
        return ()
    text = "\n".join(turn.messages) or f"[{_describe_end(turn)}]"
    return (CallResult(call_id="", tool=action.tool, arguments=action.arguments, text=text),)


def _describe_end(turn: ExternalTurn) -> str:
    return f"the agent ended before its work did: {turn.end_message or 'no output'}"[:300]


def _assign_changes(
    results: tuple[CallResult, ...], changes: Iterable[FileChange]
) -> list[tuple[FileChange, ...]]:
    """Return the file changes of each call: a change belongs to the last call that names its file, else to the last that
    may have an effect."""
    assigned: list[list[FileChange]] = [[] for _ in results]
    effective = [
        number
        for number, each in enumerate(results)
        if not each.refused
        and (each.tool != "shell" or find_effect(each.arguments.get("command", "")) == "anything")
    ]
    for change in changes:
        name = change.path.rpartition("/")[2]
        naming = [
            number
            for number in effective
            if any(name in value for value in results[number].arguments.values())
        ]
        owner = (naming or effective or [len(results) - 1])[-1]
        if results:
            assigned[owner].append(change)
    return [tuple(each) for each in assigned]


def _build_messages(turn: ExternalTurn, results: tuple[CallResult, ...]) -> list[AnyMessage]:
    shown: list[AnyMessage] = [
        ToolMessage(each.text, tool_call_id=each.call_id, artifact=each.exit_code)
        for each in results
        if each.call_id
    ]
    return [*shown, *(HumanMessage(text) for text in turn.messages)]
