"""The node of a team's agent that says the task is done."""

from __future__ import annotations

from langgraph.runtime import Runtime

from nodes.acting import refused
from nodes.finish import finish
from nodes.settings import AgentContext, acting_member
from nodes.state import AgentState


def conclude(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """As `finish`, for an agent that may; another is told who may."""
    member = acting_member(runtime)
    if member.agent.may_finish:
        return finish(state, runtime)
    finishers = " or ".join(member.team.finishers)
    instead = "hand over, or go on" if member.targets else "go on; your turn passes on by itself"
    said = f"Not finished: only {finishers} may finish the task, and you are {member.name}; {instead}."
    return refused(state, runtime, said)
