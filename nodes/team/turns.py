"""The node in which an agent of a team thinks, shown what it may see of the others' work."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.handoff.views.team import TurnPass, build_agent_messages
from langgraph_takeover.nodes.agent.lifecycle import finish
from langgraph_takeover.nodes.agent.think import build_instructions, think
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context, get_member
from langgraph_takeover.nodes.events import report_progress
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.tools.custom import list_extra_tools
from langgraph_takeover.nodes.tools.execution import refuse_action


def take_turn(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """As `think`; each reply bears the agent's name, and is one of its turns."""
    context, member = get_agent_context(runtime), get_member(runtime)
    seen = build_agent_messages(member.name, state["messages"], state.get("events", []), list_passes(state))
    shown: list[Any] = [build_instructions(context, list_extra_tools(state, context)), *seen]
    update = think(AgentState(**{**state, "messages": shown}), runtime)
    if "messages" not in update:
        return update
    left = state.get("turns_left", member.max_turns)
    update["agent"] = member.name
    update["passing"] = None  # a fork may have left one behind
    update["turns_left"] = None if left is None else max(left - 1, 0)
    update["messages"] = [
        each.model_copy(update={"name": member.name}) if isinstance(each, AIMessage) else each
        for each in update["messages"]
    ]
    return update


def list_passes(state: AgentState) -> list[TurnPass]:
    return [TurnPass.model_validate(each) for each in state.get("passes", [])]


def rotate(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
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
    """Raises UnknownAgentError."""
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
    """As `finish`, for an agent that may; another is told who may."""
    member = get_member(runtime)
    if member.agent.may_finish:
        return finish(state, runtime)
    finishers = " or ".join(member.team.finisher_names)
    instead = "hand over, or go on" if member.handoff_targets else "go on; your turn passes on by itself"
    said = f"Not finished: only {finishers} may finish the task, and you are {member.name}; {instead}."
    return refuse_action(state, runtime, said)
