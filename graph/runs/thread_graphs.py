"""The graphs of a thread that this process holds, what its checkpoints allow, and the spans of its runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from typing_extensions import TypedDict

from langgraph_takeover.base.failures import ObserverErrors
from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.telemetry import ActiveSpan, builds_span, current_traceparent, start_span
from langgraph_takeover.graph.agent import Graph, build_agent, build_takeover
from langgraph_takeover.graph.checkpoints.inspection import (
    GraphKind,
    graph_kind,
    resume_state_id,
)
from langgraph_takeover.graph.checkpoints.savers import Saver
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.outcome import Outcome
from langgraph_takeover.graph.runs.argument_checks import snapshot_not_found_error
from langgraph_takeover.graph.team import build_team_graph
from langgraph_takeover.graph.usage_errors import ThreadExistsError, ThreadNotFoundError
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.nodes.context.settings import AgentContext, ProgressCallback, SettingsError
from langgraph_takeover.nodes.genai_spans import find_model_name, find_provider
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.state import NO_SPENDING, AgentState, Spending
from langgraph_takeover.nodes.state_events import MAX_CALLS, answer_open_calls

# A step has at most three nodes, a team's step six, and each further call of a reply three. The run's own limits stop
# it long before this one.
_NODES_PER_STEP = 7 + 3 * MAX_CALLS


class GraphOptions(TypedDict):
    """Keyword arguments for `invoke`, `stream` and their async forms."""

    config: RunnableConfig
    context: AgentContext
    durability: str


@cache
def _compile_once(build: Callable[[], Graph]) -> Graph:
    return build()


class GraphCall(NamedTuple):
    """A call of one of a thread's graphs."""

    kind: GraphKind
    input: Any
    config: RunnableConfig
    context: AgentContext
    releases_name: bool = False
    """Whether the thread's name becomes free again if the start fails before the sandbox opens."""

    @property
    def task_id(self) -> str | None:
        task = self.input.get("task") if isinstance(self.input, dict) else None
        return task["id"] if task else None


class ThreadGraphs:
    """The compiled graphs of a thread that this process holds, and what its checkpoints allow."""

    def __init__(
        self,
        home: Home,
        session: Session,
        saver: Saver,
        context: AgentContext,
        on_progress: ProgressCallback | None,
    ) -> None:
        self.home = home
        self.thread = session.thread
        self.session = session
        self.context = context
        self._saver = saver
        self._on_progress = on_progress

    @cached_property
    def agent(self) -> Graph:
        """The graph of an agent that starts a task."""
        return self._attach_saver(build_agent).with_config(metadata={"graph": "agent"})

    @cached_property
    def takeover(self) -> Graph:
        """The graph of a successor."""
        return self._attach_saver(build_takeover).with_config(metadata={"graph": "takeover"})

    @cached_property
    def team(self) -> Graph:
        """The graph of a team."""
        return build_team_graph(self._saver).with_config(metadata={"graph": "team"})

    @property
    def config(self) -> RunnableConfig:
        """LangGraph's configuration for this thread."""
        return {
            "configurable": {"thread_id": self.thread},
            "recursion_limit": _NODES_PER_STEP * self.context.max_steps + 10,
        }

    @property
    def options(self) -> GraphOptions:
        """Keyword arguments to call the graphs with."""
        return {"config": self.config, "context": self.context, "durability": "sync"}

    def _attach_saver(self, build: Callable[[], Graph]) -> Graph:
        """Compile once per process: compiling costs as much as several steps."""
        return _compile_once(build).copy({"checkpointer": self._saver})

    def _graph(self, kind: GraphKind) -> Graph:
        return cast(Graph, getattr(self, kind))

    def _require_matching_agents(self, kind: GraphKind) -> None:
        if kind == "team" and self.context.member is None:
            raise SettingsError(
                f"agents: thread {self.thread!r} belongs to a team (pass agents=, not model=)"
            )
        if kind != "team" and self.context.member is not None:
            raise SettingsError(
                f"agents: thread {self.thread!r} belongs to one agent (pass model=, not agents=)"
            )

    def _find_restorable(
        self, stored: CheckpointTuple, checkpoint: str | None, *, go_back: bool
    ) -> str | None:
        """Return the checkpoint to resume from; None for the newest."""
        if self.session.can_enter_state(resume_state_id(stored, is_rerun=checkpoint is not None)):
            return checkpoint
        restorable = self.home.find_restorable_checkpoint(
            self.thread, stored.config["configurable"]["checkpoint_id"]
        )
        if not go_back or restorable is None:
            raise snapshot_not_found_error(self.thread, checkpoint, restorable)
        if self._on_progress is not None:
            self._on_progress(
                {"event": "went_back", "step": restorable.step, "checkpoint": restorable.checkpoint}
            )
        return restorable.checkpoint

    def _config_at(self, checkpoint: str | None) -> RunnableConfig:
        config = self.config
        if checkpoint is not None:
            config["configurable"] |= {"checkpoint_id": checkpoint, "checkpoint_ns": ""}
        return config

    def _require_new_thread(self, request: str) -> None:
        stored = self._saver.get_tuple(self.config)
        if stored is not None:
            values = self._graph(graph_kind(stored)).get_state(self.config).values
            holds = values.get("record") or values.get("task", {}).get("id") or "a run"
            raise ThreadExistsError(
                f"thread {self.thread!r} already holds {holds:.60} "
                f"(resume it, or start {request:.80} on another thread)"
            )

    def _load_checkpoint(self, checkpoint: str | None) -> CheckpointTuple:
        is_id = checkpoint is None or re.fullmatch(r"[0-9a-f-]{1,64}", str(checkpoint))
        stored = self._saver.get_tuple(self._config_at(checkpoint)) if is_id else None
        if stored is None:
            raise self._unknown_checkpoint_error(checkpoint)
        return stored

    def _unknown_checkpoint_error(self, checkpoint: str | None) -> ThreadNotFoundError:
        newest = self.home.history(self.thread)[0]  # raises if the thread itself is unknown
        return ThreadNotFoundError(
            f"thread {self.thread!r} has no checkpoint {checkpoint!r:.60}; its newest is {newest.checkpoint} "
            "(home.history(thread) lists all)"
        )


CONTINUED = (
    "Not run: the work continued on another thread before this call. Send it again if it is still needed."
)


def load_conversation(
    saver: Saver, find_graph: Callable[[GraphKind], Graph], record: HandoffRecord
) -> dict[str, Any]:
    """Return the predecessor's messages and undo list as graph input.

    An external agent has its conversation in its own session: without a checkpoint nothing is returned for it.
    Raises RecordError if the checkpoint of the built-in agent is missing, or the predecessor was a team.
    """
    config: RunnableConfig = {
        "configurable": {
            "thread_id": record.thread_id,
            "checkpoint_ns": "",
            "checkpoint_id": record.checkpoint_id,
        }
    }
    stored = saver.get_tuple(config) if record.checkpoint_id else None
    if stored is None:
        if record.external is not None:
            return {}
        raise RecordError(
            f"record {record.id}: continuation needs checkpoint {record.checkpoint_id or 'of the predecessor'} of thread "
            f"{record.thread_id}, which this directory does not have (run it in the predecessor's directory)"
        )
    kind = graph_kind(stored)
    if kind == "team":
        raise RecordError(
            f"record {record.id}: a team made it, so no single agent can continue it (use a view)"
        )
    values = find_graph(kind).get_state(config).values
    # Every call needs an answer before the next request.
    answers = answer_open_calls(cast(AgentState, values), CONTINUED)
    return {"messages": [*values["messages"], *answers], "edits": values.get("edits", [])}


_TRACEPARENT = "traceparent"
"""Metadata of checkpoints: the span of the run that wrote them."""


@builds_span
def start_run_span(call: GraphCall) -> ActiveSpan:
    """Return the span `invoke_agent` of a run. Spans inside name its thread as their conversation."""
    context = call.context
    thread, name = context.session.thread, "team" if call.kind == "team" else context.name
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": name,
        "gen_ai.provider.name": find_provider(context.model),
        "gen_ai.request.model": find_model_name(context.model),
        "takeover.graph": call.kind,
        "takeover.task": call.task_id,
    }
    inherited = {"gen_ai.conversation.id": thread, "takeover.thread": thread}
    return start_span(f"invoke_agent {name}", {**attributes, **inherited}, inherited=inherited)


def add_traceparent(config: RunnableConfig) -> RunnableConfig:
    """Return the configuration with the current span, which each checkpoint stores."""
    traceparent = current_traceparent()
    if traceparent is None:
        return config
    return {**config, "metadata": {**config.get("metadata", {}), _TRACEPARENT: traceparent}}


def link_earlier_run(span: ActiveSpan, saver: Saver, call: GraphCall) -> Spending:
    """Link the run that wrote the checkpoint, or the predecessor's; return the thread's spending before this run."""
    # What cannot be read here is reported by the graph itself.
    with ObserverErrors("telemetry"), contextlib.suppress(TakeoverError):
        if span.is_recording and (stored := saver.get_tuple(call.config)) is not None:
            _link_checkpoint(span, saver, stored)
            spent: Spending = stored.checkpoint["channel_values"].get("spent", NO_SPENDING)
            return spent
        if span.is_recording and isinstance(call.input, dict):
            _link_predecessor(span, saver, call.context, call.input)
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
            "takeover.uncounted_calls": outcome.uncounted_calls - before["uncounted_calls"],
            "takeover.cost": cost,
        }
    )
