"""The coding agent: one loop of thinking and acting, interrupted where a handoff point lies."""

from __future__ import annotations

from typing import Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from handoff.event import UNREADABLE
from nodes.editor import editor
from nodes.finish import finish
from nodes.handoff import handoff
from nodes.interruption import interruption
from nodes.receive import receive
from nodes.shell import shell
from nodes.state import AgentContext, AgentState, last_action
from nodes.think import think

Saver = BaseCheckpointSaver[str] | None
Graph = CompiledStateGraph[AgentState, AgentContext, AgentState, AgentState]
Doing = Literal["think", "shell", "editor", "handoff", "finish", "__end__"]


def build_agent(saver: Saver = None) -> Graph:
    """A predecessor: its first state holds the task; see `graph.running.start_run`."""
    loop = _loop()
    loop.add_edge(START, "think")
    return loop.compile(checkpointer=saver, name="agent")


def build_takeover(saver: Saver = None) -> Graph:
    """A successor: its input is `{"record": id, "view": name}`."""
    loop = _loop()
    loop.add_node("receive", receive)
    loop.add_edge(START, "receive")
    loop.add_edge("receive", "think")
    return loop.compile(checkpointer=saver, name="takeover")


def _loop() -> StateGraph[AgentState, AgentContext, AgentState, AgentState]:
    graph = StateGraph(AgentState, context_schema=AgentContext)
    for node in (think, shell, editor, handoff, finish, interruption):
        graph.add_node(node.__name__, node)
    graph.add_conditional_edges("think", what_to_do)
    graph.add_conditional_edges("shell", after_action)
    graph.add_conditional_edges("editor", after_action)
    graph.add_edge("handoff", "interruption")
    graph.add_edge("finish", END)
    graph.add_conditional_edges("interruption", after_interruption)
    return graph


def what_to_do(state: AgentState) -> Doing:
    """The node that the model's last action belongs to."""
    if "stop_reason" in state:
        return "__end__"
    action = last_action(state)
    if action.kind == "observation" or action.tool == UNREADABLE:
        return "think"
    return action.tool  # type: ignore[return-value]


def after_action(state: AgentState) -> Literal["interruption", "think"]:
    return "interruption" if state["fired"] else "think"


def after_interruption(state: AgentState) -> Literal["think", "__end__"]:
    return "__end__" if "stop_reason" in state else "think"
