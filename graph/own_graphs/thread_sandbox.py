"""A sandbox for any LangGraph graph: its state is saved with the thread's checkpoints, and its effects happen once."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Annotated, Any, NamedTuple, Self, TypeVar, get_args
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.channels import LastValue
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.graph.checkpoints.inspection import require_graph, resume_state_id
from langgraph_takeover.graph.checkpoints.savers import Saver, fork_checkpoint
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.own_graphs.active_runs import find_other_loop, find_run, watch_runs
from langgraph_takeover.graph.usage_errors import ActResultError, SandboxStateLostError, ThreadNotFoundError
from langgraph_takeover.handoff.ledger import effects as journal
from langgraph_takeover.handoff.ledger import leases
from langgraph_takeover.handoff.ledger.effects import EffectKey, Move
from langgraph_takeover.handoff.shell.command_effects import CommandEffect
from langgraph_takeover.nodes.context.settings import SettingsError
from langgraph_takeover.nodes.model.exchange import event_loop
from langgraph_takeover.nodes.session.graph_tasks import (
    ActConflictError,
    GraphTask,
    find_checkpointer,
    find_graph_task,
    find_left_state,
    join_states,
    list_last_states,
    split_state,
)
from langgraph_takeover.nodes.session.merged_states import (
    list_conflicts,
    list_merge_bases,
    resolve_state,
)
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import BASE_STATE, SnapshotEvery, SnapshotNotFoundError
from langgraph_takeover.nodes.session.workers import AbortableWork, OpenableContext
from langgraph_takeover.nodes.state import InputError
from langgraph_takeover.sandbox.backends.asynchronous import run_in_pool
from langgraph_takeover.sandbox.interface import FileChange, Sandbox, SandboxSpec, Snapshot
from langgraph_takeover.sandbox.snapshots.merging import BranchConflict, MergePolicy

ResultT = TypeVar("ResultT")
CHANNEL = "sandbox_state"
_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)
_SAVING_S, _SAVING_POLL_S = 2.0, 0.01
_PAGE = 8
"""Checkpoints that are read at once."""
_CALLS = "calls"
"""In the journal, in the place of LangGraph's task, for calls that other tasks of the step look up."""


class SandboxStates(LastValue[str]):
    """The channel of the sandbox's state. If several tasks of a step left states, it keeps all: they are merged when used.

    It ignores None. Raises InputError for an invalid state.
    """

    __slots__ = ()

    def update(self, values: Sequence[str | None]) -> bool:
        written = [each for each in values if each]
        for each in written:
            if not isinstance(each, str):
                raise InputError(
                    f"{CHANNEL}: {each!r:.60} is not a state of the sandbox (return the state of an act)"
                )
        if changed := [each for each in written if each != self.value]:
            self.value = join_states(changed)
        return bool(written)

    def from_checkpoint(self, checkpoint: Any) -> Self:
        return super().from_checkpoint(checkpoint) if checkpoint else type(self)(self.typ, self.key)


keep_states = SandboxStates(str)
"""The channel, for annotations of states."""


class SandboxState(TypedDict, total=False):
    """The part of a graph's state that belongs to the sandbox: inherit your state from it.

    Nodes of one step can act side by side: each begins in a fork of the state before the step, and the next act begins in
    the merge of what they left.

    Example:
        >>> from langgraph_takeover.integrations import SandboxState
        >>> class State(SandboxState):
        ...     answer: str
        >>> sorted(State.__annotations__)
        ['answer', 'sandbox_state']
    """

    sandbox_state: Annotated[str, keep_states]


class Act(NamedTuple):
    """The result of an act, the same in every repetition.

    Example:
        >>> from langgraph_takeover.integrations import open_sandbox
        >>> with open_sandbox(home, "own-graph", sandbox=sandbox_spec) as work:
        ...     act = work.act("read", lambda box: box.directory_listing("galley")[0], state=None, effects="nothing")
        >>> act.value, act.state
        ('__init__.py', 'base')
    """

    value: Any
    """What the function returned: text, a number, a list or a dict."""
    state: str
    """Id of the sandbox's state after it, for the graph's state."""
    changes: tuple[FileChange, ...]
    """The files that it changed."""


class _StoredAct(Frozen, ser_json_inf_nan="constants"):
    value: JsonValue
    changes: tuple[FileChange, ...]
    shell_ended: bool = False


def load_checkpoint(saver: BaseCheckpointSaver[str], config: RunnableConfig) -> CheckpointTuple | None:
    """Return a checkpoint of any saver; in another OS thread than the event loop's."""
    return _call_saver(lambda: saver.get_tuple(config), lambda: saver.aget_tuple(config))


def list_checkpoints(
    saver: BaseCheckpointSaver[str], config: RunnableConfig, after: str
) -> list[CheckpointTuple]:
    """List the checkpoints of a thread that are newer than an id, newest first; like `load_checkpoint`.

    Without an id, those of all its graphs, if the config names none.
    """
    if not after:  # in one page: savers order the checkpoints of several graphs differently
        return sorted(
            _list_page(saver, config, {}), key=lambda each: str(each.checkpoint["id"]), reverse=True
        )
    found: list[CheckpointTuple] = []
    while True:
        options: dict[str, Any] = {"limit": _PAGE}  # savers dislike iterators that are left before their end
        if found:
            options["before"] = found[-1].config
        page = _list_page(saver, config, options)
        newer = [each for each in page if str(each.checkpoint["id"]) > after]
        found += newer
        if len(newer) < _PAGE:
            return found


def _list_page(
    saver: BaseCheckpointSaver[str], config: RunnableConfig, options: dict[str, Any]
) -> list[CheckpointTuple]:
    async def alist() -> list[CheckpointTuple]:
        return [each async for each in saver.alist(config, **options)]

    return _call_saver(lambda: [*saver.list(config, **options)], alist)


def save_checkpoint(
    saver: BaseCheckpointSaver[str], config: RunnableConfig, checkpoint: Any, metadata: Any, versions: Any
) -> RunnableConfig:
    """Write a checkpoint; like `load_checkpoint`."""
    return _call_saver(
        lambda: saver.put(config, checkpoint, metadata, versions),
        lambda: saver.aput(config, checkpoint, metadata, versions),
    )


def save_writes(
    saver: BaseCheckpointSaver[str], config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str
) -> None:
    """Write what a task left at a checkpoint; like `load_checkpoint`."""
    _call_saver(
        lambda: saver.put_writes(config, writes, task), lambda: saver.aput_writes(config, writes, task)
    )


def _call_saver(call: Callable[[], ResultT], acall: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Return what a saver returns: in the event loop that this OS thread works for, if the saver can be awaited.

    A saver's lock and connection belong to the event loop that uses them first.
    """
    if (loop := event_loop.get()) is not None:
        with suppress(NotImplementedError):
            return asyncio.run_coroutine_threadsafe(acall(), loop).result()
    try:
        return call()
    except NotImplementedError:  # LangGraph's server hides its saver's synchronous methods
        loop = find_other_loop()
        return (
            asyncio.run(acall()) if loop is None else asyncio.run_coroutine_threadsafe(acall(), loop).result()
        )


class ThreadSandbox:
    """The sandbox of one thread, which this process holds until the end of `open_sandbox`, or of the run.

    A state is an id that a checkpoint keeps, by default in the channel `sandbox_state`. Every method that takes one
    first makes the sandbox match it, so that a resumed, forked or rewound thread finds its files and shell variables.
    Without an id, it is the base of the spec.

    Example:
        >>> from langgraph_takeover.integrations import open_sandbox
        >>> with open_sandbox(home, "own-graph", sandbox=sandbox_spec) as work:
        ...     first = work.act("one", lambda box: box.run("x=1; pwd", timeout_s=10).exit_code, state=None)
        ...     work.enter(first.state).run("echo $x", timeout_s=10).output
        '1\\n'
    """

    def __init__(
        self,
        session: Session,
        saver: BaseCheckpointSaver[str] | None,
        home: Home,
        merge: MergePolicy = "raise",
    ) -> None:
        self._home, self._policy = home, merge
        self._merged: dict[str, str] = {}
        """Merged states, by the text of the states that were merged."""
        self.thread = session.thread
        self._saver = saver
        self.session = session
        """The session behind it, for the integrations of this package."""
        self._claims_lock = Lock()
        self._claimed_step = ""
        self._claims: dict[EffectKey, tuple[object, int]] = {}
        """The keys that tasks of the newest step have used, each with the execution that did."""
        self.last_messages: set[str] = set()
        """Ids of the messages with which agents of this process ended their turns in the sandbox."""
        self._kept: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        watch_runs().add_listener(self)

    @property
    def saver(self) -> BaseCheckpointSaver[str]:
        """The checkpointer to compile the graph with. It writes only to this thread, and only while this process holds it.

        From `Sandboxes`: the one that the running graph was compiled with. Raises ThreadNotFoundError without one.
        """
        found = self._find_saver()
        if found is None:
            raise ThreadNotFoundError(
                f"thread {self.thread!r}: no graph with a checkpointer runs here (compile it with checkpointer=…, and call "
                "this in one of its nodes or tools)"
            )
        return found

    def end_run(self, run: object) -> None:
        """Let the next run on the thread repeat what this one could not save: the run has ended with the error."""
        if watch_runs().has_thread(run, self.thread):
            self.session.pending.forget_failure()

    def _find_saver(self) -> BaseCheckpointSaver[str] | None:
        return self._saver or find_checkpointer()

    def current(self, state: Any = None) -> ThreadSandbox:
        """Return itself: integrations take a thread's sandbox, or `Sandboxes`, which have one for each."""
        return self

    async def acurrent(self, state: Any = None) -> ThreadSandbox:
        return self

    @contextmanager
    def open_beside(self, thread: str) -> Iterator[ThreadSandbox]:
        """Hold another thread of the home, with a sandbox of the same specification."""
        session = self.session
        options = session.snapshot_every, self._policy, session.lease.ttl_s
        with _open_sandbox(self._home, thread, session.spec, *options) as work:
            yield work

    @property
    def handoff_request(self) -> str | None:
        """Why `home.request_handoff` asks this thread's graph to hand over, as of its last act; None without a request.

        `SandboxMiddleware` answers requests. A node of another graph ends its work, and calls `answer_handoff_request`.
        """
        return self.session.handoff_request

    def answer_handoff_request(self) -> None:
        """Mark the request as done. Raises FencedError."""
        self.session.answer_handoff_request()

    def list_states(self) -> frozenset[str]:
        """List the thread's states that have a snapshot."""
        return journal.list_state_ids(self.session.ledger, self.thread)

    def keep(self, owner: object, make: Callable[[], ResultT]) -> ResultT:
        """Return what an integration keeps for this thread; make it at the first call."""
        with self._claims_lock:
            if owner not in self._kept:
                self._kept[owner] = make()
            kept: ResultT = self._kept[owner]
            return kept

    def enter(self, state: str | None = None) -> Sandbox:
        """Return the sandbox in a state, for reading: what changes it belongs in `act`.

        Each call of the returned sandbox waits until no act runs, and finds that state, whatever acts came between.
        Raises SnapshotNotFoundError, SnapshotCorruptError and SandboxUnavailableError; ActConflictError inside an act;
        MergeConflictError; and SandboxStateLostError for a node without a state, if the thread has one.
        """
        return self.session.view_state(self._find_start(state))

    def start(self, state: str | None = None) -> str:
        """Return the id of a new thread's first state: `state`, or that of the base. Raises what `enter` raises."""
        self._find_start(None)
        return state or self.session.start_run(find_graph_task())

    def _find_start(self, state: str | None) -> str:
        """Return the state to begin in: the base, if a graph has none yet. Raises SandboxStateLostError."""
        graph_task = find_graph_task()
        if state:
            if graph_task is not None and state != BASE_STATE:
                self._require_returned(graph_task, state)
            return self.resolve_state(state)
        if graph_task is not None and (lost := self._find_lost_state(graph_task)) is not None:
            raise SandboxStateLostError(
                f"thread {self.thread!r}: this node has no {CHANNEL}, but the thread is in state {lost} (inherit the graph's "
                f"state from SandboxState, pass {CHANNEL} to a graph that a node or tool calls, or pass state={BASE_STATE!r} "
                "to begin anew; repair() restores a lost state)"
            )
        return BASE_STATE

    def resolve_state(self, state: str) -> str:
        """Return one state: of what several branches left, their merge.

        Raises MergeConflictError, and SnapshotNotFoundError for states that have no snapshot or no common ancestor.
        """
        if len(split_state(state)) == 1:
            return state
        self.session.settle()
        if state not in self._merged:
            self._merged[state] = resolve_state(self.session, state, self._policy)
        return self._merged[state]

    def list_conflicts(self, state: str) -> tuple[BranchConflict, ...]:
        """Return the conflicts of branches that the policy resolved in a state, each with what is left of it.

        Raises what `resolve_state` raises.
        """
        return list_conflicts(self.session, self.resolve_state(state), split_state(state))

    def _require_returned(self, graph_task: GraphTask, state: str) -> None:
        """Raise SandboxStateLostError if a node of an earlier step changed the sandbox and returned no state."""
        moves = [
            each
            for each in journal.list_moves(self.session.ledger, self.thread)
            if each.step != graph_task.step
        ]
        known = {*split_state(state), *(text for text, each in self._merged.items() if each == state)}
        if {*list_last_states(moves)} <= {part for each in known for part in split_state(each)}:
            return
        before, stored = moves[0].step, self._load_step(graph_task.step, may_wait=True)
        if stored is None or stored.checkpoint["channel_values"].get(CHANNEL) not in known:
            return
        while (
            stored is not None and stored.parent_config is not None and str(stored.checkpoint["id"]) > before
        ):
            source, parent = (
                stored.metadata.get("source"),
                stored.parent_config["configurable"]["checkpoint_id"],
            )
            if source not in ("loop", "input"):
                return  # a fork begins where somebody chose
            if parent == before:
                nodes = {each.node for each in moves}
                # A new input drops unfinished nodes.
                silent = nodes - self._list_returning(parent, nodes) if source == "loop" else set()
                if silent:
                    raise SandboxStateLostError(
                        f"thread {self.thread!r}: node {min(silent).partition(':')[0]!r} changed the sandbox, but returned no "
                        f"{CHANNEL} (return the state of its last act, or the state before to drop its changes)"
                    )
                return
            given = stored.checkpoint["channel_values"].get(CHANNEL)
            stored = load_checkpoint(self.saver, self._config_at(parent))
            if stored is not None and stored.checkpoint["channel_values"].get(CHANNEL) != given:
                return  # no act of this step made the state: somebody chose it

    def _list_returning(self, step: str, nodes: set[str]) -> set[str]:
        """List the nodes of a step that returned a state. LangGraph may still be saving what they returned."""
        ends_at = time.monotonic() + _SAVING_S
        while True:
            stored = load_checkpoint(self.saver, self._config_at(step))
            writes = (stored.pending_writes if stored is not None else None) or ()
            tasks = {task for task, channel, value in writes if channel == CHANNEL and value}
            returning = {each for each in nodes if each.partition(":")[2] in tasks}
            if returning == nodes or time.monotonic() > ends_at:
                return returning
            time.sleep(_SAVING_POLL_S)

    def find_left_state(self, state: str, name: str) -> str | None:
        """Return what the running task, and graphs that it called, made of a state of this step; None if nothing.

        A conflict of the state with those of other tasks then shows `name`.
        """
        graph_task = find_graph_task()
        if graph_task is None:
            return None
        moves = journal.list_moves(self.session.ledger, self.thread)
        if not any(graph_task.includes(each.place) for each in moves):
            return None
        if self.session.snapshot_every == "step":  # a killed process may not have saved what it had journaled
            moves = tuple(each for each in moves if self.session.can_enter_state(each.state_after))
        before = self.resolve_state(state)
        parents = journal.list_parents(self.session.ledger, self.thread)
        left = find_left_state(moves, graph_task, before, parents)
        if left is not None and len(split_state(left)) == 1:
            named = Move(graph_task.name_place(name), name, graph_task.step, before, left)
            journal.record_move(self.session.lease, named)
        return left

    @contextmanager
    def explain_missing(self, state: str) -> Iterator[None]:
        """Name the nearest earlier state that has a snapshot in the error for one that has none any more."""
        try:
            yield
        except SnapshotNotFoundError as error:
            graph_task = find_graph_task()
            if graph_task is None or self.session.can_enter_state(state) or self._find_saver() is None:
                raise
            stored = load_checkpoint(self.saver, self._config_at(graph_task.step))
            while stored is not None:
                kept = stored.checkpoint["channel_values"].get(CHANNEL)
                if isinstance(kept, str) and kept and self._can_enter(kept):
                    raise SnapshotNotFoundError(
                        f"{error} (checkpoint {stored.checkpoint['id']} is the nearest before it that has one: state {kept})"
                    ) from error
                stored = load_checkpoint(self.saver, stored.parent_config) if stored.parent_config else None
            raise

    def _find_lost_state(self, graph_task: GraphTask) -> str | None:
        """Return the state of the thread that a task without a state would ignore, if there is one."""
        moves = journal.list_moves(self.session.ledger, self.thread)
        for move in moves:
            if move.step == graph_task.step and graph_task.compare(move.place) == "other":
                return move.state_after
        earlier = {move.step: move.state_after for move in moves if move.step != graph_task.step}
        if self._find_saver() is None:  # each run begins with an empty state
            begin = watch_runs().find_begin(find_run(), self.thread)
            return next((state for step, state in earlier.items() if begin and step > begin), None)
        stored = self._load_step(graph_task.step, may_wait=bool(earlier))
        if stored is None:  # of another thread, or in another saver
            return None
        if (state := stored.checkpoint["channel_values"].get(CHANNEL)) not in (None, "", BASE_STATE):
            return str(state)
        while earlier and stored is not None and stored.parent_config is not None:
            parent = stored.parent_config["configurable"]["checkpoint_id"]
            # A fork of a checkpoint does not include the step that began with it.
            if parent in earlier and stored.metadata.get("source") == "loop":
                return earlier[parent]
            stored = load_checkpoint(self.saver, self._config_at(parent))
        return None

    def _load_step(self, step: str, *, may_wait: bool) -> CheckpointTuple | None:
        """Return the checkpoint that a step began with; None without a checkpointer.

        By default, LangGraph saves it while the step's nodes run.
        """
        if self._find_saver() is None:
            return None
        ends_at = time.monotonic() + (_SAVING_S if may_wait else 0)
        while (
            stored := load_checkpoint(self.saver, self._config_at(step))
        ) is None and time.monotonic() < ends_at:
            time.sleep(_SAVING_POLL_S)
        return stored

    def _config_at(self, checkpoint: str | None = None) -> RunnableConfig:
        configurable = {"thread_id": self.thread, "checkpoint_ns": ""}
        return {"configurable": configurable | ({"checkpoint_id": checkpoint} if checkpoint else {})}

    def act(
        self,
        key: str,
        function: Callable[[Sandbox], Any],
        *,
        state: str | None,
        effects: CommandEffect = "anything",
    ) -> Act:
        """Call a function with the sandbox once, and return its result with the state after it.

        Args:
            key: name of the act among those of the same LangGraph task that begin in `state`, equal when the task runs
                again. Outside of a graph: among all acts of the thread that begin in `state`.
            function: must do all its work in the sandbox, and return JSON-like data.
            state: the state to begin in; None at the start. What parallel nodes make of one state is merged when the next
                act begins.
            effects: `nothing` for a function that only reads: it is repeated instead of recorded.

        If the process dies in the middle, the next run of the node restores the sandbox as it was before and calls the
        function again. If it dies later, the recorded result is returned. Raises what the function raises,
        ActResultError, FencedError, what `enter` raises, and ActConflictError for a key that a task repeats and for
        acts of one task at once.
        """
        self.session.require_no_act()
        self.session.stop.require_running()
        before = self._find_start(state)

        def operate(sandbox: Sandbox) -> _StoredAct:
            value = function(sandbox)
            changes = sandbox.changes()
            try:
                return _StoredAct(value=_JSON.validate_python(value), changes=changes)
            except ValidationError as error:
                raise ActResultError(
                    f"thread {self.thread!r}: act {key!r:.60} returned {type(value).__name__}, which cannot be stored "
                    "(return text, numbers, lists or dicts)"
                ) from error

        with (
            self._claim_key(before, key, is_recorded=effects != "nothing") as effect_key,
            self.explain_missing(before),
        ):
            stored, after = AbortableWork(
                self.session.stop,
                lambda: self.session.run_once(
                    effect_key, before, operate, _StoredAct.model_validate_json, effects
                ),
            ).run()
        return Act(stored.value, after, stored.changes)

    @contextmanager
    def _claim_key(self, state: str, key: str, *, is_recorded: bool) -> Iterator[EffectKey]:
        """Yield an act's key in the journal. Raises ActConflictError if the same execution of a task has used it."""
        graph_task = find_graph_task()
        if graph_task is None or not is_recorded:
            yield self.make_key(state, key)
            return
        effect_key = self._make_task_key(graph_task, state, key)
        execution = (graph_task.execution, graph_task.attempt)
        with self._claims_lock:
            if self._claimed_step != graph_task.step:
                self._claimed_step, self._claims = graph_task.step, {}
            if self._claims.get(effect_key) == execution:
                raise ActConflictError(
                    f"thread {self.thread!r}: the key {key!r:.60} repeats in one task, for acts that begin in one state "
                    "(give each act a key of its own)"
                )
            self._claims[effect_key] = execution
        try:
            yield effect_key
        except BaseException:  # it may be tried again
            with self._claims_lock:
                self._claims.pop(effect_key, None)
            raise

    def _make_task_key(self, graph_task: GraphTask, state: str, key: str) -> EffectKey:
        return self.make_key(state, key)._replace(task_id=f"{graph_task.step}:{graph_task.id}")

    def forget_act(self, key: str, state: str) -> None:
        """Let the running task make an act anew that a killed or earlier attempt made. Raises FencedError."""
        graph_task = find_graph_task()
        if graph_task is not None:
            effect_key = self._make_task_key(graph_task, state, key)
            with self._claims_lock:
                self._claims.pop(effect_key, None)
            self.session.forget_call(effect_key)

    async def aact(
        self,
        key: str,
        function: Callable[[Sandbox], Any],
        *,
        state: str | None,
        effects: CommandEffect = "anything",
    ) -> Act:
        """Like `act`, for nodes in an event loop: the function is called in a thread of the home.

        If the task is cancelled, the running command is ended, and the act is undone when the node runs again.

        Example:
            >>> import asyncio
            >>> async def read_note():
            ...     async with open_sandbox(home, "own-graph", sandbox=sandbox_spec) as work:
            ...         return await work.aact("read", lambda box: box.cwd(), state=None, effects="nothing")
            >>> asyncio.run(read_note()).state
            'base'
        """
        return await self.run_blocking(lambda: self.act(key, function, state=state, effects=effects))

    async def run_blocking(self, work: Callable[[], ResultT]) -> ResultT:
        """Return what the work returns in a thread of the home; a cancelled task ends the command that it runs."""
        abortable = AbortableWork(self.session.stop, work)
        return await self.session.workers.run("command", abortable.run, abortable.abort)

    async def run_in_own_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Like `run_blocking`, in a new thread: in the home's, calls that wait could block the call that they wait for."""
        abortable = AbortableWork(self.session.stop, work)
        pool = ThreadPoolExecutor(1, thread_name_prefix="own-graph")
        context = contextvars.copy_context()
        context.run(event_loop.set, asyncio.get_running_loop())
        try:
            return await run_in_pool(
                pool,
                abortable.run,
                end=lambda: Thread(target=abortable.abort, daemon=True).start(),
                context=context,
            )
        finally:
            pool.shutdown(wait=False)

    def make_key(self, state: str, key: str) -> EffectKey:
        """Return the key of a call in the journal, which all tasks of a step can look up; another step has another one."""
        graph_task = find_graph_task()
        task_id = journal.NO_TASK if graph_task is None else f"{graph_task.step}:{_CALLS}"
        return EffectKey(self.thread, task_id, f"{state}:{key}")

    def prune(self) -> None:
        """Delete the thread's history and its snapshots, except the newest checkpoint with all channels; records stay.

        Subgraphs keep what the newest checkpoint needs of them. Raises ThreadNotFoundError, FencedError, and
        SnapshotNotFoundError if the newest state has no snapshot.
        """
        newest = self._load_newest()
        for state in split_state(resume_state_id(newest, is_rerun=False)):
            if not self.session.can_enter_state(state):
                raise SnapshotNotFoundError(
                    f"thread {self.thread!r}: no snapshot of its newest state {state!r:.60} (call repair, then prune)"
                )
            if state != BASE_STATE:
                self.session.save_snapshot(state)
        saver: Saver = self.saver
        saver.prune_thread(self.thread)
        found = [
            each
            for each in saver.list({"configurable": {"thread_id": self.thread}})
            if each.config["configurable"].get("checkpoint_ns") or each.config == newest.config
        ]
        self.session.forget_snapshots(keep=self.list_needed_states(found))
        self._home.remove_unused_snapshots()

    def list_needed_states(self, found: Sequence[CheckpointTuple]) -> set[str]:
        """List the states with a snapshot that checkpoints, or calls of their unfinished steps, refer to."""
        ledger = self.session.ledger
        values = [(each.checkpoint["channel_values"], each.pending_writes) for each in found]
        text = JsonPlusSerializer(pickle_fallback=True).dumps_typed(values)[1]  # the saver's may encrypt
        needed = {each for each in journal.list_state_ids(ledger, self.thread) if each.encode() in text}
        for each in found:
            if not each.config["configurable"].get("checkpoint_ns"):
                needed |= {
                    *journal.list_states(ledger, self.thread, each.config["configurable"]["checkpoint_id"])
                }
                needed |= {
                    *list_merge_bases(self.session, split_state(resume_state_id(each, is_rerun=False)))
                }
        return needed | {*self._merged.values()}

    def repair(self, state: str | None = None) -> str:
        """Give the newest checkpoint a state of the sandbox, if its own is missing; return the state.

        Default: the state of the nearest earlier checkpoint that has one with a snapshot. The graph continues from there
        with the newest values of all other channels. Raises ThreadNotFoundError and SnapshotNotFoundError.
        """
        newest = self._load_newest()
        if state is None:
            now = newest.checkpoint["channel_values"].get(CHANNEL)
            if isinstance(now, str) and now and self._can_enter(now):
                return now
            state = self._find_earlier_state(newest)
        elif not self._can_enter(state):
            raise SnapshotNotFoundError(f"thread {self.thread!r}: no snapshot of state {state!r:.60}")
        fork_checkpoint(self.saver, newest, {CHANNEL: state})
        return state

    def _find_earlier_state(self, stored: CheckpointTuple | None) -> str:
        while stored is not None:
            found = stored.checkpoint["channel_values"].get(CHANNEL)
            if isinstance(found, str) and found and self._can_enter(found):
                return found
            stored = load_checkpoint(self.saver, stored.parent_config) if stored.parent_config else None
        return BASE_STATE

    def _can_enter(self, state: str) -> bool:
        return all(map(self.session.can_enter_state, split_state(state)))

    def _load_newest(self) -> CheckpointTuple:
        stored = load_checkpoint(self.saver, self._config_at())
        if stored is None:
            raise ThreadNotFoundError(
                f"thread {self.thread!r}: no graph has run on it (invoke one with checkpointer=work.saver)"
            )
        return stored

    def snapshot(self, state: str | None = None) -> Snapshot:
        """Return the snapshot of a state; its files are in `snapshot_directory`.

        Raises SnapshotNotFoundError, and ActConflictError inside an act.
        """
        self.session.require_no_act()
        return self.session.save_snapshot(self.resolve_state(state or BASE_STATE))

    def snapshot_directory(self, snapshot: Snapshot) -> Path:
        """Return the directory with the files of a snapshot."""
        return self.session.snapshot_directory(snapshot)

    def restore(self, snapshot: Snapshot, store: Path) -> str:
        """Bring a snapshot from elsewhere, such as a record's, into the thread; return the id of its state.

        `store` is the directory of its files. Raises SnapshotCorruptError and SandboxUnavailableError, and
        ActConflictError inside an act.
        """
        self.session.require_no_act()
        state = self.session.adopt_snapshot(snapshot, store)
        self.session.enter_state(state)
        return state


def check_options(policy: object, snapshot_every: object) -> None:
    """Raise SettingsError for an unknown policy, or unknown states to save."""
    if snapshot_every not in get_args(SnapshotEvery):
        raise SettingsError(
            f"snapshot_every: invalid value {snapshot_every!r:.60} (pass {', '.join(map(repr, get_args(SnapshotEvery)))})"
        )
    if not callable(policy) and policy not in get_args(get_args(MergePolicy)[0]):
        raise SettingsError(
            f"merge: invalid policy {policy!r:.60} (pass 'raise', 'markers', 'ours', 'theirs' or a function)"
        )


def open_sandbox(
    home: Home,
    thread: str,
    *,
    sandbox: SandboxSpec,
    snapshot_every: SnapshotEvery = "step",
    keep_every_step_s: float | None = None,
    merge: MergePolicy = "raise",
    lease_s: float = leases.TTL_S,
) -> OpenableContext[ThreadSandbox]:
    """Hold a thread, by `with` or `async with`, and yield its sandbox for the nodes of any graph; it ends with the block.

    With `snapshot_every="step"`, the default, every act that may have changed something is saved. With
    `keep_every_step_s`, snapshots of older steps are thinned beside the graph: `Home.thin_snapshots`. `merge` says what
    contradicting changes of parallel branches lead to: `raise`, `markers`, `ours` (the first branch's), `theirs`, or a
    function of the `BranchConflict`. `lease_s` is how long others wait for a holder on another host that no longer renews
    its lease. Raises ThreadHeldError, which names the holder, ThreadNameError and LedgerUnavailableError.

    Example:
        >>> from langgraph_takeover.integrations import open_sandbox
        >>> with open_sandbox(home, "own-graph", sandbox=sandbox_spec) as work:
        ...     done = work.act("note", lambda box: box.run("echo 1 > new.txt", timeout_s=10).exit_code, state=None)
        ...     print(done.value, [change.path for change in done.changes], work.enter(done.state).read_file("new.txt"))
        0 ['new.txt'] b'1\\n'
    """
    check_options(merge, snapshot_every)
    opening = _open_sandbox(home, thread, sandbox, snapshot_every, merge, lease_s, keep_every_step_s)
    return OpenableContext(opening, home.workers)


@contextmanager
def _open_sandbox(
    home: Home,
    thread: str,
    sandbox: SandboxSpec,
    snapshot_every: SnapshotEvery,
    merge: MergePolicy,
    lease_s: float,
    keep_every_step_s: float | None = None,
) -> Iterator[ThreadSandbox]:
    leases.check_thread(thread)
    require_graph(home.saver, thread, own=True)
    with home.open_session(
        thread, sandbox, snapshot_every=snapshot_every, keep_every_step_s=keep_every_step_s, lease_s=lease_s
    ) as (session, saver):
        saver.holds_back = True
        yield ThreadSandbox(session, saver, home, merge)
