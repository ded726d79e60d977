"""The node that gives the turn to another agent of the team."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff.team import TurnPass
from nodes.progress import report_progress
from nodes.settings import AgentContext, get_member
from nodes.state import AgentState


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
