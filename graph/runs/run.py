"""One process's hold on one thread: what can be done with it, from its start to its outcome."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphDrained
from langgraph.runtime import RunControl
from langgraph.types import Command

from langgraph_takeover.graph.agent import Graph, build_agent, build_takeover
from langgraph_takeover.graph.checkpoints.inspection import GraphKind, graph_kind, has_answer, resume_state_id
from langgraph_takeover.graph.checkpoints.savers import Saver
from langgraph_takeover.graph.errors import (
    ThreadExistsError,
    WaitingError,
    check_takeover,
    check_task,
    snapshot_not_found_error,
    validate_answer,
)
from langgraph_takeover.graph.home import CheckpointInfo, Home, ThreadNotFoundError
from langgraph_takeover.graph.outcome import Outcome, build_outcome
from langgraph_takeover.graph.runs.signals import drain_on_sigterm
from langgraph_takeover.graph.team import build_team_graph
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.records.record import Review
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.nodes.agent.think import find_spent_budget
from langgraph_takeover.nodes.context.settings import AgentContext, SettingsError
from langgraph_takeover.nodes.model.calls import find_api_keys
from langgraph_takeover.nodes.session.session import BASE_STATE, Session, SnapshotNotFoundError
from langgraph_takeover.nodes.state import AgentState, InputError, validate_state_update
from langgraph_takeover.sandbox.interface import Sandbox

ProgressCallback = Callable[[dict[str, Any]], None]
# A step is at most three nodes, and of a team twice as many; our own caps stop a run long before this.
_NODES_PER_STEP = 7
_FINAL_STOP_REASONS = ("finished", "refused", "unconfirmed")


@cache
def _compile_once(build: Callable[[], Graph]) -> Graph:
    return build()


class Run:
    """The sole hold on one thread: start it, resume it, or let it take a record over.

    `agent`, `takeover` and `team` are the compiled graphs themselves, for `stream`, `ainvoke` and the like:
    `async for told in run.agent.astream({"task": {"id": …, "prompt": …}}, **run.options)`; `outcome` tells
    afterwards what came of it.
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

    @cached_property
    def agent(self) -> Graph:
        return self._attach_saver(build_agent).with_config(metadata={"graph": "agent"})

    @cached_property
    def takeover(self) -> Graph:
        return self._attach_saver(build_takeover).with_config(metadata={"graph": "takeover"})

    @cached_property
    def team(self) -> Graph:
        return build_team_graph(None, self._saver).with_config(metadata={"graph": "team"})

    @property
    def config(self) -> RunnableConfig:
        return {
            "configurable": {"thread_id": self.thread},
            "recursion_limit": _NODES_PER_STEP * self.context.max_steps + 10,
        }

    @property
    def options(self) -> dict[str, Any]:
        """What the graphs are to be called with: config, context and durability."""
        return {"config": self.config, "context": self.context, "durability": "sync"}

    def drain(self) -> None:
        """End the run, from another thread, after the node that it is at, and begin no other; `resume` goes on anew."""
        self._is_draining = True
        if self._control is not None:
            self._control.request_drain("drained")

    def state(self) -> AgentState | None:
        """What the thread's newest checkpoint holds; None where nothing has run on it."""
        found = self._saver.get_tuple(self.config)
        return found and cast(AgentState, self._graph(graph_kind(found)).get_state(self.config).values)

    def outcome(self) -> Outcome:
        """What the thread has come to by now. Raises ThreadNotFoundError."""
        found = self._load_checkpoint(None)
        state = self._graph(graph_kind(found)).get_state(self.config)
        return self._outcome(cast(AgentState, state.values), () if has_answer(found) else state.interrupts)

    def start(self, task_id: str, prompt: str) -> Outcome:
        """Run a task from its beginning. Raises InputError, ThreadExistsError, ModelError, SandboxUnavailableError or FencedError."""
        check_task(task_id, prompt)
        self._require_new_thread(f"task {task_id}")
        prompt = redact(prompt, find_api_keys(*self.context.models))  # before it is checkpointed as the input
        kind: GraphKind = "team" if self.context.member else "agent"
        return self._run_graph(kind, {"task": {"id": task_id, "prompt": prompt}}, self.config)

    def take_over(self, record_id: str, view: str = "") -> Outcome:
        """Continue from a record under a view; left out, the one that a review chose, else `structured`.

        Raises RecordError, UnknownViewError or SnapshotCorruptError beside what `start` raises.
        """
        if self.context.member is not None:
            raise SettingsError("agents: a record is taken over by one agent; give model= instead")
        # Before anything is written: a thread on which nothing began can be used again.
        check_takeover(self.home, record_id, view)
        self._require_new_thread(f"a takeover of {record_id}")
        return self._run_graph("takeover", {"record": record_id, "view": view}, self.config)

    def receive(self, handoff_id: str) -> Outcome:
        """Take a handoff that was offered: validate it, confirm it, then work on it; else refuse it.

        Raises HandoffNotFoundError, or IllegalTransitionError or HandedOverError where somebody else took it meanwhile, beside
        what `take_over` raises.
        """
        handoffs.load(self.home.ledger, handoff_id)
        self._require_new_thread(f"handoff {handoff_id}")
        return self._run_graph("takeover", {"handoff": handoff_id}, self.config)

    def resume(
        self,
        answer: Review | dict[str, Any] | None = None,
        *,
        checkpoint: str | None = None,
        go_back: bool = False,
    ) -> Outcome:
        """Go on from where the thread stands, or from an earlier checkpoint, which makes a fork.

        `answer` is what a person decided, where the run waits for it. A run that had stopped goes on too,
        where what stopped it does not stop it any more; one that finished, or waits, is told as it is.
        Where the checkpoint's machine was not kept, SnapshotNotFoundError names one whose machine was; `go_back`
        takes that one. Raises ThreadNotFoundError, NotWaitingError, InputError, SnapshotNotFoundError or SnapshotCorruptError beside what `start` raises.
        """
        found = self._load_checkpoint(checkpoint)
        kind = graph_kind(found)
        self._require_matching_agents(kind)
        if not self.session.can_enter_state(resume_state_id(found, is_rerun=checkpoint is not None)):
            kept = self.home.find_restorable_checkpoint(
                self.thread, found.config["configurable"]["checkpoint_id"]
            )
            if not go_back or kept is None:
                raise snapshot_not_found_error(self.thread, checkpoint, kept)
            if self._on_progress is not None:
                self._on_progress({"moment": "went_back", "step": kept.step, "checkpoint": kept.checkpoint})
            checkpoint = kept.checkpoint
        state = self._graph(kind).get_state(self._config_at(checkpoint))
        if answer is not None:
            given = validate_answer(answer, self.thread, state, has_answer(found))
            return self._run_graph(kind, Command(resume=given), self._config_at(checkpoint))
        if state.interrupts and checkpoint is None and not has_answer(found):
            return self._outcome(cast(AgentState, state.values), state.interrupts)
        at = self._config_at(checkpoint)
        # A node that ended just before a crash has left its writes, and `next` does not name it any more.
        if not state.tasks:
            values = cast(AgentState, state.values)
            if values.get("stop_reason") in _FINAL_STOP_REASONS or find_spent_budget(values, self.context):
                return self._outcome(values)
            changed = self.update_state({"stop_reason": None}, checkpoint=checkpoint, as_node="interruption")
            at = self._config_at(changed)
        return self._run_graph(kind, None, at)

    def update_state(
        self, values: dict[str, Any], *, checkpoint: str | None = None, as_node: str = "think"
    ) -> str:
        """Write to the state, as if a node had, and so begin a fork; the checkpoint to resume from.

        Raises InputError, Unstorable, ThreadNotFoundError, or SnapshotNotFoundError for a machine that cannot be entered.
        """
        written = validate_state_update(values)
        if not self.session.can_enter_state(written.get("machine", BASE_STATE)):
            raise SnapshotNotFoundError(
                f"thread {self.thread!r}: there is no machine {written['machine']!r:.60}; see `home.history`"
            )
        graph = self._graph(graph_kind(self._load_checkpoint(checkpoint)))
        if as_node not in graph.nodes:
            raise InputError(
                f"as_node: there is no node {as_node!r:.60}; there are {', '.join(list(graph.nodes)[1:])}"
            )
        return str(
            graph.update_state(self._config_at(checkpoint), dict(written), as_node=as_node)["configurable"][
                "checkpoint_id"
            ]
        )

    def sandbox(self, at: AgentState | CheckpointInfo | str | None = None) -> Sandbox:
        """The machine as it belongs to a state or a checkpoint; left out, to the newest.

        Raises ThreadNotFoundError, SnapshotNotFoundError, SnapshotCorruptError or SandboxUnavailableError.
        """
        if at is None or isinstance(at, str):
            return self.session.enter_state(
                self._load_checkpoint(at).checkpoint["channel_values"].get("machine", BASE_STATE)
            )
        return self.session.enter_state(at.state_id if isinstance(at, CheckpointInfo) else at["machine"])

    def prune(self) -> None:
        """Keep where the thread stands now, and give its history back with the machines of it; records stay.

        All of it is done, or nothing. Raises Waiting, ThreadNotFoundError, SnapshotNotFoundError or FencedError.
        """
        kind = graph_kind(self._load_checkpoint(None))
        state = self._graph(kind).get_state(self.config)
        if state.interrupts:
            raise WaitingError(
                f"thread {self.thread!r} waits for a person; answer by resume() before its history goes"
            )
        values = cast(AgentState, state.values)
        last = "think" if values.get("events") else "receive" if kind == "takeover" else "begin"
        if "machine" not in values:
            return  # nothing has been done yet
        if not self.session.can_enter_state(values["machine"]):
            raise snapshot_not_found_error(
                self.thread,
                None,
                self.home.find_restorable_checkpoint(
                    self.thread, state.config["configurable"]["checkpoint_id"]
                ),
            )
        with self._saver.write_atomically(self.thread):
            self._saver.delete_thread(self.thread)
            self._graph(kind).update_state(self.config, values, as_node=last)
        self.session.forget_snapshots(keep={values["machine"]})
        self.home.remove_unused_snapshots()

    def discard(self) -> None:
        """Delete the thread's checkpoints and give back its machines, so that it can be begun anew; records stay."""
        self._saver.delete_thread(self.thread)
        self.delete_snapshots()

    def delete_snapshots(self) -> None:
        """Give back the disk that the thread's machines take, once nobody wants to go on from it; records stay."""
        self.session.forget_snapshots()
        self.home.remove_unused_snapshots()

    def _attach_saver(self, build: Callable[[], Graph]) -> Graph:
        """Compiled once a process: that takes as long as several steps do."""
        return _compile_once(build).copy({"checkpointer": self._saver})

    def _graph(self, kind: GraphKind) -> Graph:
        return cast(Graph, getattr(self, kind))

    def _require_matching_agents(self, kind: GraphKind) -> None:
        if kind == "team" and self.context.member is None:
            raise SettingsError(
                f"agents: thread {self.thread!r} is a team's; give agents=[…] instead of model="
            )
        if kind != "team" and self.context.member is not None:
            raise SettingsError(f"agents: thread {self.thread!r} is one agent's; give model= instead")

    def _config_at(self, checkpoint: str | None) -> RunnableConfig:
        config = self.config
        if checkpoint is not None:
            config["configurable"] |= {"checkpoint_id": checkpoint, "checkpoint_ns": ""}
        return config

    def _run_graph(self, kind: GraphKind, graph_input: Any, config: RunnableConfig) -> Outcome:
        graph, values = self._graph(kind), None
        control = self._control = RunControl()
        if self._is_draining:
            control.request_drain("drained")
        # Where nobody listens, LangGraph runs the nodes in this thread, which takes half the time.
        modes: list[Any] = ["values", "custom"] if self._on_progress else ["values"]
        with drain_on_sigterm(control), self.session.explain_fencing():
            try:
                # Each step is on disk before the next begins, and so is what it did to the machine.
                for mode, told in graph.stream(
                    graph_input,
                    config,
                    context=self.context,
                    stream_mode=modes,
                    durability="sync",
                    control=control,
                ):
                    if mode == "custom" and self._on_progress is not None:
                        self._on_progress(cast(dict[str, Any], told))
                    else:
                        values = cast(dict[str, Any], told)
            except GraphDrained:
                values = graph.get_state(self.config).values
            if values is None:
                values = graph.get_state(self.config).values
            interrupts = values.pop("__interrupt__", ())
            return self._outcome(cast(AgentState, values), interrupts)

    def _outcome(self, state: AgentState, interrupts: Any = ()) -> Outcome:
        return build_outcome(self.session, state, interrupts)

    def _require_new_thread(self, request: str) -> None:
        found = self._saver.get_tuple(self.config)
        if found is not None:
            values = self._graph(graph_kind(found)).get_state(self.config).values
            there = values.get("record") or values.get("task", {}).get("id") or "a run"
            raise ThreadExistsError(
                f"thread {self.thread!r} holds {there:.60} already; resume it, or give {request:.80} a thread of its own"
            )

    def _load_checkpoint(self, checkpoint: str | None) -> CheckpointTuple:
        is_id = checkpoint is None or re.fullmatch(r"[0-9a-f-]{1,64}", str(checkpoint))
        found = self._saver.get_tuple(self._config_at(checkpoint)) if is_id else None
        if found is None:
            raise self._unknown_checkpoint_error(checkpoint)
        return found

    def _unknown_checkpoint_error(self, checkpoint: str | None) -> ThreadNotFoundError:
        newest = self.home.history(self.thread)[0]  # raises where the thread itself is unknown
        return ThreadNotFoundError(
            f"thread {self.thread!r} has no checkpoint {checkpoint!r:.60}; its newest is {newest.checkpoint}, "
            "and `home.history(thread)` lists them all"
        )
