"""Nodes of a team's agent that take and pass the turn: by its own handoff, and after a handoff point."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.handoff.views.team_views import TurnPass, build_agent_messages, count_idle_passes
from langgraph_takeover.nodes.agent.lifecycle import build_instructions, finish, interruption
from langgraph_takeover.nodes.agent.steps import NodeSteps
from langgraph_takeover.nodes.agent.think import think
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context, get_member
from langgraph_takeover.nodes.context.team_members import TeamMember
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.state_events import (
    last_action,
    record_observation,
    report_progress,
    restore_event_data,
    store_texts_once,
)
from langgraph_takeover.nodes.tools.custom_tools import list_extra_tools
from langgraph_takeover.nodes.tools.execution import refuse_action


def take_turn(state: AgentState, runtime: Runtime[AgentContext]) -> NodeSteps:
    """Like `think`, with the agent's own view of the others' work; the reply counts as one of its turns."""
    context, member = get_agent_context(runtime), get_member(runtime)
    before = state["messages"]
    events = [restore_event_data(each, before) for each in state.get("events", [])]
    messages: list[Any] = [
        build_instructions(context, list_extra_tools(state, context)),
        *build_agent_messages(member.name, before, events, list_passes(state)),
    ]
    update = yield from think(state, runtime, messages)
    if "messages" not in update:
        return update
    turns_left = state.get("turns_left", member.max_turns)
    update["agent"] = member.name
    update["passing"] = None  # a forked state may contain one
    update["turns_left"] = None if turns_left is None else max(turns_left - 1, 0)
    update["messages"] = [
        each.model_copy(update={"name": member.name}) if isinstance(each, AIMessage) else each
        for each in update["messages"]
    ]
    return update


def list_passes(state: AgentState) -> list[TurnPass]:
    return [TurnPass.model_validate(each) for each in state.get("passes", [])]


def rotate(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Start a pass to the next agent when the agent's turns are used up."""
    member = get_member(runtime)
    target, how = member.find_next_agent(list_passes(state))
    passing = TurnPass(
        step=state["steps"],
        events=len(state["events"]),
        messages=len(state["messages"]),
        source=member.name,
        target=target,
        how=how,
        share="results" if member.agent.share_only_tool_results else "full",
    )
    point = HandoffPoint(
        kind="requested",
        event_index=len(state["events"]) - 1,
        detail=f"{member.name}: max_consecutive_turns ({member.max_turns})",
    )
    return AgentState(fired=[point.model_dump(mode="json")], passing=passing.model_dump(mode="json"))


def pass_on(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Complete a pass: the target has the turn. Raises UnknownAgentError."""
    passing = TurnPass.model_validate(state["passing"])
    target = get_member(runtime).team.find_member(passing.target)
    report_progress(runtime, "passed", state, how=passing.how, to=target.name, text=passing.message)
    return AgentState(
        agent=target.name,
        turns_left=target.max_turns,
        passing=None,
        passes=[passing.model_dump(mode="json")],
    )


def conclude(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Finish the run if the agent may; else refuse, and name the agents that may."""
    member = get_member(runtime)
    if member.agent.may_finish:
        return finish(state, runtime)
    finishers = " or ".join(member.team.finisher_names)
    advice = (
        "hand over, or continue"
        if member.handoff_targets
        else "continue; your turn passes to another agent automatically"
    )
    reason = f"Not finished: only {finishers} may finish the task, and you are {member.name}; {advice}."
    return refuse_action(state, runtime, reason)


REFUSAL_MESSAGE = "[The handoff was refused: continue yourself.]"
_MAX_DETAIL_CHARS = 200


def hand_over(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Pass the turn to the named agent or the next one, and fire a point; or refuse, with the reason."""
    context, member = get_agent_context(runtime), get_member(runtime)
    arguments = last_action(state).arguments
    message, target = redact(arguments.get("message", "").strip()), arguments.get("to", "").strip()
    problem = _find_problem(state, member, target)
    if problem:
        return refuse_action(state, runtime, f"Not handed over: {problem}")
    passes = list_passes(state)
    target = target or member.find_next_agent(passes)[0]
    update = record_observation(state, context, Observation(text=f"[handed over to {target}]"))
    passing = TurnPass(
        step=state["steps"],
        events=len(state["events"]) + 1,
        messages=len(state["messages"]) + len(update["messages"]),
        source=member.name,
        target=target,
        how="handoff",
        message=message,
    )
    detail = " ".join(f"{member.name} hands over to {target}: {message}".split()).removesuffix(":")
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]), detail=detail[:_MAX_DETAIL_CHARS]
    )
    update["fired"] = [*update.get("fired", []), point.model_dump(mode="json")]
    update["passing"] = passing.model_dump(mode="json")
    return store_texts_once(state, update)


def _find_problem(state: AgentState, member: TeamMember, target: str) -> str:
    """Return why a handoff is refused; empty if it is allowed."""
    others = ", ".join(member.handoff_targets)
    if not member.handoff_targets:  # possible if the run was resumed without the handoff tool
        return "you can no longer hand over; continue yourself."
    if target == member.name:
        return f"you are {target} yourself; name one of {others}, or continue yourself."
    if target and target not in member.handoff_targets:
        return f"unknown agent {target[:80]!r}; name one of {others}."
    if not target and member.must_name_target:
        return f"name the agent that continues, as `to`: one of {others}."
    if count_idle_passes(state["events"], list_passes(state)) >= len(member.team.all_agents):
        return "the turn has passed through all agents, and none of them acted; act first, or finish."
    return ""


def team_interruption(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Like `interruption`, but a pass within the team does not end the run.

    Exceptions: the policy `stop`, and a pending handoff request from outside. A resumed run continues with the pass.
    An agent whose pass is refused keeps its turns.
    """
    update = interruption(state, runtime)
    if state.get("passing") is None or state.get("stop_reason"):
        return update
    context, member = get_agent_context(runtime), get_member(runtime)
    has_outside_request = sum(point["kind"] == "requested" for point in state["fired"]) > 1
    if has_outside_request:
        context.session.answer_handoff_request()
    if context.policy == "review" and "stop_reason" not in update:
        update["passing"] = None
        update["turns_left"] = member.max_turns
        update["messages"] = [HumanMessage(REFUSAL_MESSAGE, name=member.name)]
    elif context.policy != "stop" and not has_outside_request:
        del update["stop_reason"]
    return update
