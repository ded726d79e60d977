"""The graphs of a thread, and their runs, blocking or awaited, to their outcome."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
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
from langgraph_takeover.graph.outcome import Outcome, build_outcome
from langgraph_takeover.graph.runs.argument_checks import snapshot_not_found_error
from langgraph_takeover.graph.runs.stop_requests import drain_on_sigterm
from langgraph_takeover.graph.team import build_team_graph
from langgraph_takeover.graph.usage_errors import ThreadExistsError, ThreadNotFoundError
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.leases import RunStoppedError
from langgraph_takeover.nodes.context.settings import AgentContext, Progress, ProgressCallback, SettingsError
from langgraph_takeover.nodes.genai_spans import find_model_name, find_provider
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.state import NO_SPENDING, AgentState, Spending
from langgraph_takeover.nodes.state_events import MAX_CALLS

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
            "takeover.uncounted_calls": outcome.uncounted_calls - before["uncounted_calls"],
            "takeover.cost": cost,
        }
    )


@contextlib.contextmanager
def _silence_late_nodes() -> Iterator[None]:
    """Log no traceback of a node that ends after Ctrl-C has ended the graph; its effects are journaled, and not repeated."""
    logger = logging.getLogger("concurrent.futures")

    def is_wanted(record: logging.LogRecord) -> bool:
        return record.exc_info is None or "after shutdown" not in str(record.exc_info[1])

    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)


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


class GraphRunner:
    """Runs the graphs of a thread under its lease."""

    def __init__(
        self,
        session: Session,
        saver: Saver,
        on_progress: ProgressCallback | None,
        find_graph: Callable[[GraphKind], Graph],
    ) -> None:
        self._session = session
        self._saver = saver
        self._on_progress = on_progress
        self._find_graph = find_graph
        self._control: RunControl | None = None
        self._is_draining = False

    def drain(self) -> None:
        """Stop after the current node, now or as soon as a graph runs."""
        self._is_draining = self._session.stop.cancellation.ends_waits = True
        if self._control is not None:
            self._control.request_drain("drained")

    def run(self, call: GraphCall) -> Outcome:
        """Run a graph until it ends, waits or stops."""
        with start_run_span(call.context, call.kind, call.task_id) as span:
            before = self._link_earlier_run(span, call)
            try:
                outcome = self._run_to_outcome(call)
            except Exception:
                self._release_name(call)
                raise
            describe_outcome(span, outcome, before)
        return outcome

    async def arun(self, call: GraphCall) -> Outcome:
        """Like `run`, in an event loop. A cancelled task ends the run at once; it can be resumed."""
        workers = self._session.workers
        with start_run_span(call.context, call.kind, call.task_id) as span:
            before = await workers.run("lifecycle", lambda: self._link_earlier_run(span, call))
            try:
                outcome = await self._arun_to_outcome(call)
            except Exception:
                await workers.run("lifecycle", lambda: self._release_name(call))
                raise
            describe_outcome(span, outcome, before)
        return outcome

    def _link_earlier_run(self, span: ActiveSpan, call: GraphCall) -> Any:
        return link_earlier_run(span, self._saver, call.context, call.input, call.config)

    def _run_to_outcome(self, call: GraphCall) -> Outcome:
        graph, values, control = self._find_graph(call.kind), None, self._start_control()
        with drain_on_sigterm(control, self._session.stop.cancellation), self._session.explain_fencing():
            with self._explain_stop(), _silence_late_nodes():
                # Without a "custom" stream LangGraph runs the nodes in this thread, which takes half the time.
                for mode, update in graph.stream(**self._stream_options(call, control)):
                    values = self._report(mode, update, values)
            return self._build_outcome(graph, call, values)

    async def _arun_to_outcome(self, call: GraphCall) -> Outcome:
        graph, values, control = self._find_graph(call.kind), None, self._start_control()
        with self._session.explain_fencing():
            with self._explain_stop():
                async for mode, update in graph.astream(**self._stream_options(call, control)):
                    values = self._report(mode, update, values)
            last = values
            return await self._session.workers.run(
                "lifecycle", lambda: self._build_outcome(graph, call, last)
            )

    def _start_control(self) -> RunControl:
        self._control = RunControl()
        stop = self._session.stop
        stop.cancellation.ends_waits = self._is_draining or stop.mode is not None
        if self._is_draining:
            self._control.request_drain("drained")
        return self._control

    @contextlib.contextmanager
    def _explain_stop(self) -> Iterator[None]:
        """End the block without an error if the run was drained or stopped."""
        with contextlib.suppress(GraphDrained, RunStoppedError), self._session.stop.explain():
            yield

    def _stream_options(self, call: GraphCall, control: RunControl) -> dict[str, Any]:
        return {
            "input": call.input,
            "config": add_traceparent(call.config),
            "context": call.context,
            "stream_mode": ["values", "custom"] if self._on_progress else ["values"],
            # "sync": a step and its effect on the sandbox are durable before the next step begins.
            "durability": "sync",
            "control": control,
        }

    def _report(self, mode: Any, update: Any, values: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the last state, after reporting progress."""
        if mode == "custom" and self._on_progress is not None:
            self._on_progress(cast(Progress, update))
            return values
        return cast(dict[str, Any], update)

    def _build_outcome(self, graph: Graph, call: GraphCall, values: dict[str, Any] | None) -> Outcome:
        self._session.stop.finish()
        if values is None:  # no node has run
            values = cast(dict[str, Any], graph.get_state(call.config).values)
        interrupts = values.pop("__interrupt__", ())
        return build_outcome(self._session, cast(AgentState, values), interrupts)

    def _release_name(self, call: GraphCall) -> None:
        with contextlib.suppress(TakeoverError):
            stored = self._saver.get_tuple(call.config) if call.releases_name else None
            if stored is not None and "sandbox_state" not in stored.checkpoint["channel_values"]:
                self._saver.delete_thread(self._session.thread)
