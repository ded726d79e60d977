"""The graphs of one agent: a loop of thinking and acting, interrupted at handoff points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from langgraph_takeover.handoff.trace.events import UNREADABLE
from langgraph_takeover.nodes.agent.external_agent import agent
from langgraph_takeover.nodes.agent.lifecycle import begin, finish, handoff, interruption
from langgraph_takeover.nodes.agent.steps import Node, NodeRunnable, next_call
from langgraph_takeover.nodes.agent.take_over import confirm, receive
from langgraph_takeover.nodes.agent.think import think
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.delegate import delegate
from langgraph_takeover.nodes.model.actions import BUILT_IN_TOOLS, DELEGATE_TOOL
from langgraph_takeover.nodes.state import ActionEdgeState, AgentState, ReplyEdgeState, ThoughtEdgeState
from langgraph_takeover.nodes.state_events import last_action
from langgraph_takeover.nodes.tools.custom_tools import tool
from langgraph_takeover.nodes.tools.editor import editor
from langgraph_takeover.nodes.tools.shell_command import shell

Checkpointer = BaseCheckpointSaver[str] | None
Graph = CompiledStateGraph[AgentState, Any, Any, Any]
NodeWrapper = Callable[[Node], Node]
NextNode = Literal[
    "think",
    "next_call",
    "shell",
    "editor",
    "tool",
    "delegate",
    "handoff",
    "finish",
    "interruption",
    "__end__",
]


def build_agent(
    saver: Checkpointer = None,
    *,
    context_schema: type = AgentContext,
    input_schema: type | None = None,
    wrap_node: NodeWrapper | None = None,
) -> Graph:
    """Build the graph of an agent that starts a task; its input is `{"task": {"id": …, "prompt": …}}`.

    `wrap_node` wraps each node function. Without `saver` the graph keeps no checkpoints, as LangGraph Studio wants it.

    Example:
        >>> from langgraph_takeover import build_agent
        >>> "interruption" in build_agent().nodes
        True
    """
    graph = _build_graph((begin,), context_schema, input_schema, wrap_node)
    graph.add_edge("begin", "think")
    return graph.compile(checkpointer=saver, name="agent")


def build_takeover(
    saver: Checkpointer = None,
    *,
    context_schema: type = AgentContext,
    input_schema: type | None = None,
    wrap_node: NodeWrapper | None = None,
) -> Graph:
    """Build the graph of a successor.

    Its input is `{"record": id, "view": name}`, or `{"handoff": id}` for an offered handoff. Arguments: `build_agent`.

    Example:
        >>> from langgraph_takeover import build_takeover
        >>> "receive" in build_takeover().nodes
        True
    """
    graph = _build_graph((receive, confirm), context_schema, input_schema, wrap_node)
    graph.add_conditional_edges("receive", route_after_receive)
    graph.add_conditional_edges("confirm", route_after_confirm)
    return graph.compile(checkpointer=saver, name="takeover")


def _build_graph(
    first: tuple[Node, ...], context_schema: type, input_schema: type | None, wrap_node: NodeWrapper | None
) -> StateGraph[AgentState, Any, Any, Any]:
    wrap = wrap_node or (lambda node: node)
    graph: StateGraph[AgentState, Any, Any, Any] = StateGraph(
        AgentState, context_schema=context_schema, input_schema=input_schema
    )
    acting = (shell, editor, tool, delegate, handoff, finish)
    for node in (*first, think, next_call, agent, *acting, interruption):
        add_node(graph, node.__name__, wrap(node))
    graph.add_edge(START, first[0].__name__)
    graph.add_conditional_edges("think", route_reply)
    graph.add_conditional_edges("next_call", route_action)
    for name in ("shell", "editor", "tool", "delegate"):
        graph.add_conditional_edges(name, route_after_action)
    graph.add_conditional_edges("agent", route_after_turn)
    graph.add_edge("handoff", "interruption")
    graph.add_edge("finish", END)
    graph.add_conditional_edges("interruption", route_after_interruption)
    return graph


def add_node(graph: StateGraph[AgentState, Any, Any, Any], name: str, node: Node) -> None:
    """Add a node that runs in threads and in event loops."""
    runnable = NodeRunnable(node, name)
    graph.add_node(name, runnable, input_schema=runnable.input_schema_hint)


def route_after_receive(state: AgentState) -> Literal["confirm", "think", "__end__"]:
    """Route a record to work at once, an offered handoff to its confirmation, a refused one to the end."""
    if state.get("stop_reason"):
        return "__end__"
    return "confirm" if state.get("handoff") else "think"


def route_after_confirm(state: AgentState) -> Literal["think", "__end__"]:
    return "__end__" if state.get("stop_reason") else "think"


def route_reply(state: ReplyEdgeState) -> Literal[NextNode, "agent"]:
    """Route a reply to the external agent that asked for it, else to the node of its action."""
    if state.get("external") and not state["fired"] and not state.get("stop_reason"):
        return "agent"
    return route_action(state)


def route_action(state: ThoughtEdgeState) -> NextNode:
    """Route to the node of the model's last action."""
    if state["fired"]:
        return "interruption"
    if state.get("stop_reason"):
        return "__end__"
    action = last_action(state)
    if action.kind == "observation" or action.tool == UNREADABLE:
        return "next_call" if state.get("open_calls") else "think"
    if action.tool == DELEGATE_TOOL:
        return "delegate"
    return action.tool if action.tool in BUILT_IN_TOOLS else "tool"  # type: ignore[return-value]


def route_after_action(state: ActionEdgeState) -> Literal["interruption", "next_call", "think"]:
    """Route to the interruption at a point, else to the reply's next call; after its last one, to the model."""
    if state["fired"]:
        return "interruption"
    return "next_call" if state.get("open_calls") else "think"


def route_after_turn(state: ThoughtEdgeState) -> Literal["interruption", "think", "finish", "__end__"]:
    """Route after an external agent's turn, whose last one has no observation."""
    if state["fired"]:
        return "interruption"
    if state.get("stop_reason"):
        return "__end__"
    return "finish" if last_action(state).kind == "action" else "think"


def route_after_interruption(state: AgentState) -> Literal["next_call", "think", "__end__"]:
    if state.get("stop_reason"):
        return "__end__"
    return "next_call" if state.get("open_calls") else "think"
