"""The node in which an agent of a team thinks, shown what it may see of the others' work."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage
from langgraph.runtime import Runtime

from handoff.team import Pass, seen_by
from nodes.recall import tools_of
from nodes.settings import AgentContext, acting_member, given
from nodes.state import AgentState
from nodes.think import instructions, think


def turn(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """As `think`; each reply bears the agent's name, and is one of its turns."""
    context, member = given(runtime), acting_member(runtime)
    seen = seen_by(member.name, state["messages"], state.get("events", []), passes_of(state))
    shown: list[Any] = [instructions(context, tools_of(state, context)), *seen]
    update = think(AgentState(**{**state, "messages": shown}), runtime)
    if "messages" not in update:
        return update
    left = state.get("turns_left", member.turns)
    update["agent"] = member.name
    update["passing"] = None  # a fork may have left one behind
    update["turns_left"] = None if left is None else max(left - 1, 0)
    update["messages"] = [
        each.model_copy(update={"name": member.name}) if isinstance(each, AIMessage) else each
        for each in update["messages"]
    ]
    return update


def passes_of(state: AgentState) -> list[Pass]:
    return [Pass.model_validate(each) for each in state.get("passes", [])]
