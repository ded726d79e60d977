"""The span of a run: one call that works on a thread."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_takeover.graph.checkpoints.inspection import GraphKind
from langgraph_takeover.graph.checkpoints.savers import Saver
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.state import NO_SPENDING, Spending
from langgraph_takeover.nodes.telemetry import find_model_name, find_provider
from langgraph_takeover.sandbox.interface import TakeoverError
from langgraph_takeover.sandbox.storage.observers import ObserverErrors
from langgraph_takeover.sandbox.telemetry import ActiveSpan, builds_span, current_traceparent, start_span

_TRACEPARENT = "traceparent"
"""Metadata of checkpoints: the span of the run that wrote them."""


@builds_span
def start_run_span(context: AgentContext, kind: GraphKind, task_id: str | None = None) -> ActiveSpan:
    """Return the span `invoke_agent` of a run. Spans inside name its thread as their conversation."""
    thread, name = context.session.thread, "team" if kind == "team" else context.name
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": name,
        "gen_ai.provider.name": find_provider(context.model),
        "gen_ai.request.model": find_model_name(context.model),
        "takeover.graph": kind,
        "takeover.task": task_id,
    }
    inherited = {"gen_ai.conversation.id": thread, "takeover.thread": thread}
    return start_span(f"invoke_agent {name}", {**attributes, **inherited}, inherited=inherited)


def add_traceparent(config: RunnableConfig) -> RunnableConfig:
    """Return the configuration with the current span, which each checkpoint stores."""
    traceparent = current_traceparent()
    if traceparent is None:
        return config
    return {**config, "metadata": {**config.get("metadata", {}), _TRACEPARENT: traceparent}}


def link_earlier_run(
    span: ActiveSpan, saver: Saver, context: AgentContext, graph_input: Any, config: RunnableConfig
) -> Spending:
    """Link the run that wrote the checkpoint, or the predecessor's; return the thread's spending before this run."""
    # What cannot be read here is reported by the graph itself.
    with ObserverErrors("telemetry"), contextlib.suppress(TakeoverError):
        if span.is_recording and (stored := saver.get_tuple(config)) is not None:
            _link_checkpoint(span, saver, stored)
            spent: Spending = stored.checkpoint["channel_values"].get("spent", NO_SPENDING)
            return spent
        if span.is_recording and isinstance(graph_input, dict):
            _link_predecessor(span, saver, context, graph_input)
    return NO_SPENDING


def _link_checkpoint(span: ActiveSpan, saver: Saver, stored: CheckpointTuple) -> None:
    span.set({"takeover.resumed": True})
    traceparent = _get_traceparent(stored.metadata)
    if traceparent is None and stored.parent_config is not None:  # an update of the state, before the resume
        before = saver.get_tuple(stored.parent_config)
        traceparent = before and _get_traceparent(before.metadata)
    span.link(traceparent)


def _link_predecessor(
    span: ActiveSpan, saver: Saver, context: AgentContext, graph_input: dict[str, Any]
) -> None:
    """Link the run that made the record, if its thread is in the same database."""
    record_id, view = graph_input.get("record"), graph_input.get("view")
    if handoff_id := graph_input.get("handoff"):
        handoff = handoffs.load(context.session.ledger, handoff_id)
        record_id, view = handoff.record, handoff.envelope.view
        span.set({"takeover.handoff.id": handoff_id})
    if record_id is None:
        return
    record = context.session.records.load(record_id)
    span.set(
        {
            "takeover.record": record_id,
            "takeover.view": view or None,
            "takeover.point.kind": record.point.kind,
        }
    )
    place = {"thread_id": record.thread_id, "checkpoint_ns": "", "checkpoint_id": record.checkpoint_id}
    stored = saver.get_tuple({"configurable": place})
    if stored is not None:
        span.link(_get_traceparent(stored.metadata))


def _get_traceparent(metadata: Mapping[str, Any]) -> str | None:
    traceparent = metadata.get(_TRACEPARENT)
    return traceparent if isinstance(traceparent, str) else None


@ObserverErrors("telemetry")
def describe_outcome(span: ActiveSpan, outcome: Outcome, before: Spending) -> None:
    """Set the outcome of a run, with the tokens and the cost of this run alone."""
    cost = None if outcome.cost is None else outcome.cost - (before["cost"] or 0.0)
    span.set(
        {
            "takeover.status": outcome.status.value,
            "takeover.stop_reason": outcome.stop_reason,
            "takeover.steps": outcome.steps,
            "takeover.records": outcome.records,
            "gen_ai.usage.input_tokens": outcome.prompt_tokens - before["prompt_tokens"],
            "gen_ai.usage.output_tokens": outcome.completion_tokens - before["completion_tokens"],
            "takeover.uncounted_calls": outcome.uncounted_calls - before.get("uncounted_calls", 0),
            "takeover.cost": cost,
        }
    )
