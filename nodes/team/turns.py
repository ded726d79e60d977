"""Nodes of a team's turns: think, rotate, pass on, conclude."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.handoff.views.team import TurnPass, build_agent_messages
from langgraph_takeover.nodes.agent.instructions import build_instructions
from langgraph_takeover.nodes.agent.lifecycle import finish
from langgraph_takeover.nodes.agent.steps import NodeSteps
from langgraph_takeover.nodes.agent.think import think
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context, get_member
from langgraph_takeover.nodes.events import report_progress, restore_event_data
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.tools.custom import list_extra_tools
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
