"""A graph as LangGraph's server runs it: requests that would damage its thread are refused before anything is written."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, StateSnapshot

from langgraph_takeover.graph.errors import ServedRunError
from langgraph_takeover.graph.outcome import waits_for_tool_answer
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.agent.edits import align_step_edit
from langgraph_takeover.nodes.state import AgentState

AnswerCheck = Callable[[Any], None]
"""Raises, in one line, if an answer to a review is invalid."""


class GuardedGraph(CompiledStateGraph[AgentState, Any, Any, Any]):
    """A graph that refuses a second task on a thread, an invalid answer, and repeated history."""

    def __init__(self, *, check_answer: AnswerCheck, **compiled: Any) -> None:
        super().__init__(**compiled)
        self.check_answer = check_answer  # named like its parameter, by which LangGraph copies a graph

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        if isinstance(input, Command):
            _require_one_node(input.goto)
            if not (input.update or input.goto):
                await self._check_answers(input.resume, config)
            input = replace(input, resume=redact(input.resume))  # before a checkpoint stores it
        elif input is not None and config is not None and self.checkpointer:
            await self._require_free_thread(config)
        async for each in super().astream(input, config, **kwargs):
            yield _hide_in_stream(each, kwargs.get("stream_mode"))

    async def aget_state(self, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        state = await super().aget_state(config, subgraphs=subgraphs)
        return state._replace(values=hide_empty_fields(state.values))

    async def aget_state_history(self, config: RunnableConfig, **kwargs: Any) -> AsyncIterator[StateSnapshot]:
        async for state in super().aget_state_history(config, **kwargs):
            yield state._replace(values=hide_empty_fields(state.values))

    async def _check_answers(self, resume: Any, config: RunnableConfig | None) -> None:
        """Check the answers to a review; a tool checks the answer to its question itself."""
        if config is not None and self.checkpointer:
            state = await self.aget_state(config)
            if state.interrupts and waits_for_tool_answer(cast(AgentState, state.values)):
                return
        for answer in _answers(resume):
            self.check_answer(answer)

    async def aupdate_state(
        self, config: RunnableConfig, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig:
        if isinstance(values, dict):
            before = (await self.aget_state(config)).values
            values = align_step_edit(values, cast(AgentState, before))
        return await super().aupdate_state(config, values, as_node, task_id)

    async def _require_free_thread(self, config: RunnableConfig) -> None:
        state = await self.aget_state(config)
        run = config.get("metadata", {}).get("run_id")
        # An interrupted run comes again with its form; LangGraph knows it by its id.
        goes_on = run is not None and run == (state.metadata or {}).get("run_id")
        if goes_on or "sandbox_state" not in state.values:
            return
        held = state.values.get("record") or state.values["task"]["id"]
        cure = (
            "it waits for an answer: resume it with one"
            if state.interrupts
            else "start another thread, or resume from one of this thread's checkpoints"
        )
        raise ServedRunError(f"ThreadExistsError: this thread already holds {held} ({cure})")


def hide_empty_fields(values: Any) -> Any:
    """Return the values of a state without fields that hold nothing: None, empty text, an empty list or dict."""
    if not isinstance(values, dict):
        return values
    return {name: value for name, value in values.items() if value is not None and value not in ("", [], {})}


def _hide_in_stream(part: Any, stream_mode: Any) -> Any:
    """Return a part of the stream in which whole states have no empty fields."""
    if not isinstance(stream_mode, list):
        return hide_empty_fields(part) if stream_mode == "values" else part
    if not isinstance(part, tuple):
        return part
    *namespace, mode, data = part
    if mode == "values":
        data = hide_empty_fields(data)
    elif mode == "debug" and data.get("type") == "checkpoint":
        payload = data["payload"]
        data = {**data, "payload": {**payload, "values": hide_empty_fields(payload["values"])}}
    return (*namespace, mode, data)


def _require_one_node(goto: Any) -> None:
    """Raises ServedRunError for several nodes at once, and for a node with its own state.

    A run decides once, from its thread's state, in which sandbox it acts; another state could name another sandbox.
    """
    nodes = goto if isinstance(goto, list | tuple) else [goto] if goto else []
    if len(nodes) > 1 or not all(isinstance(node, str) for node in nodes):
        raise ServedRunError("goto: name one node (write its state with 'update')")


def _answers(resume: Any) -> tuple[Any, ...]:
    """Return the answers: to the only question, or to each by its id."""
    by_id = isinstance(resume, dict) and resume and all(re.fullmatch("[0-9a-f]{32}", each) for each in resume)
    return tuple(resume.values()) if by_id else (resume,)
