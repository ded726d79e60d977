"""The node in which an agent of a team thinks, shown what it may see of the others' work."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.runtime import Runtime

from handoff.team import TurnPass, build_agent_messages
from nodes.recall import list_extra_tools
from nodes.settings import AgentContext, get_agent_context, get_member
from nodes.state import AgentState
from nodes.think import build_instructions, think


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
