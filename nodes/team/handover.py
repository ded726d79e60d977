"""Nodes of a team's agent that pass the turn on: by its own handoff, and after a handoff point."""

from __future__ import annotations

from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import HandoffPoint
from langgraph_takeover.handoff.views.team import TurnPass, count_idle_passes
from langgraph_takeover.nodes.agent.interruption import interruption
from langgraph_takeover.nodes.context.agents import TeamMember
from langgraph_takeover.nodes.context.settings import AgentContext, get_agent_context, get_member
from langgraph_takeover.nodes.events import last_action, record_observation, store_texts_once
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.team.turns import list_passes
from langgraph_takeover.nodes.tools.execution import refuse_action

REFUSAL_MESSAGE = "[The handoff was refused: continue yourself.]"
_MAX_DETAIL_CHARS = 200


def hand_over(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Pass the turn to the named agent or the next one, and fire a point; or refuse, with the reason."""
    context, member = get_agent_context(runtime), get_member(runtime)
    arguments = last_action(state).arguments
    message, target = redact(arguments.get("message", "").strip()), arguments.get("to", "").strip()
    problem = _find_problem(state, member, target)
    if problem:
        return refuse_action(state, runtime, f"Not handed over: {problem}")
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
    return store_texts_once(state, update)


def _find_problem(state: AgentState, member: TeamMember, target: str) -> str:
    """Return why a handoff is refused; empty if it is allowed."""
    others = ", ".join(member.handoff_targets)
    if not member.handoff_targets:  # possible if the run was resumed without the handoff tool
        return "you can no longer hand over; continue yourself."
    if target == member.name:
        return f"you are {target} yourself; name one of {others}, or continue yourself."
    if target and target not in member.handoff_targets:
        return f"unknown agent {target[:80]!r}; name one of {others}."
    if not target and member.must_name_target:
        return f"name the agent that continues, as `to`: one of {others}."
    if count_idle_passes(state["events"], list_passes(state)) >= len(member.team.all_agents):
        return "the turn has passed through all agents, and none of them acted; act first, or finish."
    return ""


def team_interruption(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Like `interruption`, but a pass within the team does not end the run.

    Exceptions: the policy `stop`, and a pending handoff request from outside. A resumed run continues with the pass.
    An agent whose pass is refused keeps its turns.
    """
    update = interruption(state, runtime)
    if state.get("passing") is None or state.get("stop_reason"):
        return update
    context, member = get_agent_context(runtime), get_member(runtime)
    has_outside_request = sum(point["kind"] == "requested" for point in state["fired"]) > 1
    if has_outside_request:
        context.session.answer_handoff_request()
    if context.policy == "review" and "stop_reason" not in update:
        update["passing"] = None
        update["turns_left"] = member.max_turns
        update["messages"] = [HumanMessage(REFUSAL_MESSAGE, name=member.name)]
    elif context.policy != "stop" and not has_outside_request:
        del update["stop_reason"]
    return update
