"""The coding agent: one loop of thinking and acting, interrupted where a handoff point lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from handoff.event import UNREADABLE
from nodes.actions import BUILT_IN, DELEGATE
from nodes.begin import begin
from nodes.confirm import confirm
from nodes.delegate import delegate
from nodes.editor import editor
from nodes.events import last_action
from nodes.finish import finish
from nodes.handoff import handoff
from nodes.interruption import interruption
from nodes.receive import receive
from nodes.settings import AgentContext
from nodes.shell import shell
from nodes.state import AfterAction, AfterThought, AgentState
from nodes.think import think
from nodes.tool import tool

Saver = BaseCheckpointSaver[str] | None
Graph = CompiledStateGraph[AgentState, Any, Any, Any]
Node = Callable[..., AgentState]
Doing = Literal[
    "think", "shell", "editor", "tool", "delegate", "handoff", "finish", "interruption", "__end__"
]


def build_agent(saver: Saver = None, **schemas: Any) -> Graph:
    """A predecessor; its input is `{"task": {"id": …, "prompt": …}}`."""
    graph = _graph((begin,), schemas)
    graph.add_edge("begin", "think")
    return graph.compile(checkpointer=saver, name="agent")


def build_takeover(saver: Saver = None, **schemas: Any) -> Graph:
    """A successor; its input is `{"record": id, "view": name}`, or `{"handoff": id}` for one that was offered."""
    graph = _graph((receive, confirm), schemas)
    graph.add_conditional_edges("receive", after_receipt)
    graph.add_conditional_edges("confirm", after_confirmation)
    return graph.compile(checkpointer=saver, name="takeover")


def _graph(first: tuple[Node, ...], schemas: dict[str, Any]) -> StateGraph[AgentState, Any, Any, Any]:
    """`schemas` may name another `context_schema` and `input_schema`, and `entered`, which wraps every node."""
    entered = schemas.pop("entered", lambda node: node)
    graph = StateGraph(AgentState, **{"context_schema": AgentContext, **schemas})
    for node in (*first, think, shell, editor, tool, delegate, handoff, finish, interruption):
        graph.add_node(node.__name__, entered(node))
    graph.add_edge(START, first[0].__name__)
    graph.add_conditional_edges("think", what_to_do)
    for acting in ("shell", "editor", "tool", "delegate"):
        graph.add_conditional_edges(acting, after_action)
    graph.add_edge("handoff", "interruption")
    graph.add_edge("finish", END)
    graph.add_conditional_edges("interruption", after_interruption)
    return graph


def after_receipt(state: AgentState) -> Literal["confirm", "think", "__end__"]:
    """A record is simply taken; an offered handoff is refused, or confirmed first."""
    if state.get("stop_reason"):
        return "__end__"
    return "confirm" if state.get("handoff") else "think"


def after_confirmation(state: AgentState) -> Literal["think", "__end__"]:
    return "__end__" if state.get("stop_reason") else "think"


def what_to_do(state: AfterThought) -> Doing:
    """The node that the model's last action belongs to."""
    if state["fired"]:
        return "interruption"
    if state.get("stop_reason"):
        return "__end__"
    action = last_action(state)
    if action.kind == "observation" or action.tool == UNREADABLE:
        return "think"
    if action.tool == DELEGATE:
        return "delegate"
    return action.tool if action.tool in BUILT_IN else "tool"  # type: ignore[return-value]


def after_action(state: AfterAction) -> Literal["interruption", "think"]:
    return "interruption" if state["fired"] else "think"


def after_interruption(state: AgentState) -> Literal["think", "__end__"]:
    return "__end__" if state.get("stop_reason") else "think"
