"""A thread that this process holds: start it, resume it, look at it, prune it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command
from typing_extensions import TypedDict

from langgraph_takeover.graph.agent import Graph, build_agent, build_takeover
from langgraph_takeover.graph.checkpoints.inspection import GraphKind, graph_kind, has_answer, resume_state_id
from langgraph_takeover.graph.checkpoints.savers import Saver
from langgraph_takeover.graph.errors import ThreadExistsError, ThreadNotFoundError, WaitingError
from langgraph_takeover.graph.home import CheckpointInfo, Home
from langgraph_takeover.graph.outcome import Outcome, build_outcome
from langgraph_takeover.graph.runs.continuation import load_conversation
from langgraph_takeover.graph.runs.signals import drain_on_sigterm
from langgraph_takeover.graph.runs.telemetry import (
    add_traceparent,
    describe_outcome,
    link_earlier_run,
    start_run_span,
)
from langgraph_takeover.graph.runs.validation import (
    check_takeover,
    check_task,
    snapshot_not_found_error,
    validate_answer,
)
from langgraph_takeover.graph.team import build_team_graph
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.stops import RunStoppedError
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.views.names import CONTINUATION, TakeoverView
from langgraph_takeover.nodes.agent.think import find_spent_budget
from langgraph_takeover.nodes.context.progress import Progress, ProgressCallback
from langgraph_takeover.nodes.context.settings import AgentContext, SettingsError
from langgraph_takeover.nodes.model.calls import find_api_keys
from langgraph_takeover.nodes.open_calls import MAX_CALLS
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.snapshots import BASE_STATE, SnapshotNotFoundError
from langgraph_takeover.nodes.state import AgentState, InputError, validate_state_update
from langgraph_takeover.sandbox.interface import Sandbox, TakeoverError

# A step has at most three nodes, a team's step six, and each further call of a reply three. The run's own limits stop
# it long before this one.
_NODES_PER_STEP = 7 + 3 * MAX_CALLS
_FINAL_STOP_REASONS = ("finished", "refused", "unconfirmed")


class GraphOptions(TypedDict):
    """Keyword arguments for `invoke`, `stream` and their async forms."""

    config: RunnableConfig
    context: AgentContext
    durability: str


@cache
def _compile_once(build: Callable[[], Graph]) -> Graph:
    return build()


class Run:
    """A thread under this process's lease. `open_run` makes it.

    `agent`, `takeover` and `team` are the compiled graphs, for streaming and async use:
    `async for update in run.agent.astream({"task": {"id": …, "prompt": …}}, **run.options)`. Afterwards, `outcome()`
    returns the result.

    Example:
        >>> with open_run(home, "fix-2", model=model, sandbox=sandbox_spec) as run:
        ...     for update in run.agent.stream({"task": {"id": "issue-17", "prompt": "Make the tests pass."}}, **run.options):
        ...         pass
        ...     run.outcome().status
        <RunStatus.FINISHED: 'finished'>
    """

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
        self._control: RunControl | None = None
        self._is_draining = False
        session.stop.on_stop = self.drain

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

    def drain(self) -> None:
        """Stop after the current node. Safe to call from another thread; `home.stop` does it from any process."""
        self._is_draining = True
        if self._control is not None:
            self._control.request_drain("drained")

    def state(self) -> AgentState | None:
        """Return the graph state of the newest checkpoint; None if nothing has run."""
        checkpoint = self._saver.get_tuple(self.config)
        if checkpoint is None:
            return None
        return cast(AgentState, self._graph(graph_kind(checkpoint)).get_state(self.config).values)

    def outcome(self) -> Outcome:
        """Return the outcome so far. Raises ThreadNotFoundError."""
        checkpoint = self._load_checkpoint(None)
        state = self._graph(graph_kind(checkpoint)).get_state(self.config)
        interrupts = () if has_answer(checkpoint) else state.interrupts
        return build_outcome(self.session, cast(AgentState, state.values), interrupts)

    def start(self, task_id: str, prompt: str) -> Outcome:
        """Run a task from its beginning.

        Raises InputError, ThreadExistsError, ModelError, SandboxUnavailableError and FencedError.
        """
        check_task(task_id, prompt)
        self._require_new_thread(f"task {task_id}")
        prompt = redact(prompt, find_api_keys(*self.context.models))  # before a checkpoint stores it
        kind: GraphKind = "team" if self.context.member else "agent"
        return self._start_graph(kind, {"task": {"id": task_id, "prompt": prompt}})

    def take_over(self, record_id: str, view: TakeoverView | None = None) -> Outcome:
        """Continue from a record under a view. Default view: the one that a review chose, else `structured`.

        `continuation` is no view: the predecessor's own agent resumes its conversation at the record's checkpoint, with
        the settings of this run. Raises RecordError, UnknownViewError, SnapshotCorruptError, and what `start` raises.
        """
        if self.context.member is not None:
            raise SettingsError("agents: one agent takes over a record, not a team (pass model=)")
        # Check before anything is written, so that the thread's name stays free.
        check_takeover(self.home, record_id, view)
        self._require_new_thread(f"a takeover of {record_id}")
        graph_input: dict[str, Any] = {"record": record_id, "view": view or ""}
        if view == CONTINUATION:
            record = self.home.records.load(record_id)
            graph_input |= load_conversation(self._saver, self._graph, record)
        return self._start_graph("takeover", graph_input)

    def receive(self, handoff_id: str) -> Outcome:
        """Take an offered handoff: validate it, confirm it and work on it, or reject it.

        Raises HandoffNotFoundError; IllegalTransitionError or HandedOverError if another agent was faster; and what
        `take_over` raises.
        """
        handoffs.load(self.home.ledger, handoff_id)
        self._require_new_thread(f"handoff {handoff_id}")
        return self._run_graph("takeover", {"handoff": handoff_id}, self.config)

    def resume(
        self,
        answer: Any = None,
        *,
        checkpoint: str | None = None,
        go_back: bool = False,
    ) -> Outcome:
        """Resume the thread from its newest checkpoint, or fork it from an earlier one.

        `answer` is a person's `Review`, or the answer to a tool's question (JSON), if the run waits for one. A stopped
        run continues if its limits now allow it. The outcome of a finished or waiting run is returned unchanged. With
        `go_back`, a checkpoint without a snapshot is replaced by the nearest earlier one that has a snapshot.

        Raises ThreadNotFoundError, NotWaitingError, InputError, SnapshotNotFoundError (which names the nearest
        checkpoint with a snapshot), SnapshotCorruptError, CheckpointCorruptError, and what `start` raises.
        """
        stored = self._load_checkpoint(checkpoint)
        kind = graph_kind(stored)
        self._require_matching_agents(kind)
        checkpoint = self._find_restorable(stored, checkpoint, go_back=go_back)
        config = self._config_at(checkpoint)
        state = self._graph(kind).get_state(config)
        if answer is not None:
            decision = validate_answer(answer, self.thread, state, has_answer(stored))
            return self._run_graph(kind, Command(resume=decision), config)
        if state.interrupts and checkpoint is None and not has_answer(stored):
            return build_outcome(self.session, cast(AgentState, state.values), state.interrupts)
        # `next` does not name a node that ended just before a crash; its writes are stored all the same.
        if not state.tasks:
            values = cast(AgentState, state.values)
            if values.get("stop_reason") in _FINAL_STOP_REASONS or find_spent_budget(values, self.context):
                return build_outcome(self.session, values)
            checkpoint = self.update_state(
                {"stop_reason": None}, checkpoint=checkpoint, as_node="interruption"
            )
            config = self._config_at(checkpoint)
        return self._run_graph(kind, None, config)

    def update_state(
        self, values: dict[str, Any], *, checkpoint: str | None = None, as_node: str = "think"
    ) -> str:
        """Write to the state as if the node `as_node` had, which forks the thread; return the new checkpoint's id.

        Raises InputError, UnstorableValueError, ThreadNotFoundError, and SnapshotNotFoundError for a sandbox state
        without a snapshot.
        """
        update = validate_state_update(values)
        if not self.session.can_enter_state(update.get("sandbox_state", BASE_STATE)):
            raise SnapshotNotFoundError(
                f"thread {self.thread!r}: sandbox_state: no snapshot {update['sandbox_state']!r:.60} "
                "(home.history(thread) lists the states)"
            )
        graph = self._graph(graph_kind(self._load_checkpoint(checkpoint)))
        if as_node not in graph.nodes:
            known = ", ".join(list(graph.nodes)[1:])
            raise InputError(f"as_node: unknown node {as_node!r:.60} (use {known})")
        written = graph.update_state(self._config_at(checkpoint), dict(update), as_node=as_node)
        return str(written["configurable"]["checkpoint_id"])

    def sandbox(self, at: AgentState | CheckpointInfo | str | None = None) -> Sandbox:
        """Return the sandbox in the state that belongs to a graph state or checkpoint. Default: the newest.

        Raises ThreadNotFoundError, SnapshotNotFoundError, SnapshotCorruptError and SandboxUnavailableError.
        """
        if isinstance(at, CheckpointInfo):
            return self.session.enter_state(at.state_id)
        if at is None or isinstance(at, str):
            values = self._load_checkpoint(at).checkpoint["channel_values"]
            return self.session.enter_state(values.get("sandbox_state", BASE_STATE))
        return self.session.enter_state(at["sandbox_state"])

    def prune(self) -> None:
        """Delete the thread's history and its snapshots, except the newest; records stay. All or nothing.

        Raises WaitingError, ThreadNotFoundError, SnapshotNotFoundError and FencedError.
        """
        kind = graph_kind(self._load_checkpoint(None))
        state = self._graph(kind).get_state(self.config)
        if state.interrupts:
            raise WaitingError(
                f"thread {self.thread!r} waits for a person (answer by resume() before pruning it)"
            )
        values = cast(AgentState, state.values)
        last_node = "think" if values.get("events") else "receive" if kind == "takeover" else "begin"
        if "sandbox_state" not in values:
            return  # nothing has run yet
        if not self.session.can_enter_state(values["sandbox_state"]):
            newest = state.config["configurable"]["checkpoint_id"]
            restorable = self.home.find_restorable_checkpoint(self.thread, newest)
            raise snapshot_not_found_error(self.thread, None, restorable)
        with self._saver.write_atomically(self.thread):
            self._saver.delete_thread(self.thread)
            self._graph(kind).update_state(self.config, values, as_node=last_node)
        self.session.forget_snapshots(keep={values["sandbox_state"]})
        self.home.remove_unused_snapshots()

    def discard(self) -> None:
        """Delete the thread's checkpoints and snapshots, so that it can start again; records stay."""
        self._saver.delete_thread(self.thread)
        self.delete_snapshots()

    def delete_snapshots(self) -> None:
        """Delete the thread's snapshots to free disk space; records stay. The thread can no longer be resumed."""
        self.session.forget_snapshots()
        self.home.remove_unused_snapshots()

    def _attach_saver(self, build: Callable[[], Graph]) -> Graph:
        """Compile once per process: compiling takes as long as several steps."""
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

    def _start_graph(self, kind: GraphKind, graph_input: dict[str, Any]) -> Outcome:
        """Run a graph on the new thread, whose name stays free if the sandbox does not start."""
        try:
            return self._run_graph(kind, graph_input, self.config)
        except Exception:
            with contextlib.suppress(TakeoverError):
                stored = self._saver.get_tuple(self.config)
                if stored is not None and "sandbox_state" not in stored.checkpoint["channel_values"]:
                    self.discard()
            raise

    def _run_graph(self, kind: GraphKind, graph_input: Any, config: RunnableConfig) -> Outcome:
        task = graph_input.get("task") if isinstance(graph_input, dict) else None
        with start_run_span(self.context, kind, task["id"] if task else None) as span:
            before = link_earlier_run(span, self._saver, self.context, graph_input, config)
            outcome = self._run_to_outcome(kind, graph_input, add_traceparent(config))
            describe_outcome(span, outcome, before)
        return outcome

    def _run_to_outcome(self, kind: GraphKind, graph_input: Any, config: RunnableConfig) -> Outcome:
        graph, values = self._graph(kind), None
        control = self._control = RunControl()
        if self._is_draining:
            control.request_drain("drained")
        with drain_on_sigterm(control), self.session.explain_fencing():
            try:
                values = self._stream(graph, graph_input, config, control)
            except GraphDrained:
                pass
            except RunStoppedError:
                self.session.stop.finish()
            if values is None:
                values = graph.get_state(self.config).values
            interrupts = values.pop("__interrupt__", ())
            return build_outcome(self.session, cast(AgentState, values), interrupts)

    def _stream(
        self, graph: Graph, graph_input: Any, config: RunnableConfig, control: RunControl
    ) -> dict[str, Any] | None:
        """Run a graph and return its last state, None if no node has run."""
        values = None
        # Without a "custom" stream LangGraph runs the nodes in this thread, which takes half the time.
        modes: list[Any] = ["values", "custom"] if self._on_progress else ["values"]
        with self.session.stop.explain():
            # "sync": a step and its effect on the sandbox are durable before the next step begins.
            for mode, update in graph.stream(
                graph_input,
                config,
                context=self.context,
                stream_mode=modes,
                durability="sync",
                control=control,
            ):
                if mode == "custom" and self._on_progress is not None:
                    self._on_progress(cast(Progress, update))
                else:
                    values = cast(dict[str, Any], update)
        return values

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
