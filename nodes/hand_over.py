"""The node of a team's agent that hands its turn over, to the next or to whom it names."""

from __future__ import annotations

from langgraph.runtime import Runtime

from handoff.event import HandoffPoint
from handoff.redaction import redacted
from handoff.team import Pass, idle_passes
from nodes.acting import refused
from nodes.events import last_action, observed
from nodes.observation import Observation
from nodes.settings import AgentContext, acting_member, given
from nodes.state import AgentState
from nodes.team import Member
from nodes.turn import passes_of

_LONGEST = 200


def hand_over(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """A pass with its point, or a refusal that says why there is none."""
    context, member = given(runtime), acting_member(runtime)
    arguments = last_action(state).arguments
    message, target = redacted(arguments.get("message", "").strip()), arguments.get("to", "").strip()
    wrong = _wrong(state, member, target)
    if wrong:
        return refused(state, runtime, f"Not handed over: {wrong}")
    passes = passes_of(state)
    target = target or member.followed_by(passes)[0]
    update = observed(state, context, Observation(text=f"[handed over to {target}]"))
    passing = Pass(
        step=state["steps"],
        events=len(state["events"]) + 1,
        messages=len(state["messages"]) + len(update["messages"]),
        source=member.name,
        target=target,
        how="handoff",
        message=message,
    )
    detail = " ".join(f"{member.name} hands over to {target}: {message}".split()).removesuffix(":")
    point = HandoffPoint(kind="requested", event_index=len(state["events"]), detail=detail[:_LONGEST])
    update["fired"] = [*update.get("fired", []), point.model_dump(mode="json")]
    update["passing"] = passing.model_dump(mode="json")
    return update


def _wrong(state: AgentState, member: Member, target: str) -> str:
    """Why a handoff cannot be; empty where it can."""
    others = ", ".join(member.targets)
    if not member.targets:  # as of a run that is resumed without the tool
        return "there is nobody to hand over to any more; go on yourself."
    if target == member.name:
        return f"you are {target} yourself; name one of {others}, or go on."
    if target and target not in member.targets:
        return f"there is no agent {target[:80]!r}; name one of {others}."
    if not target and member.must_name:
        return f"say who is to go on, by to: one of {others}."
    if idle_passes(state["events"], passes_of(state)) >= len(member.team.everyone):
        return "the turn has gone round, and nobody has done anything; act first, or finish."
    return ""
