"""The node of a team's agent that says the task is done."""

from __future__ import annotations

from langgraph.runtime import Runtime

from nodes.acting import refuse_action
from nodes.finish import finish
from nodes.settings import AgentContext, get_member
from nodes.state import AgentState


def conclude(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """As `finish`, for an agent that may; another is told who may."""
    member = get_member(runtime)
    if member.agent.may_finish:
        return finish(state, runtime)
    finishers = " or ".join(member.team.finisher_names)
    instead = "hand over, or go on" if member.handoff_targets else "go on; your turn passes on by itself"
    said = f"Not finished: only {finishers} may finish the task, and you are {member.name}; {instead}."
    return refuse_action(state, runtime, said)
