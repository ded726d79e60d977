"""The node of a team's agent whose turns in a row are over."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff.event import HandoffPoint
from handoff.team import TurnPass
from nodes.settings import AgentContext, get_member
from nodes.state import AgentState
from nodes.turn import list_passes


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
