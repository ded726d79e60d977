"""The node of a team's agent that hands its turn over, to the next or to whom it names."""

from __future__ import annotations

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.handoff.views.team import TurnPass, count_idle_passes
from langgraph_takeover.nodes.agent.interruption import interruption
from langgraph_takeover.nodes.context.agents import TeamMember
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context, get_member
from langgraph_takeover.nodes.events import last_action, record_observation
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.team.turns import list_passes
from langgraph_takeover.nodes.tools.execution import refuse_action

_MAX_DETAIL_CHARS = 200


def hand_over(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """A pass with its point, or a refusal that says why there is none."""
    context, member = get_agent_context(runtime), get_member(runtime)
    arguments = last_action(state).arguments
    message, target = redact(arguments.get("message", "").strip()), arguments.get("to", "").strip()
    wrong = _find_problem(state, member, target)
    if wrong:
        return refuse_action(state, runtime, f"Not handed over: {wrong}")
    passes = list_passes(state)
    target = target or member.find_next_agent(passes)[0]
    update = record_observation(state, context, Observation(text=f"[handed over to {target}]"))
    passing = TurnPass(
        step=state["steps"],
        events=len(state["events"]) + 1,
        messages=len(state["messages"]) + len(update["messages"]),
        source=member.name,
        target=target,
        how="handoff",
        message=message,
    )
    detail = " ".join(f"{member.name} hands over to {target}: {message}".split()).removesuffix(":")
    point = HandoffPoint(
        kind="requested", event_index=len(state["events"]), detail=detail[:_MAX_DETAIL_CHARS]
    )
    update["fired"] = [*update.get("fired", []), point.model_dump(mode="json")]
    update["passing"] = passing.model_dump(mode="json")
    return update


def _find_problem(state: AgentState, member: TeamMember, target: str) -> str:
    """Why a handoff cannot be; empty where it can."""
    others = ", ".join(member.handoff_targets)
    if not member.handoff_targets:  # as of a run that is resumed without the tool
        return "there is nobody to hand over to any more; go on yourself."
    if target == member.name:
        return f"you are {target} yourself; name one of {others}, or go on."
    if target and target not in member.handoff_targets:
        return f"there is no agent {target[:80]!r}; name one of {others}."
    if not target and member.must_name_target:
        return f"say who is to go on, by to: one of {others}."
    if count_idle_passes(state["events"], list_passes(state)) >= len(member.team.all_agents):
        return "the turn has gone round, and nobody has done anything; act first, or finish."
    return ""


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
