"""The team: several agents take turns at one task, in one machine and on one thread, as one flat state machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any, Literal

from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from pydantic import ValidationError

from graph.agent import Doing, Graph, Node, Saver, build_agent, build_takeover, what_to_do
from graph.checkpoint import Kind
from nodes.begin import begin
from nodes.conclude import conclude
from nodes.consent import consent
from nodes.delegate import delegate
from nodes.editor import editor
from nodes.hand_over import hand_over
from nodes.pass_on import pass_on
from nodes.rotate import rotate
from nodes.settings import AgentContext, BadSettings, acting_member, equipped, given, told
from nodes.shell import shell
from nodes.state import AfterTeamThought, AfterTurn, AgentState
from nodes.team import Agent, Team
from nodes.tool import tool
from nodes.turn import turn

NODES: dict[str, Node] = {
    "begin": begin,
    "think": turn,
    "shell": shell,
    "editor": editor,
    "tool": tool,
    "delegate": delegate,
    "handoff": hand_over,
    "finish": conclude,
    "rotate": rotate,
    "interruption": consent,
    "pass_on": pass_on,
}


def graph_of(kind: Kind, saver: Saver) -> Graph:
    """The graph that a thread was run by."""
    return {"agent": build_agent, "takeover": build_takeover}.get(kind, _any_team)(saver)


def _any_team(saver: Saver) -> Graph:
    return team_graph(None, saver)


def build_team(agents: Sequence[Agent], saver: Saver = None, **settings: Any) -> Graph:
    """Agents that take turns; the input is `{"task": {"id": …, "prompt": …}}`.

    Settings are those of `nodes.team.Team`, and of LangGraph's `StateGraph` the schemas. Raises BadSettings.
    """
    own = {name: settings.pop(name) for name in Team.model_fields if name in settings}
    return team_graph(assembled(agents=agents, **own), saver, **settings)


def team_graph(team: Team | None = None, saver: Saver = None, **schemas: Any) -> Graph:
    """The graph of a team, which is that of the run's context where none is given."""
    entered = schemas.pop("entered", lambda node: node)
    graph = StateGraph(AgentState, **{"context_schema": AgentContext, **schemas})
    for name, node in NODES.items():
        graph.add_node(name, entered(_as_who_acts(node, team)))
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "think")
    graph.add_conditional_edges("think", after_thought)
    for acting in ("shell", "editor", "tool", "delegate", "handoff"):
        graph.add_conditional_edges(acting, after_turn)
    graph.add_conditional_edges("finish", after_finish)
    graph.add_edge("rotate", "interruption")
    graph.add_conditional_edges("interruption", after_interruption)
    graph.add_edge("pass_on", "think")
    return graph.compile(checkpointer=saver, name="team")


def after_thought(state: AfterTeamThought) -> Literal[Doing, "pass_on", "rotate"]:
    """The node that the agent's action belongs to; where it was none, its turn is over."""
    doing = what_to_do(state)
    if doing != "think":
        return doing
    return "pass_on" if state.get("passing") else after_turn(state)


def after_turn(state: AfterTurn) -> Literal["interruption", "rotate", "think"]:
    if state["fired"]:
        return "interruption"
    return "rotate" if state.get("turns_left") == 0 else "think"


def after_finish(state: AfterTurn) -> Literal["__end__", "interruption", "rotate", "think"]:
    return "__end__" if state.get("stop_reason") else after_turn(state)


def after_interruption(state: AfterTurn) -> Literal["__end__", "pass_on", "rotate", "think"]:
    if state.get("stop_reason"):
        return "__end__"
    if state.get("passing"):
        return "pass_on"
    return "rotate" if state.get("turns_left") == 0 else "think"


def assembled(**given: Any) -> Team:
    """A team, checked. Raises BadSettings."""
    try:
        team = Team(**given)
    except ValidationError as error:
        raise BadSettings(told(error, Team)) from None
    for agent in team.everyone:
        try:
            equipped(model=agent.model, tools=agent.tools)
        except BadSettings as error:
            raise BadSettings(f"agent {agent.name}: {error}") from None
    return team


def _as_who_acts(node: Node, given_team: Team | None) -> Node:
    """The node, given the model and the tools of the agent whose turn it is; what it tells bears that one's name."""

    @wraps(node)
    def inside(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
        context = given(runtime)
        team = given_team or (context.member or acting_member(runtime)).team
        member = team.member(state.get("agent", ""))
        own = {
            "member": member,
            "model": member.agent.model,
            "model_name": member.agent.model_name,
            "tools": member.agent.tools,
            "offer_handoff": bool(member.targets),
        }
        write = runtime.stream_writer

        def named(told: dict[str, Any]) -> None:
            write({**told, "agent": member.name})

        return node(state, runtime.override(context=context.model_copy(update=own), stream_writer=named))

    return inside
