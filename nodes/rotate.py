"""The node of a team's agent whose turns in a row are over."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff.event import HandoffPoint
from handoff.team import Pass
from nodes.settings import AgentContext, acting_member
from nodes.state import AgentState
from nodes.turn import passes_of


def rotate(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    member = acting_member(runtime)
    target, how = member.followed_by(passes_of(state))
    passing = Pass(
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
        detail=f"{member.name}: max_consecutive_turns ({member.turns})",
    )
    return AgentState(fired=[point.model_dump(mode="json")], passing=passing.model_dump(mode="json"))
