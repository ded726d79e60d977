"""A graph as LangGraph's server runs it: what would spoil its thread is refused before anything of it is written."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from langgraph_takeover.graph.errors import ServedRunError
from langgraph_takeover.nodes.agent.edits import align_step_edit
from langgraph_takeover.nodes.state import AgentState

AnswerCheck = Callable[[Any], None]
"""Raises where a person's answer to a review is none, in the line that they read."""


class GuardedGraph(CompiledStateGraph[AgentState, Any, Any, Any]):
    """A graph on whose threads a second task, an answer that is none, and a history told twice are refused."""

    def __init__(self, *, check_answer: AnswerCheck, **compiled: Any) -> None:
        super().__init__(**compiled)
        self.check_answer = check_answer  # under its parameter's name, by which LangGraph copies a graph

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        if isinstance(input, Command):
            _require_one_node(input.goto)
            if not (input.update or input.goto):
                for answer in _answers(input.resume):
                    self.check_answer(answer)
        elif input is not None and config is not None and self.checkpointer:
            await self._require_free_thread(config)
        async for each in super().astream(input, config, **kwargs):
            yield each

    async def aupdate_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        if isinstance(values, dict):
            before = (await self.aget_state(config)).values
            values = align_step_edit(values, len(before.get("events", [])))
        return await super().aupdate_state(config, values, as_node, task_id)

    async def _require_free_thread(self, config: RunnableConfig) -> None:
        state = await self.aget_state(config)
        run = config.get("metadata", {}).get("run_id")
        # A run that was cut off comes again with its form, and LangGraph knows it by its id, too.
        goes_on = run is not None and run == (state.metadata or {}).get("run_id")
        if goes_on or "sandbox_state" not in state.values:
            return
        held = state.values.get("record") or state.values["task"]["id"]
        cure = (
            "it waits for an answer: resume it with one"
            if state.interrupts
            else "begin another on a new thread, or go on from one of this thread's checkpoints"
        )
        raise ServedRunError(f"ThreadExistsError: this thread holds {held} already; {cure}")


def _require_one_node(goto: Any) -> None:
    """Raises ServedRunError for several nodes at once, and for a node with a state of its own.

    A run decides once, by its thread's state, in which sandbox it acts; another state could name another one.
    """
    nodes = goto if isinstance(goto, list | tuple) else [goto] if goto else []
    if len(nodes) > 1 or not all(isinstance(node, str) for node in nodes):
        raise ServedRunError("goto: name one node; write the state that it is to see with 'update'")


def _answers(resume: Any) -> tuple[Any, ...]:
    """What is answered: to the one question, or to each by its id."""
    by_id = isinstance(resume, dict) and resume and all(re.fullmatch("[0-9a-f]{32}", each) for each in resume)
    return tuple(resume.values()) if by_id else (resume,)
