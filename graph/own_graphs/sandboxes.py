"""A sandbox for every thread of a graph that is compiled once: opened, kept, restored and closed behind it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.runtime import get_runtime

from langgraph_takeover.base.failures import end_block, get_logger, run_all
from langgraph_takeover.graph.checkpoints.inspection import require_graph, thread_config
from langgraph_takeover.graph.checkpoints.savers import build_fork
from langgraph_takeover.graph.home import Home, ThreadStatus, check_thinning
from langgraph_takeover.graph.own_graphs.active_runs import watch_runs
from langgraph_takeover.graph.own_graphs.guarded_saver import GuardedSaver
from langgraph_takeover.graph.own_graphs.held_threads import HeldThread, HeldThreads
from langgraph_takeover.graph.own_graphs.thread_sandbox import (
    ThreadSandbox,
    check_options,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from langgraph_takeover.graph.usage_errors import ThreadAdvancedError, ThreadNotFoundError
from langgraph_takeover.handoff.ledger import leases
from langgraph_takeover.handoff.ledger.leases import ThreadNameError
from langgraph_takeover.nodes.context.settings import SettingsError
from langgraph_takeover.nodes.session.graph_tasks import find_checkpointer, find_graph_task
from langgraph_takeover.nodes.session.pending_states import PendingStates
from langgraph_takeover.nodes.session.state_store import SnapshotEvery
from langgraph_takeover.nodes.session.workers import OpenableContext
from langgraph_takeover.sandbox.interface import SandboxSpec, SandboxUnavailableError
from langgraph_takeover.sandbox.snapshots.merging import MergePolicy

_LOG = get_logger(__name__)
_SAVING_S, _SAVING_POLL_S = 2.0, 0.01


class SandboxRequest(NamedTuple):
    """What a function that returns the specification of a thread's sandbox can use.

    Example:
        >>> from langgraph_takeover.integrations import SandboxRequest, Sandboxes
        >>> def choose(request: SandboxRequest):
        ...     user = request.config["configurable"]["user"]
        ...     return sandbox_spec.model_copy(update={"owner": f"user-{user}"})
        >>> Sandboxes(home, choose).close()
    """

    thread: str
    config: RunnableConfig
    """The config of the node or tool; empty outside of a graph."""
    context: Any
    """The context that the graph was invoked with, if any."""
    state: Any
    """The state that the node or tool was given, if the caller passed it."""


class _Warm(NamedTuple):
    """A thread's sandbox between its runs."""

    work: ThreadSandbox
    spec: SandboxSpec


class Sandboxes(HeldThreads):
    """A sandbox for every thread of a compiled graph.

    The thread comes from the run's config. A run holds its thread from its first call of `current` until it ends; another
    run on the thread waits, in whatever process it is. The sandbox is kept between runs, and the state in the channel
    `sandbox_state` is restored whenever another one came between.

    Args:
        home: the place of leases, journal and snapshots; any number of processes can share it.
        sandbox: the specification, or a function that returns that of a thread.
        max_open: number of sandboxes that run at once; the least recently used is closed first. A thread in use can exceed
            it.
        idle_s: how long a sandbox is kept after its last run, in seconds.
        wait_s: how long a run waits for another one on its thread, in seconds.
        snapshot_every, keep_every_step_s: which states are saved, and how long those of steps; see `open_sandbox`.
        merge: what contradicting changes of parallel branches lead to: `raise`, `markers`, `ours` (the first branch's),
            `theirs`, or a function of the `BranchConflict`.
        lease_s: how long others wait for a holder on another host that no longer renews its lease.

    Close it with `with`, `async with` or `close`.

    Example:
        >>> from langgraph.checkpoint.memory import InMemorySaver
        >>> from langgraph.graph import StateGraph
        >>> from langgraph_takeover.integrations import Sandboxes, SandboxState
        >>> sandboxes = Sandboxes(home, sandbox_spec)
        >>> def write_note(state: SandboxState) -> SandboxState:
        ...     act = sandboxes.current().act(
        ...         "note", lambda box: box.run("echo 1 >> note", timeout_s=10).exit_code, state=state.get("sandbox_state")
        ...     )
        ...     return {"sandbox_state": act.state}
        >>> builder = StateGraph(SandboxState).add_sequence([write_note]).set_entry_point("write_note")
        >>> graph = builder.compile(checkpointer=InMemorySaver())
        >>> for user in ("ann", "ben", "ann"):
        ...     end = graph.invoke({}, {"configurable": {"thread_id": user}})
        >>> with sandboxes.open("ann") as work:
        ...     work.enter(end["sandbox_state"]).read_file("note")
        b'1\\n1\\n'
        >>> sandboxes.close()
    """

    def __init__(
        self,
        home: Home,
        sandbox: SandboxSpec | Callable[[SandboxRequest], SandboxSpec],
        *,
        max_open: int = 8,
        idle_s: float = 600.0,
        wait_s: float = 30.0,
        snapshot_every: SnapshotEvery = "step",
        keep_every_step_s: float | None = None,
        merge: MergePolicy = "raise",
        lease_s: float = leases.TTL_S,
    ) -> None:
        if not isinstance(max_open, int) or max_open < 1:
            raise SettingsError(f"max_open: invalid number {max_open!r:.60} (pass 1 or more)")
        if not isinstance(sandbox, SandboxSpec) and not callable(sandbox):
            raise SettingsError(f"sandbox: invalid value {sandbox!r:.60} (pass a SandboxSpec, or a function)")
        check_options(merge, snapshot_every)
        super().__init__(home.ledger, idle_s=idle_s, wait_s=wait_s, lease_s=lease_s)
        self._home, self._spec = home, sandbox
        if keep_every_step_s is not None:
            check_thinning(keep_every_step_s)
        self._keep_every_step_s = keep_every_step_s
        self._max_open, self._snapshot_every, self._policy = max_open, snapshot_every, merge
        self._room = threading.Lock()
        self._starting = 0
        self._collected: set[tuple[str, str]] = set()
        self._has_said_memory = False
        self._finalizer = weakref.finalize(self, _close_all, self._threads)

    # For nodes and tools

    def current(self, state: Any = None) -> ThreadSandbox:
        """Return the sandbox of the thread whose node or tool calls this, or whose block of `open` the caller is in.

        `state` is the node's, for a function that returns the specification. Raises ThreadHeldError if another run holds
        the thread longer than `wait_s`, ThreadAdvancedError, ThreadNameError without a thread, and
        LedgerUnavailableError.
        """
        name = self._find_thread_name()
        run = self.find_caller(name)
        held = self.find_held(name, run)
        if held is None:
            held = self.hold(name, run)
            self._require_newest(held, run)
        return self._find_work(held, state)

    async def acurrent(self, state: Any = None) -> ThreadSandbox:
        """Like `current`, for nodes in an event loop."""
        name = self._find_thread_name()
        run = self.find_caller(name)
        held = self.find_held(name, run)
        if held is None:
            held = await self.ahold(name, run)
            await self._home.acall(self._require_newest, held, run)
        if held.kept is not None:
            return self._find_work(held, state)
        return await self._home.acall(self._find_work, held, state)

    def open(self, thread: str) -> OpenableContext[ThreadSandbox]:
        """Hold a thread outside of a graph, by `with` or `async with`, and yield its sandbox.

        Runs of graphs on this thread inside the block belong to it. Raises what `current` raises.
        """
        return _HeldBlock(self, thread, self._home.workers)

    def status(self, thread: str, *, saver: BaseCheckpointSaver[Any]) -> ThreadStatus:
        """Return the status of a thread whose checkpoints are in `saver`; see `Home.status`. Needs no lease.

        In an event loop: `await home.acall(sandboxes.status, thread, saver=saver)`. Raises ThreadNotFoundError.
        """
        self._home.require_thread(thread)
        return self._home.describe_status(thread, lambda: load_checkpoint(saver, thread_config(thread)))

    def prune(self, thread: str, *, saver: BaseCheckpointSaver[Any]) -> int:
        """Delete the snapshots that no checkpoint of a thread in `saver` needs; return how many no thread needs any more.

        Delete checkpoints first, for instance by `IncrementalSaver.prune`; `home.delete_thread` deletes all snapshots. In an
        event loop: by `home.acall`. Raises ThreadHeldError, and ThreadNotFoundError if the saver has no checkpoint.
        """
        self._home.require_thread(thread)
        with self.open(thread) as work:
            found = list_checkpoints(saver, {"configurable": {"thread_id": thread}}, "")
            if not found:
                raise ThreadNotFoundError(
                    f"thread not found: {thread!r} (this saver has no checkpoint of it; pass the graph's checkpointer)"
                )
            work.session.forget_snapshots(keep=work.list_needed_states(found))
            return self._home.remove_unused_snapshots()

    def guard(self, saver: BaseCheckpointSaver[Any]) -> BaseCheckpointSaver[Any]:
        """Return a checkpointer under which a run waits for the one before it, even before it reads.

        It reads and writes with the given saver. A run that lost its lease writes no checkpoint.
        """
        return GuardedSaver(saver, self)

    @contextmanager
    def open_beside(self, thread: str) -> Iterator[ThreadSandbox]:
        """Hold another thread; what the block's code calls does not belong to it."""
        with self.open_block(thread, object()) as work:
            yield work

    @contextmanager
    def open_block(self, thread: str, run: object) -> Iterator[ThreadSandbox]:
        """Hold a thread and yield its sandbox, in the block that `run` stands for."""
        with self.hold_block(thread, run) as held:
            yield self._find_work(held, None)

    def _find_thread_name(self) -> str:
        """Return the thread of the graph whose node or tool calls this, or else of the block. Raises ThreadNameError."""
        try:
            config = get_config()
        except RuntimeError as error:
            if (name := self.find_block_thread()) is not None:
                return name
            raise ThreadNameError(
                "no graph runs here (call this in a node or a tool; elsewhere: with sandboxes.open(thread) as work)"
            ) from error
        thread = config.get("configurable", {}).get("thread_id")
        if thread is None:
            raise ThreadNameError(
                'the run has no thread (invoke the graph with {"configurable": {"thread_id": …}})'
            )
        return str(thread)

    def _find_work(self, held: HeldThread, state: Any) -> ThreadSandbox:
        """Return the thread's sandbox; its specification is asked for once per opening."""
        kept: _Warm | None = held.kept
        if kept is None:
            with held.changed:
                if (kept := held.kept) is None:
                    kept = held.kept = self._create(held, state)
        return kept.work

    def _create(self, held: HeldThread, state: Any) -> _Warm:
        require_graph(self._home.saver, held.name, own=True)
        spec = (
            self._spec if isinstance(self._spec, SandboxSpec) else self._spec(_make_request(held.name, state))
        )
        if not isinstance(spec, SandboxSpec):
            raise SettingsError(
                f"thread {held.name!r}: the function for its sandbox returned {type(spec).__name__} (return a SandboxSpec)"
            )
        if (spec.backend, spec.owner) not in self._collected:
            self._collected.add((spec.backend, spec.owner))
            threading.Thread(target=self._remove_dead_sandboxes, args=(spec,), daemon=True).start()
        session = self._home.create_session(
            held.lease, spec, snapshot_every=self._snapshot_every, keep_every_step_s=self._keep_every_step_s
        )
        session.surround_start, session.max_sandboxes = self._make_room, self._max_open
        return _Warm(ThreadSandbox(session, None, self._home, self._policy), spec)

    def _remove_dead_sandboxes(self, spec: SandboxSpec) -> None:
        with suppress(SandboxUnavailableError):  # whoever needs a sandbox gets the error
            self._home.remove_dead_sandboxes(spec)

    # The newest checkpoint

    def _require_newest(self, held: HeldThread, run: object) -> None:
        """Raise ThreadAdvancedError if another run has saved checkpoints since this one loaded its own.

        Under a guarded saver that cannot happen. Otherwise the other run's newest checkpoint is made the newest again.
        """
        saver = find_checkpointer()
        if saver is None or isinstance(saver, GuardedSaver):
            return
        if isinstance(saver, InMemorySaver) and not self._has_said_memory:
            self._has_said_memory = True
            _LOG.warning(
                "thread %r: the graph's checkpoints are in memory; they are not fenced, and end with this process",
                held.name,
            )
        try:
            other = _find_overtaking(saver, held.name, run)
            if other is None:
                return
            save_checkpoint(saver, *build_fork(saver, other, {}))
            raise ThreadAdvancedError(
                f"thread {held.name!r}: another run has advanced it since this run began (invoke the graph again, or compile "
                "it with sandboxes.guard(saver), under which runs wait)"
            )
        except BaseException as error:
            run_all(lambda: self.release(held, run), error=error)
            raise

    # What remains between runs

    def find_pending(self, name: str) -> PendingStates | None:
        held = self.find_thread(name)
        return None if held is None or held.kept is None else held.kept.work.session.pending

    def resume_kept(self, thread: HeldThread) -> None:
        self._home.stop_stale_sandbox(thread.lease.previous_place)
        if thread.kept is not None:
            thread.kept.work.session.resume()

    def abort_kept(self, thread: HeldThread) -> None:
        if thread.kept is not None:
            thread.kept.work.session.stop.abort_all()

    def suspend_kept(self, thread: HeldThread) -> None:
        if thread.kept is not None:
            thread.kept.work.session.suspend()

    def is_needed(self, thread: HeldThread) -> bool:
        return thread.kept is not None and thread.kept.work.session.has_unsaved

    def close_kept(self, thread: HeldThread) -> None:
        if thread.kept is not None:
            thread.kept.work.session.close()

    @contextmanager
    def _make_room(self) -> Iterator[None]:
        """Close the least recently used sandboxes while one starts, so that at most `max_open` run."""
        with self._room:
            threads = sorted(self.list_threads(), key=lambda each: (each.run is not None, each.used_at))
            sessions = [each.kept.work.session for each in threads if each.kept is not None]
            excess = sum(each.count_sandboxes() for each in sessions) + self._starting + 1 - self._max_open
            for session in sessions:
                if excess <= 0:
                    break
                excess -= session.free_sandboxes()
            self._starting += 1
        try:
            yield
        finally:
            with self._room:
                self._starting -= 1

    # End

    def close(self) -> None:
        """Close all sandboxes. Idempotent; states and checkpoints remain."""
        self.end()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end_block(self.close, error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._home.workers.run("lifecycle", self.close, must_run=True)


class _HeldBlock(OpenableContext[ThreadSandbox]):
    """A block that holds a thread: what its code calls belongs to it."""

    def __init__(self, sandboxes: Sandboxes, thread: str, workers: Any) -> None:
        self._sandboxes, self._thread, self._run = sandboxes, thread, object()
        super().__init__(sandboxes.open_block(thread, self._run), workers)

    def __enter__(self) -> ThreadSandbox:
        work = super().__enter__()
        self._sandboxes.enter_block(self._thread, self._run)
        return work

    def __exit__(self, *details: Any) -> bool | None:
        self._sandboxes.leave_block(self._thread)
        return super().__exit__(*details)

    async def __aenter__(self) -> ThreadSandbox:
        work = await super().__aenter__()
        self._sandboxes.enter_block(self._thread, self._run)
        return work

    async def __aexit__(self, *details: Any) -> bool | None:
        self._sandboxes.leave_block(self._thread)
        return await super().__aexit__(*details)


def _make_request(thread: str, state: Any) -> SandboxRequest:
    config: RunnableConfig = {}
    context = None
    with suppress(RuntimeError):
        config = get_config()
        context = get_runtime().context
    return SandboxRequest(thread, config, context, state)


def _find_overtaking(saver: BaseCheckpointSaver[Any], name: str, run: object) -> CheckpointTuple | None:
    """Return the newest checkpoint that another run has saved since this run began; None without one."""
    graph_task, begin = find_graph_task(), watch_runs().find_begin(run, name)
    if graph_task is None or begin is None:
        return None
    ends_at = time.monotonic() + _SAVING_S
    while True:
        newer = {
            str(each.checkpoint["id"]): each for each in list_checkpoints(saver, thread_config(name), begin)
        }
        if not newer or graph_task.step in newer or graph_task.step <= begin or time.monotonic() > ends_at:
            break
        time.sleep(_SAVING_POLL_S)  # LangGraph saves this run's checkpoint while its nodes run
    step: str | None = graph_task.step
    while step is not None and (mine := newer.pop(step, None)) is not None:
        step = mine.parent_config["configurable"]["checkpoint_id"] if mine.parent_config else None
    return next((each for each in newer.values() if _has_worked(each, saver)), None)


def _has_worked(stored: CheckpointTuple, saver: BaseCheckpointSaver[Any]) -> bool:
    """Whether a node has ended on the way to a checkpoint: a run that waits has only stored its input."""
    if stored.metadata.get("source") == "input":
        return False
    if stored.pending_writes or stored.parent_config is None:
        return True
    before = load_checkpoint(saver, stored.parent_config)
    return before is None or before.metadata.get("source") != "input"


def _close_all(threads: Mapping[str, HeldThread]) -> None:
    """Release all threads and close what remains of them."""
    held = [*threads.values()]
    sessions = [each.kept.work.session for each in held if each.kept is not None]
    error = run_all(*(session.close for session in sessions), *(each.lease.release for each in held))
    if error is not None:
        raise error
