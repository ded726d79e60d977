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

from graph.agent import Graph, build_agent, build_takeover
from graph.checkpoint import Kind, answered, kind_of, machine_to_come
from graph.home import Home, Moment, NoSuchThread
from graph.outcome import Outcome, outcome_of
from graph.refusals import (
    ThreadTaken,
    Waiting,
    check_takeover,
    check_task,
    checked,
    not_kept,
)
from graph.savers import Saver
from graph.stopping import stopping
from graph.team import team_graph
from handoff.ledger import handoffs
from handoff.record import Review
from handoff.redaction import redacted
from nodes.replies import keys_of
from nodes.session import BASE, MachineNotKept, Session
from nodes.settings import AgentContext, BadSettings
from nodes.state import AgentState, BadInput, state_values
from nodes.think import spent
from sandbox.machine import Sandbox

Progress = Callable[[dict[str, Any]], None]
# A step is at most three nodes, and of a team twice as many; our own caps stop a run long before this.
_NODES_A_STEP = 7
_FOR_GOOD = ("finished", "refused", "unconfirmed")


@cache
def _compiled(build: Callable[[], Graph]) -> Graph:
    return build()


class Run:
    """The sole hold on one thread: start it, resume it, or let it take a record over.

    `agent`, `takeover` and `team` are the compiled graphs themselves, for `stream`, `ainvoke` and the like:
    `async for told in run.agent.astream({"task": {"id": …, "prompt": …}}, **run.options)`; `outcome` tells
    afterwards what came of it.
    """

    def __init__(
        self, home: Home, session: Session, saver: Saver, context: AgentContext, on_progress: Progress | None
    ) -> None:
        self.home = home
        self.thread = session.thread
        self.session = session
        self.context = context
        self._saver = saver
        self._on_progress = on_progress
        self._control: RunControl | None = None
        self._draining = False

    @cached_property
    def agent(self) -> Graph:
        return self._kept_by_saver(build_agent).with_config(metadata={"graph": "agent"})

    @cached_property
    def takeover(self) -> Graph:
        return self._kept_by_saver(build_takeover).with_config(metadata={"graph": "takeover"})

    @cached_property
    def team(self) -> Graph:
        return team_graph(None, self._saver).with_config(metadata={"graph": "team"})

    @property
    def config(self) -> RunnableConfig:
        return {
            "configurable": {"thread_id": self.thread},
            "recursion_limit": _NODES_A_STEP * self.context.max_steps + 10,
        }

    @property
    def options(self) -> dict[str, Any]:
        """What the graphs are to be called with: config, context and durability."""
        return {"config": self.config, "context": self.context, "durability": "sync"}

    def drain(self) -> None:
        """End the run, from another thread, after the node that it is at, and begin no other; `resume` goes on anew."""
        self._draining = True
        if self._control is not None:
            self._control.request_drain("drained")

    def state(self) -> AgentState | None:
        """What the thread's newest checkpoint holds; None where nothing has run on it."""
        found = self._saver.get_tuple(self.config)
        return found and cast(AgentState, self._graph(kind_of(found)).get_state(self.config).values)

    def outcome(self) -> Outcome:
        """What the thread has come to by now. Raises NoSuchThread."""
        found = self._found(None)
        state = self._graph(kind_of(found)).get_state(self.config)
        return self._outcome(cast(AgentState, state.values), () if answered(found) else state.interrupts)

    def start(self, task_id: str, prompt: str) -> Outcome:
        """Run a task from its beginning. Raises BadInput, ThreadTaken, ModelFailed, SandboxUnavailable or Fenced."""
        check_task(task_id, prompt)
        self._must_be_new(f"task {task_id}")
        prompt = redacted(prompt, keys_of(*self.context.models))  # before it is checkpointed as the input
        kind: Kind = "team" if self.context.member else "agent"
        return self._go(kind, {"task": {"id": task_id, "prompt": prompt}}, self.config)

    def take_over(self, record_id: str, view: str = "") -> Outcome:
        """Continue from a record under a view; left out, the one that a review chose, else `structured`.

        Raises RecordRefused, NoSuchView or SnapshotCorrupt beside what `start` raises.
        """
        if self.context.member is not None:
            raise BadSettings("agents: a record is taken over by one agent; give model= instead")
        # Before anything is written: a thread on which nothing began can be used again.
        check_takeover(self.home, record_id, view)
        self._must_be_new(f"a takeover of {record_id}")
        return self._go("takeover", {"record": record_id, "view": view}, self.config)

    def receive(self, handoff_id: str) -> Outcome:
        """Take a handoff that was offered: validate it, confirm it, then work on it; else refuse it.

        Raises NoSuchHandoff, or IllegalTransition or HandedOver where somebody else took it meanwhile, beside
        what `take_over` raises.
        """
        handoffs.load(self.home.ledger, handoff_id)
        self._must_be_new(f"handoff {handoff_id}")
        return self._go("takeover", {"handoff": handoff_id}, self.config)

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
        Where the checkpoint's machine was not kept, MachineNotKept names one whose machine was; `go_back`
        takes that one. Raises NoSuchThread, NotWaiting, BadInput, MachineNotKept or SnapshotCorrupt beside what `start` raises.
        """
        found = self._found(checkpoint)
        kind = kind_of(found)
        self._require_agents(kind)
        if not self.session.can_enter(machine_to_come(found, redone=checkpoint is not None)):
            kept = self.home.nearest_kept(self.thread, found.config["configurable"]["checkpoint_id"])
            if not go_back or kept is None:
                raise not_kept(self.thread, checkpoint, kept)
            if self._on_progress is not None:
                self._on_progress({"moment": "went_back", "step": kept.step, "checkpoint": kept.checkpoint})
            checkpoint = kept.checkpoint
        state = self._graph(kind).get_state(self._at(checkpoint))
        if answer is not None:
            given = checked(answer, self.thread, state, answered(found))
            return self._go(kind, Command(resume=given), self._at(checkpoint))
        if state.interrupts and checkpoint is None and not answered(found):
            return self._outcome(cast(AgentState, state.values), state.interrupts)
        at = self._at(checkpoint)
        # A node that ended just before a crash has left its writes, and `next` does not name it any more.
        if not state.tasks:
            values = cast(AgentState, state.values)
            if values.get("stop_reason") in _FOR_GOOD or spent(values, self.context):
                return self._outcome(values)
            changed = self.change({"stop_reason": None}, checkpoint=checkpoint, as_node="interruption")
            at = self._at(changed)
        return self._go(kind, None, at)

    def change(self, values: dict[str, Any], *, checkpoint: str | None = None, as_node: str = "think") -> str:
        """Write to the state, as if a node had, and so begin a fork; the checkpoint to resume from.

        Raises BadInput, Unstorable, NoSuchThread, or MachineNotKept for a machine that cannot be entered.
        """
        written = state_values(values)
        if not self.session.can_enter(written.get("machine", BASE)):
            raise MachineNotKept(
                f"thread {self.thread!r}: there is no machine {written['machine']!r:.60}; see `home.history`"
            )
        graph = self._graph(kind_of(self._found(checkpoint)))
        if as_node not in graph.nodes:
            raise BadInput(
                f"as_node: there is no node {as_node!r:.60}; there are {', '.join(list(graph.nodes)[1:])}"
            )
        return str(
            graph.update_state(self._at(checkpoint), dict(written), as_node=as_node)["configurable"][
                "checkpoint_id"
            ]
        )

    def machine(self, at: AgentState | Moment | str | None = None) -> Sandbox:
        """The machine as it belongs to a state or a checkpoint; left out, to the newest.

        Raises NoSuchThread, MachineNotKept, SnapshotCorrupt or SandboxUnavailable.
        """
        if at is None or isinstance(at, str):
            return self.session.enter(self._found(at).checkpoint["channel_values"].get("machine", BASE))
        return self.session.enter(at.machine if isinstance(at, Moment) else at["machine"])

    def prune(self) -> None:
        """Keep where the thread stands now, and give its history back with the machines of it; records stay.

        All of it is done, or nothing. Raises Waiting, NoSuchThread, MachineNotKept or Fenced.
        """
        kind = kind_of(self._found(None))
        state = self._graph(kind).get_state(self.config)
        if state.interrupts:
            raise Waiting(
                f"thread {self.thread!r} waits for a person; answer by resume() before its history goes"
            )
        values = cast(AgentState, state.values)
        last = "think" if values.get("events") else "receive" if kind == "takeover" else "begin"
        if "machine" not in values:
            return  # nothing has been done yet
        if not self.session.can_enter(values["machine"]):
            raise not_kept(
                self.thread,
                None,
                self.home.nearest_kept(self.thread, state.config["configurable"]["checkpoint_id"]),
            )
        with self._saver.whole(self.thread):
            self._saver.delete_thread(self.thread)
            self._graph(kind).update_state(self.config, values, as_node=last)
        self.session.forget_machines(but={values["machine"]})
        self.home.remove_unused_machines()

    def discard(self) -> None:
        """Delete the thread's checkpoints and give back its machines, so that it can be begun anew; records stay."""
        self._saver.delete_thread(self.thread)
        self.forget_machines()

    def forget_machines(self) -> None:
        """Give back the disk that the thread's machines take, once nobody wants to go on from it; records stay."""
        self.session.forget_machines()
        self.home.remove_unused_machines()

    def _kept_by_saver(self, build: Callable[[], Graph]) -> Graph:
        """Compiled once a process: that takes as long as several steps do."""
        return _compiled(build).copy({"checkpointer": self._saver})

    def _graph(self, kind: Kind) -> Graph:
        return cast(Graph, getattr(self, kind))

    def _require_agents(self, kind: Kind) -> None:
        if kind == "team" and self.context.member is None:
            raise BadSettings(
                f"agents: thread {self.thread!r} is a team's; give agents=[…] instead of model="
            )
        if kind != "team" and self.context.member is not None:
            raise BadSettings(f"agents: thread {self.thread!r} is one agent's; give model= instead")

    def _at(self, checkpoint: str | None) -> RunnableConfig:
        config = self.config
        if checkpoint is not None:
            config["configurable"] |= {"checkpoint_id": checkpoint, "checkpoint_ns": ""}
        return config

    def _go(self, kind: Kind, given: Any, config: RunnableConfig) -> Outcome:
        graph, values = self._graph(kind), None
        control = self._control = RunControl()
        if self._draining:
            control.request_drain("drained")
        # Where nobody listens, LangGraph runs the nodes in this thread, which takes half the time.
        modes: list[Any] = ["values", "custom"] if self._on_progress else ["values"]
        with stopping(control), self.session.explain_fencing():
            try:
                # Each step is on disk before the next begins, and so is what it did to the machine.
                for mode, told in graph.stream(
                    given,
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
        return outcome_of(self.session, state, interrupts)

    def _must_be_new(self, asked: str) -> None:
        found = self._saver.get_tuple(self.config)
        if found is not None:
            values = self._graph(kind_of(found)).get_state(self.config).values
            there = values.get("record") or values.get("task", {}).get("id") or "a run"
            raise ThreadTaken(
                f"thread {self.thread!r} holds {there:.60} already; resume it, or give {asked:.80} a thread of its own"
            )

    def _found(self, checkpoint: str | None) -> CheckpointTuple:
        is_id = checkpoint is None or re.fullmatch(r"[0-9a-f-]{1,64}", str(checkpoint))
        found = self._saver.get_tuple(self._at(checkpoint)) if is_id else None
        if found is None:
            raise self._unknown(checkpoint)
        return found

    def _unknown(self, checkpoint: str | None) -> NoSuchThread:
        newest = self.home.history(self.thread)[0]  # raises where the thread itself is unknown
        return NoSuchThread(
            f"thread {self.thread!r} has no checkpoint {checkpoint!r:.60}; its newest is {newest.checkpoint}, "
            "and `home.history(thread)` lists them all"
        )
