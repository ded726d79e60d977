"""The graph of a team: several agents take turns at one task, in one sandbox and on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any, Literal

from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from pydantic import ValidationError
from typing_extensions import Unpack

from langgraph_takeover.graph.agent import (
    Checkpointer,
    Graph,
    NextNode,
    NodeWrapper,
    add_node,
    build_agent,
    build_takeover,
    route_action,
)
from langgraph_takeover.graph.checkpoints.inspection import GraphKind
from langgraph_takeover.nodes.agent.lifecycle import begin
from langgraph_takeover.nodes.agent.steps import Node, NodeSteps, next_call
from langgraph_takeover.nodes.context.settings import (
    AgentContext,
    SettingsError,
    build_agent_config,
    describe_validation_error,
    get_agent_context,
    get_member,
)
from langgraph_takeover.nodes.context.team_members import Agent, Team, TeamSettings
from langgraph_takeover.nodes.delegate import delegate
from langgraph_takeover.nodes.state import AgentState, TeamThoughtEdgeState, TurnEdgeState
from langgraph_takeover.nodes.team_turns import (
    conclude,
    hand_over,
    pass_on,
    rotate,
    take_turn,
    team_interruption,
)
from langgraph_takeover.nodes.tools.custom_tools import tool
from langgraph_takeover.nodes.tools.editor import editor
from langgraph_takeover.nodes.tools.shell_command import shell

NODES: dict[str, Node] = {
    "begin": begin,
    "think": take_turn,
    "next_call": next_call,
    "shell": shell,
    "editor": editor,
    "tool": tool,
    "delegate": delegate,
    "handoff": hand_over,
    "finish": conclude,
    "rotate": rotate,
    "interruption": team_interruption,
    "pass_on": pass_on,
}


def build_graph(kind: GraphKind, saver: Checkpointer) -> Graph:
    """Build the graph that a thread's checkpoints belong to."""
    if kind == "agent":
        return build_agent(saver)
    return build_takeover(saver) if kind == "takeover" else build_team_graph(saver)


def build_team(
    agents: Sequence[Agent], saver: Checkpointer = None, **settings: Unpack[TeamSettings]
) -> Graph:
    """Build the graph of agents that take turns; its input is `{"task": {"id": …, "prompt": …}}`.

    Raises SettingsError.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> from langgraph_takeover import Agent, build_team
        >>> agents = [Agent(name=name, model=FakeListChatModel(responses=[""])) for name in ("writer", "tester")]
        >>> "rotate" in build_team(agents, max_consecutive_turns=2).nodes
        True
    """
    return build_team_graph(saver, team=create_team(agents=agents, **settings))


def build_team_graph(
    saver: Checkpointer = None,
    *,
    team: Team | None = None,
    context_schema: type = AgentContext,
    input_schema: type | None = None,
    wrap_node: NodeWrapper | None = None,
) -> Graph:
    """Build the graph of a team. Default: the team in the run's context."""
    wrap = wrap_node or (lambda node: node)
    graph: StateGraph[AgentState, Any, Any, Any] = StateGraph(
        AgentState, context_schema=context_schema, input_schema=input_schema
    )
    for name, node in NODES.items():
        add_node(graph, name, wrap(_bind_acting_agent(node, team)))
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "think")
    graph.add_conditional_edges("think", route_after_think)
    graph.add_conditional_edges("next_call", route_after_think)
    for acting in ("shell", "editor", "tool", "delegate", "handoff"):
        graph.add_conditional_edges(acting, route_after_turn)
    graph.add_conditional_edges("finish", route_after_finish)
    graph.add_edge("rotate", "interruption")
    graph.add_conditional_edges("interruption", route_after_interruption)
    graph.add_edge("pass_on", "think")
    return graph.compile(checkpointer=saver, name="team")


def route_after_think(state: TeamThoughtEdgeState) -> Literal[NextNode, "pass_on", "rotate"]:
    """Route to the node of the agent's action; without an action, its turn is over."""
    doing = route_action(state)
    if doing != "think":
        return doing
    return "pass_on" if state.get("passing") else route_after_turn(state)


def route_after_turn(state: TurnEdgeState) -> Literal["interruption", "next_call", "rotate", "think"]:
    if state["fired"]:
        return "interruption"
    if state.get("open_calls"):
        return "next_call"
    return "rotate" if state.get("turns_left") == 0 else "think"


def route_after_finish(
    state: TurnEdgeState,
) -> Literal["__end__", "interruption", "next_call", "rotate", "think"]:
    return "__end__" if state.get("stop_reason") else route_after_turn(state)


def route_after_interruption(
    state: TurnEdgeState,
) -> Literal["__end__", "next_call", "pass_on", "rotate", "think"]:
    if state.get("stop_reason"):
        return "__end__"
    if state.get("passing"):
        return "pass_on"
    if state.get("open_calls"):
        return "next_call"
    return "rotate" if state.get("turns_left") == 0 else "think"


def create_team(**fields: Any) -> Team:
    """Build and validate a team. Raises SettingsError."""
    try:
        team = Team(**fields)
    except ValidationError as error:
        raise SettingsError(describe_validation_error(error, Team)) from None
    for agent in team.all_agents:
        try:
            build_agent_config(model=agent.model, tools=agent.tools)
        except SettingsError as error:
            raise SettingsError(f"agent {agent.name}: {error}") from None
    return team


def _bind_acting_agent(node: Node, fixed_team: Team | None) -> Node:
    """Give a node the model and tools of the acting agent, and add the agent's name to its progress events."""

    @wraps(node)
    def wrapper(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState | NodeSteps:
        context = get_agent_context(runtime)
        team = fixed_team or (context.member or get_member(runtime)).team
        member = team.find_member(state.get("agent", ""))
        own = {
            "member": member,
            "model": member.agent.model,
            "model_name": member.agent.model_name,
            "tools": member.agent.tools,
            "offer_handoff": bool(member.handoff_targets),
        }
        write = runtime.stream_writer

        def write_with_agent(update: dict[str, Any]) -> None:
            write({**update, "agent": member.name})

        return node(
            state, runtime.override(context=context.model_copy(update=own), stream_writer=write_with_agent)
        )

    return wrapper
