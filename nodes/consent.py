"""The interruption of a team: a pass goes on from it, unless a person refuses."""

from __future__ import annotations

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from nodes.interruption import interruption
from nodes.settings import AgentContext, get_agent_context, get_member
from nodes.state import AgentState

REFUSAL_MESSAGE = "[The handoff was refused: go on yourself.]"


def team_interruption(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """As `interruption`; but a pass within the team is no end of the run, where nobody outside asked for one too.

    Under the policy `stop` it is, and a run that is resumed goes on with it. Whose pass is refused keeps its turns.
    """
    update = interruption(state, runtime)
    if state.get("passing") is None or state.get("stop_reason"):
        return update
    context, member = get_agent_context(runtime), get_member(runtime)
    asked_from_outside = len(state["fired"]) > 1
    if asked_from_outside:
        context.session.answer_handoff_request()
    if context.policy == "review" and "stop_reason" not in update:
        update["passing"] = None
        update["turns_left"] = member.max_turns
        update["messages"] = [HumanMessage(REFUSAL_MESSAGE, name=member.name)]
    elif context.policy != "stop" and not asked_from_outside:
        del update["stop_reason"]
    return update
