"""A thread that this process holds: start it, resume it, look at it, prune it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.graph.agent import Graph
from langgraph_takeover.graph.checkpoints.inspection import (
    CheckpointInfo,
    GraphKind,
    graph_kind,
    has_answer,
)
from langgraph_takeover.graph.checkpoints.savers import Saver
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.outcome import Outcome, build_outcome
from langgraph_takeover.graph.runs.argument_checks import (
    check_takeover,
    check_task,
    resembles_answers_by_id,
    snapshot_not_found_error,
    validate_answer,
)
from langgraph_takeover.graph.runs.stop_requests import drain_on_sigterm
from langgraph_takeover.graph.runs.thread_graphs import (
    GraphCall,
    ThreadGraphs,
    add_traceparent,
    describe_outcome,
    link_earlier_run,
    load_conversation,
    start_run_span,
)
from langgraph_takeover.graph.usage_errors import WaitingError
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.leases import RunStoppedError
from langgraph_takeover.handoff.names import CONTINUATION, TakeoverView
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.agent.step_edits import count_open_calls, restore_texts
from langgraph_takeover.nodes.agent.think import find_spent_budget
from langgraph_takeover.nodes.context.settings import AgentContext, Progress, ProgressCallback, SettingsError
from langgraph_takeover.nodes.model.calls import find_api_keys
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import BASE_STATE, SnapshotNotFoundError
from langgraph_takeover.nodes.state import AgentState, InputError, validate_state_update
from langgraph_takeover.sandbox.interface import Sandbox


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


_FINAL_STOP_REASONS = ("finished", "refused", "unconfirmed")


class Run(ThreadGraphs):
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
        super().__init__(home, session, saver, context, on_progress)
        self._control: RunControl | None = None
        self._is_draining = False
        session.stop.on_stop = self.drain

    def drain(self) -> None:
        """Stop after the current node; a run that begins later stops as it begins. Safe to call from another thread.

        `home.stop` does it from any process.
        """
        self._is_draining = self.session.stop.cancellation.ends_waits = True
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

    async def aoutcome(self) -> Outcome:
        """Like `outcome`, in an event loop."""
        return await self.session.workers.run("lifecycle", self.outcome)

    def start(self, task_id: str, prompt: str) -> Outcome:
        """Run a task from its beginning.

        Raises InputError, ThreadExistsError, ModelError, SandboxUnavailableError and FencedError.
        """
        return self._run(self._prepare_start(task_id, prompt))

    async def astart(self, task_id: str, prompt: str) -> Outcome:
        """Like `start`, in an event loop, which awaits the model; all other work runs in the home's threads.

        If the task is cancelled, the running command and the model call are ended at once; `resume` continues.

        Example:
            >>> import asyncio
            >>> async def run_task():
            ...     async with open_run(home, "fix-4", model=model, sandbox=sandbox_spec) as run:
            ...         return await run.astart("issue-17", "Make the tests pass.")
            >>> asyncio.run(run_task()).status
            <RunStatus.FINISHED: 'finished'>
        """
        return await self._run_prepared(lambda: self._prepare_start(task_id, prompt))

    def _prepare_start(self, task_id: str, prompt: str) -> GraphCall:
        check_task(task_id, prompt)
        self._require_new_thread(f"task {task_id}")
        prompt = redact(prompt, find_api_keys(*self.context.models))  # before a checkpoint stores it
        kind: GraphKind = "team" if self.context.member else "agent"
        return GraphCall(
            kind, {"task": {"id": task_id, "prompt": prompt}}, self.config, self.context, releases_name=True
        )

    def take_over(self, record_id: str, view: TakeoverView | None = None) -> Outcome:
        """Continue from a record under a view. Default view: the one that a review chose, else `structured`.

        `continuation` is not a view: the predecessor's own agent resumes its conversation at the record's checkpoint, with
        the settings of this run. Raises RecordError, UnknownViewError, SnapshotCorruptError, and what `start` raises.
        """
        return self._run(self._prepare_takeover(record_id, view))

    async def atake_over(self, record_id: str, view: TakeoverView | None = None) -> Outcome:
        """Like `take_over`, in an event loop: see `astart`."""
        return await self._run_prepared(lambda: self._prepare_takeover(record_id, view))

    def _prepare_takeover(self, record_id: str, view: TakeoverView | None) -> GraphCall:
        if self.context.member is not None:
            raise SettingsError("agents: one agent takes over a record, not a team (pass model=)")
        # Check before anything is written, so that the thread's name stays free.
        check_takeover(self.home, record_id, view)
        self._require_new_thread(f"a takeover of {record_id}")
        graph_input: dict[str, Any] = {"record": record_id, "view": view or ""}
        if view == CONTINUATION:
            record = self.home.records.load(record_id)
            graph_input |= load_conversation(self._saver, self._graph, record)
        return GraphCall("takeover", graph_input, self.config, self.context, releases_name=True)

    def receive(self, handoff_id: str) -> Outcome:
        """Take an offered handoff: validate it, confirm it and work on it, or reject it.

        Raises HandoffNotFoundError; IllegalTransitionError or HandedOverError if another agent was faster; and what
        `take_over` raises.
        """
        return self._run(self._prepare_receipt(handoff_id))

    async def areceive(self, handoff_id: str) -> Outcome:
        """Like `receive`, in an event loop: see `astart`."""
        return await self._run_prepared(lambda: self._prepare_receipt(handoff_id))

    def _prepare_receipt(self, handoff_id: str) -> GraphCall:
        handoffs.load(self.home.ledger, handoff_id)
        self._require_new_thread(f"handoff {handoff_id}")
        return GraphCall("takeover", {"handoff": handoff_id}, self.config, self.context)

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
        prepared = self._prepare_resume(answer, checkpoint, go_back=go_back)
        return self._run(prepared) if isinstance(prepared, GraphCall) else prepared

    async def aresume(
        self,
        answer: Any = None,
        *,
        checkpoint: str | None = None,
        go_back: bool = False,
    ) -> Outcome:
        """Like `resume`, in an event loop: see `astart`."""
        return await self._run_prepared(lambda: self._prepare_resume(answer, checkpoint, go_back=go_back))

    def _prepare_resume(self, answer: Any, checkpoint: str | None, *, go_back: bool) -> GraphCall | Outcome:
        """Return the call that continues, or the outcome of a run that has nothing left to do."""
        stored = self._load_checkpoint(checkpoint)
        kind = graph_kind(stored)
        self._require_matching_agents(kind)
        checkpoint = self._find_restorable(stored, checkpoint, go_back=go_back)
        config = self._config_at(checkpoint)
        state = self._graph(kind).get_state(config)
        if answer is not None:
            decision = validate_answer(
                answer, self.thread, state, has_answer(stored), find_api_keys(*self.context.models)
            )
            if resembles_answers_by_id(decision):
                decision = {state.interrupts[0].id: decision}
            return GraphCall(kind, Command(resume=decision), config, self.context)
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
        return GraphCall(kind, None, config, self.context)

    async def _run_prepared(self, prepare: Callable[[], GraphCall | Outcome]) -> Outcome:
        prepared = await self.session.workers.run("lifecycle", prepare)
        return await self._arun(prepared) if isinstance(prepared, GraphCall) else prepared

    def update_state(
        self, values: dict[str, Any], *, checkpoint: str | None = None, as_node: str = "think"
    ) -> str:
        """Write to the state as if the node `as_node` had, which forks the thread; return the new checkpoint's id.

        Raises InputError, UnstorableValueError, ThreadNotFoundError, and SnapshotNotFoundError for a sandbox state
        without a snapshot.
        """
        self.session.pending.forget_failure()
        config = self._config_at(checkpoint)
        graph = self._graph(graph_kind(self._load_checkpoint(checkpoint)))
        before = cast(AgentState, graph.get_state(config).values)
        update = validate_state_update(restore_texts(values, before))
        if self.context.parallel_tool_calls:
            update = count_open_calls(update)
        if not self.session.can_enter_state(update.get("sandbox_state", BASE_STATE)):
            raise SnapshotNotFoundError(
                f"thread {self.thread!r}: sandbox_state: no snapshot {update['sandbox_state']!r:.60} "
                "(home.history(thread) lists the states)"
            )
        if update.get("sandbox_state") not in (None, before.get("sandbox_state")):
            update = AgentState(unchecked_events=len(before.get("events", ()))) | update
        if as_node not in graph.nodes:
            known = ", ".join(list(graph.nodes)[1:])
            raise InputError(f"as_node: unknown node {as_node!r:.60} (use {known})")
        written = graph.update_state(config, dict(update), as_node=as_node)
        return str(written["configurable"]["checkpoint_id"])

    def sandbox(self, at: AgentState | CheckpointInfo | str | None = None) -> Sandbox:
        """Return the sandbox in the state that belongs to a graph state or checkpoint. Default: the newest.

        Each of its calls waits until no action of the agent runs, and finds that state.

        Raises ThreadNotFoundError, SnapshotNotFoundError, SnapshotCorruptError and SandboxUnavailableError.
        """
        if isinstance(at, CheckpointInfo):
            if not self.session.can_enter_state(at.state_id):
                restorable = self.home.find_restorable_checkpoint(self.thread, at.checkpoint)
                raise snapshot_not_found_error(self.thread, at.checkpoint, restorable)
            return self.session.view_state(at.state_id)
        if at is None or isinstance(at, str):
            values = self._load_checkpoint(at).checkpoint["channel_values"]
            return self.session.view_state(values.get("sandbox_state", BASE_STATE))
        return self.session.view_state(at["sandbox_state"])

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
            self._saver.delete_checkpoints(self.thread)
            self._graph(kind).update_state(self.config, values, as_node=last_node)
        self.session.forget_snapshots(keep={values["sandbox_state"]})
        self.home.remove_unused_snapshots()

    def discard(self) -> None:
        """Delete the thread, so that it can start again; records stay."""
        self._saver.delete_thread(self.thread)

    def delete_snapshots(self) -> None:
        """Delete the thread's snapshots to free disk space; records stay. The thread can no longer be resumed."""
        self.session.forget_snapshots()
        self.home.remove_unused_snapshots()

    def _run(self, call: GraphCall) -> Outcome:
        """Run a graph until it ends, waits or stops."""
        with start_run_span(call) as span:
            before = link_earlier_run(span, self._saver, call)
            try:
                outcome = self._run_to_outcome(call)
            except Exception:
                self._release_name(call)
                raise
            describe_outcome(span, outcome, before)
        return outcome

    async def _arun(self, call: GraphCall) -> Outcome:
        """Like `_run`, in an event loop. A cancelled task ends the run at once; it can be resumed."""
        workers = self.session.workers
        with start_run_span(call) as span:
            before = await workers.run("lifecycle", lambda: link_earlier_run(span, self._saver, call))
            try:
                outcome = await self._arun_to_outcome(call)
            except Exception:
                await workers.run("lifecycle", lambda: self._release_name(call))
                raise
            describe_outcome(span, outcome, before)
        return outcome

    def _run_to_outcome(self, call: GraphCall) -> Outcome:
        graph, values, control = self._graph(call.kind), None, self._start_control()
        with drain_on_sigterm(control, self.session.stop.cancellation), self.session.explain_fencing():
            with self._explain_stop(), _silence_late_nodes():
                # Without a "custom" stream LangGraph runs the nodes in this thread, which takes half the time.
                for mode, update in graph.stream(**self._stream_options(call, control)):
                    values = self._report(mode, update, values)
            return self._build_outcome(graph, call, values)

    async def _arun_to_outcome(self, call: GraphCall) -> Outcome:
        graph, values, control = self._graph(call.kind), None, self._start_control()
        with self.session.explain_fencing():
            with self._explain_stop():
                async for mode, update in graph.astream(**self._stream_options(call, control)):
                    values = self._report(mode, update, values)
            last = values
            return await self.session.workers.run("lifecycle", lambda: self._build_outcome(graph, call, last))

    def _start_control(self) -> RunControl:
        self.session.pending.forget_failure()
        self._control = RunControl()
        stop = self.session.stop
        stop.cancellation.ends_waits = self._is_draining or stop.mode is not None
        if self._is_draining:
            self._control.request_drain("drained")
        return self._control

    @contextlib.contextmanager
    def _explain_stop(self) -> Iterator[None]:
        """End the block without an error if the run was drained or stopped."""
        with contextlib.suppress(GraphDrained, RunStoppedError), self.session.stop.explain():
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
        self.session.pending.settle()
        self.session.stop.finish()
        if values is None:  # no node has run
            values = cast(dict[str, Any], graph.get_state(call.config).values)
        interrupts = values.pop("__interrupt__", ())
        return build_outcome(self.session, cast(AgentState, values), interrupts)

    def _release_name(self, call: GraphCall) -> None:
        with contextlib.suppress(TakeoverError):
            stored = self._saver.get_tuple(call.config) if call.releases_name else None
            if stored is not None and "sandbox_state" not in stored.checkpoint["channel_values"]:
                self._saver.delete_thread(self.session.thread)
