"""The interruption of a team: a pass goes on from it, unless a person refuses."""

from __future__ import annotations

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from nodes.interruption import interruption
from nodes.settings import AgentContext, acting_member, given
from nodes.state import AgentState

REFUSED = "[The handoff was refused: go on yourself.]"


def consent(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """As `interruption`; but a pass within the team is no end of the run, where nobody outside asked for one too.

    Under the policy `stop` it is, and a run that is resumed goes on with it. Whose pass is refused keeps its turns.
    """
    update = interruption(state, runtime)
    if state.get("passing") is None or state.get("stop_reason"):
        return update
    context, member = given(runtime), acting_member(runtime)
    asked_from_outside = len(state["fired"]) > 1
    if asked_from_outside:
        context.session.handed_over()
    if context.policy == "review" and "stop_reason" not in update:
        update["passing"] = None
        update["turns_left"] = member.turns
        update["messages"] = [HumanMessage(REFUSED, name=member.name)]
    elif context.policy != "stop" and not asked_from_outside:
        del update["stop_reason"]
    return update
