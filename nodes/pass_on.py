"""The node that gives the turn to another agent of the team."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff.team import Pass
from nodes.progress import tell
from nodes.settings import AgentContext, acting_member
from nodes.state import AgentState


def pass_on(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Raises NoSuchAgent."""
    passing = Pass.model_validate(state["passing"])
    target = acting_member(runtime).team.member(passing.target)
    tell(runtime, "passed", state, how=passing.how, to=target.name, text=passing.message)
    return AgentState(
        agent=target.name,
        turns_left=target.turns,
        passing=None,
        passes=[passing.model_dump(mode="json")],
    )
