"""One process's session on a thread: the lease, the one sandbox, and the state that the sandbox is in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, cast

from langgraph_takeover.base.failures import clean_up, end_block, get_logger, run_all
from langgraph_takeover.handoff.ledger import Lease, Ledger, LedgerUnavailableError, effects
from langgraph_takeover.handoff.ledger.effects import Effect, EffectKey, Move
from langgraph_takeover.handoff.ledger.leases import answer_request
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.records.process_facts import describe_command, describe_starts
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore, TaskBrief
from langgraph_takeover.handoff.records.verification import require_record
from langgraph_takeover.handoff.shell.command_effects import CommandEffect
from langgraph_takeover.handoff.trace.events import Event, compute_differences
from langgraph_takeover.nodes.model.window import MeasuredConversation
from langgraph_takeover.nodes.session.file_diffs import FileDiffs
from langgraph_takeover.nodes.session.graph_tasks import (
    ActConflictError,
    GraphTask,
    create_state_id,
    find_begun_checkpoints,
    find_checkpointer,
    find_graph_task,
    is_parallel,
    is_saved_at_exit,
)
from langgraph_takeover.nodes.session.observation import CallLog, Observation, TraceState
from langgraph_takeover.nodes.session.pending_states import PendingStates
from langgraph_takeover.nodes.session.state_store import (
    BASE_STATE,
    SnapshotEvery,
    SnapshotNotFoundError,
    StateStore,
)
from langgraph_takeover.nodes.session.thinning import Thinning
from langgraph_takeover.nodes.session.workers import StopSignal, Workers, default_workers
from langgraph_takeover.sandbox import SandboxManager, remove_stale_resources, start
from langgraph_takeover.sandbox.interface import (
    BackgroundProcess,
    FileChange,
    Sandbox,
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
)
from langgraph_takeover.sandbox.repository import RepositoryError, head_commit


class ActionResult(Protocol):
    """The result of an operation in a sandbox, as the journal of effects stores it."""

    @property
    def changes(self) -> tuple[FileChange, ...]: ...

    @property
    def shell_ended(self) -> bool: ...

    def model_dump_json(self) -> str: ...


ResultT = TypeVar("ResultT", bound=ActionResult)


class Closeable(Protocol):
    def close(self) -> None: ...


class _Act:
    """An operation that runs in a session's sandbox."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_running = True


_LOG = get_logger(__name__)
_TURN_POLL_S, _CLOSING_WAIT_S = 0.1, 5.0
_START_CALL = "start"
_act: ContextVar[_Act | None] = ContextVar("takeover_act", default=None)
"""The operation that the calling code belongs to, in whatever OS thread."""


class Session:
    """One process's exclusive access to one thread. No other process writes there, and no sandbox is left behind.

    Graph state carries the id of a sandbox state. `enter_state` makes the sandbox match it. An action leaves
    the sandbox in a new state, unless it cannot have changed anything. OS threads use the sandbox one after another; acts of
    parallel tasks of a user's graph get sandboxes of their own.

    Args:
        is_owner_unique: whether no other session can have a sandbox under the owner's name of `spec`.
        main: the session of the thread, for one that has a further sandbox of it; it closes this one.
    """

    def __init__(
        self,
        lease: Lease,
        spec: SandboxSpec,
        records: RecordStore,
        directory: Path,
        *,
        snapshot_every: SnapshotEvery = "step",
        workers: Workers | None = None,
        is_owner_unique: bool = False,
        main: Session | None = None,
    ) -> None:
        self.thread = lease.thread
        self.records = records
        self.workers = workers or default_workers()
        """The threads for work that would block an event loop."""
        self.is_closed = False
        """Whether the session has ended, although a node may still run in another thread."""
        self.companion: Closeable | None = None
        """Closed together with the sandbox: the process of an external agent, with its bridge."""
        self.lease = lease
        self._is_owner_unique = is_owner_unique
        self.has_unsaved = False
        """Whether calls outside of acts changed the sandbox since its state was saved."""
        self.thinning: Thinning | None = None
        """Deletes old snapshots beside the run."""
        self.surround_start: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Surrounds each start of the sandbox."""
        self._states = StateStore(lease, directory, spec.backend, snapshot_every)
        self._sandbox_manager = SandboxManager(spec)
        self._turn = threading.RLock()
        """Held by the OS thread that uses the sandbox."""
        self.pending: PendingStates = PendingStates() if main is None else main.pending
        """The states that are being saved while the model answers."""
        self._main = main or self
        self._branches: list[Session] = []
        self.max_sandboxes = 8
        """Number of sandboxes for acts of parallel tasks; further acts wait."""
        self._begun: dict[object, tuple[GraphTask | None, str]] = {}
        """The operations of a user's code that run or wait, each with the state that it was given."""
        self._begun_lock = threading.Lock()
        self._state_id: str | None = None
        """The state that the sandbox is in; None if unknown."""
        self._saving: Future[Snapshot] | None = None
        """Ends when that state is durable."""
        self._is_checked = True
        """Whether the sandbox has been compared with the run's changes since it was restored."""
        self._earlier_processes: tuple[BackgroundProcess, ...] | None = ()
        """What ran at the snapshot that was restored, until `start_processes`."""
        self._process_notice: tuple[str, ...] = ()
        """What became of it, until the agent has read it."""
        self.chosen_processes: dict[str, tuple[int, ...]] = {}
        """Under `ask`: the numbers of the processes of each state that a person chose."""
        self._trace_state: TraceState | None = None
        self.conversations: dict[str, MeasuredConversation] = {}
        """The conversation of each agent, by its name, as far as it was measured; while a node uses one, it is not here."""
        self.has_reported_repair = False
        """Whether the run has said that its endpoint gets repaired messages."""
        self.file_diffs = FileDiffs()
        self.calls = CallLog(lease)
        self.stop: StopSignal = StopSignal(lease, self._close_all_sandboxes) if main is None else main.stop

    # The sandbox

    @contextlib.contextmanager
    def take_turn(self) -> Iterator[None]:
        """Wait until no other OS thread uses the sandbox. Raises ActConflictError if that one waits for this one."""
        self._require_open()
        if not self._turn.acquire(blocking=False):
            self.require_no_act()
            while not self._turn.acquire(timeout=_TURN_POLL_S):
                self._require_open()
                self.stop.require_not_urgent()
        try:
            yield
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def take_place(self, state_id: str) -> Iterator[Session]:
        """Wait for a sandbox that no other OS thread uses, one in this state first; yield the session that has it.

        Outside of a graph, that is always this session.
        """
        found = self._find_place(state_id) if find_graph_task() is not None else None
        if found is None:
            with self.take_turn():
                yield self
            return
        try:
            yield found
        finally:
            found._turn.release()

    def _find_place(self, state_id: str) -> Session | None:
        """Return a session whose turn this OS thread now has; None if all are in use."""
        self._require_open()
        with self._begun_lock:
            places = [self, *self._branches]
            for place in sorted(places, key=lambda each: not each.is_in_state(state_id)):
                if place._turn.acquire(blocking=False):
                    return place
            if len(places) >= self.max_sandboxes or self._is_acting():
                return None
            branch = Session(
                self.lease,
                self._sandbox_manager.spec,
                self.records,
                self._states.directory,
                snapshot_every=self._states.snapshot_every,
                workers=self.workers,
                main=self,
            )
            branch.surround_start = self.surround_start
            branch._turn.acquire()
            self._branches.append(branch)
            return branch

    def note_wait(self, seconds: float) -> None:
        """Show in the thread's status that its run waits for its endpoint, if it does for a second or more."""
        if seconds >= 1:
            effects.note_wait(self.lease, seconds)

    def _require_open(self) -> None:
        if self.is_closed:
            raise SandboxUnavailableError(f"thread {self.thread!r} is closed here (open or resume it again)")

    def require_no_act(self) -> None:
        """Raise ActConflictError if an operation calls this that runs in the sandbox."""
        if self._is_acting():
            raise ActConflictError(
                f"thread {self.thread!r}: an act runs, and its function may use only the sandbox that it was given "
                "(read and act before or after it)"
            )

    def _is_acting(self) -> bool:
        act = _act.get()
        return act is not None and act.is_running and act.session._main is self._main

    def start_run(self, graph_task: GraphTask | None = None) -> str:
        """Return the id of a run's first state. With `step` it gets a snapshot, because a base may change later.

        Parallel tasks of a user's graph get the same.
        """
        with self.take_turn():
            if graph_task is not None:
                for move in effects.list_moves(self.ledger, self.thread):
                    is_beside = graph_task.compare(move.place) in ("same", "parallel")
                    is_start = move.call == _START_CALL and is_beside and move.step == graph_task.step
                    if is_start and self.can_enter_state(move.state_after):
                        return move.state_after
            sandbox = self.enter_state(BASE_STATE)
            if self._states.snapshot_every != "step":
                return BASE_STATE
            state_id = create_state_id()
            self._states.take_snapshot(sandbox, state_id, BASE_STATE)
            self._state_id = state_id
            if graph_task is not None:
                move = Move(graph_task.place, _START_CALL, graph_task.step, BASE_STATE, state_id)
                effects.record_move(self.lease, move)
            return state_id

    def view_state(self, state_id: str) -> Sandbox:
        """Return the sandbox in a state, for reading beside acts: each of its calls waits until no act runs.

        Raises what `enter_state` raises.
        """
        self.require_no_act()
        with self.take_place(state_id) as place:
            place.enter_state(state_id)
        return cast(Sandbox, _StateView(self, state_id))

    def can_restore_state(self, state_id: str) -> bool:
        """Whether a new sandbox can enter that state."""
        if state_id == BASE_STATE:
            return True
        self.pending.wait()
        return self._states.find(state_id) is not None

    def can_enter_state(self, state_id: str) -> bool:
        return self.is_in_state(state_id) or self.can_restore_state(state_id)

    def is_in_state(self, state_id: str) -> bool:
        """Whether the sandbox is in that state already, and saving it has not failed."""
        saving = self._saving
        is_lost = saving is not None and saving.done() and saving.exception() is not None
        return state_id == self._state_id and not is_lost

    def enter_state(self, state_id: str, task: TaskBrief | None = None) -> Sandbox:
        """Return the sandbox in a state; with a task, its base must have the task's commit.

        Raises SnapshotNotFoundError, SnapshotCorruptError or SandboxUnavailableError.
        """
        with self.take_turn():
            return self._enter_state(state_id, task)

    def _enter_state(self, state_id: str, task: TaskBrief | None) -> Sandbox:
        self._require_state(state_id)
        self._require_saved(state_id)
        if state_id == self._state_id:
            return self._sandbox_manager.sandbox()
        self.pending.wait()
        self.close_sandbox()
        with self.surround_start():
            sandbox = self._start_base(task) if state_id == BASE_STATE else self._restore_state(state_id)
        if self.is_closed:  # meanwhile: the caller left the stream, and this node ran on in its thread
            self.close_sandbox()
        self._require_open()
        if self.stop.is_urgent:
            self.close_sandbox()
        self.stop.require_not_urgent()
        self._state_id = state_id
        return sandbox

    def has_checked_state(self, state_id: str) -> bool:
        """Whether the sandbox is in that state, and has been compared since it was restored."""
        return state_id == self._state_id and self._is_checked

    def enter_checked_state(self, state_id: str, check: Callable[[Sandbox], None]) -> Sandbox:
        """Enter a state; after a restore, `check` compares the sandbox once and raises if it has lost changes.

        Raises what `enter_state` and `check` raise.
        """
        with self.take_turn():
            sandbox = self._enter_state(state_id, None)
            if not self._is_checked:
                try:
                    check(sandbox)
                except BaseException:
                    self.close_sandbox()
                    raise
                self._is_checked = True
            return sandbox

    def _require_state(self, state_id: object) -> None:
        if not isinstance(state_id, str) or not state_id:
            raise SnapshotNotFoundError(
                f"thread {self.thread!r}: {state_id!r:.60} is not a state of the sandbox (pass the state of an act; if a "
                "checkpoint has none, call ThreadSandbox.repair)"
            )

    def keep_state(self, state_id: str) -> None:
        """Note that an operation that raised has left the sandbox in this state."""
        self._state_id = state_id

    def _start_base(self, task: TaskBrief | None) -> Sandbox:
        self._is_checked = True
        sandbox = self._sandbox_manager.sandbox()
        if task is None:
            return sandbox
        try:
            commit = head_commit(sandbox)
        except RepositoryError as error:
            raise SnapshotNotFoundError(
                f"the base of task {task.id} no longer has a repository: {error}"
            ) from error
        if commit != task.base_commit:
            raise SnapshotNotFoundError(
                f"the base of task {task.id} is at commit {commit[:12]} now, but the thread began at "
                f"{task.base_commit[:12]}; pass the sandbox that it began with"
            )
        return sandbox

    @property
    def has_image(self) -> bool:
        """Whether the sandbox starts from an image, and so has a file system of its own."""
        return self._sandbox_manager.spec.image is not None

    def open_base(self) -> Sandbox:
        """Start a second sandbox from the base, which the caller closes. Raises SandboxUnavailableError."""
        return start(self._sandbox_manager.spec)

    def _restore_state(self, state_id: str) -> Sandbox:
        snapshot = self._states.load(state_id)
        self._is_checked = False
        sandbox = self._sandbox_manager.restore(snapshot, self._states.snapshot_directory(snapshot))
        self._earlier_processes = sandbox.earlier_processes
        return sandbox

    # Background processes

    def list_processes_to_choose(self, state_id: str) -> tuple[BackgroundProcess, ...]:
        """Under `ask`: what ran in a state and does not run yet, if no person has chosen from it."""
        if self.spec.restart_processes != "ask" or state_id in (BASE_STATE, *self.chosen_processes):
            return ()
        if state_id == self._state_id:
            return self._earlier_processes or ()
        self.pending.wait()
        snapshot = self._states.find(state_id)
        return (snapshot.processes if snapshot is not None else None) or ()

    def start_processes(self) -> None:
        """Start what ran at the snapshot that the sandbox was restored from, as the spec says; once for each restore.

        A program that works in the sandbox calls this first: before that, the files are as they were.
        """
        if self._earlier_processes == ():
            return
        with self.take_turn():
            earlier, state_id = self._earlier_processes, self._state_id
            sandbox = self._sandbox_manager.current
            if earlier == () or sandbox is None or state_id is None:
                return
            self._earlier_processes = ()
            self._start_processes(sandbox, earlier, state_id)

    def _start_processes(
        self, sandbox: Sandbox, earlier: tuple[BackgroundProcess, ...] | None, state_id: str
    ) -> None:
        policy = self.spec.restart_processes
        chosen = self.chosen_processes.get(state_id, ()) if policy == "ask" else range(len(earlier or ()))
        wanted = [each for number, each in enumerate(earlier or ()) if number in chosen and policy != "never"]
        starts = sandbox.start_processes(wanted)
        for each in starts:
            if each.problem:
                _LOG.warning("thread %r: %s: %s", self.thread, describe_command(each.process), each.problem)
        self._process_notice = describe_starts(earlier, starts)

    def take_process_notice(self) -> tuple[str, ...]:
        """Return what became of the processes of the restored snapshot, one line each, to the first caller."""
        notice, self._process_notice = self._process_notice, ()
        return notice

    def end_command(self) -> None:
        """End the command that runs in the sandbox, from another OS thread; it ends as after a time-out."""
        for place in (self, *self._branches):
            sandbox: Any = place._sandbox_manager.current
            if sandbox is not None:
                sandbox.end_command()

    def close_sandbox(self) -> None:
        """Close the sandbox, so that a state is restored when it is entered."""
        self._state_id, self._saving, self.has_unsaved = None, None, False
        self._earlier_processes, self._process_notice = (), ()
        if self.companion is not None:
            self.companion.close()
            self.companion = None
        self._sandbox_manager.close()

    def _close_all_sandboxes(self) -> None:
        with clean_up(*(each.close_sandbox for each in self._branches)):
            self.close_sandbox()

    def count_sandboxes(self) -> int:
        """Return the number of its sandboxes that run."""
        return sum(each._sandbox_manager.current is not None for each in (self, *self._branches))

    def free_sandboxes(self) -> int:
        """Close sandboxes that nothing uses and whose state can be restored; return their number."""
        return sum(each._free_sandbox() for each in (*self._branches, self))

    def _free_sandbox(self) -> bool:
        if not self._turn.acquire(blocking=False):
            return False
        try:
            state = self._state_id
            is_saved = state is not None and self.can_restore_state(state) and not self.has_unsaved
            if self._sandbox_manager.current is None or not is_saved:
                return False
            self.close_sandbox()
            return True
        finally:
            self._turn.release()

    # Actions

    def act(
        self,
        task_id: str,
        call_id: str,
        state_id: str,
        task: TaskBrief,
        operation: Callable[[Sandbox], Observation],
        effect: CommandEffect,
    ) -> tuple[Observation, str]:
        """Run an agent's action once: `run_once`, by the ids of LangGraph's task and of the call."""
        key, parse_result = EffectKey(self.thread, task_id, call_id), Observation.model_validate_json
        self.settle()
        with self.take_turn():
            return self._run_once(
                key, state_id, operation, parse_result, effect, task, is_deferred=self._can_defer()
            )

    def settle(self) -> None:
        """Wait until the states of earlier acts, and the checkpoints that the running task follows from, are durable.

        Raises what saving them raised. Whatever acts calls this first.
        """
        self.pending.settle(find_begun_checkpoints(), find_graph_task())

    def _can_defer(self) -> bool:
        """Whether the running graph's saver waits for this thread's states."""
        find_pending = getattr(find_checkpointer(), "find_pending", None)
        return (
            find_pending is not None and find_pending(self.thread) is self.pending and not is_saved_at_exit()
        )

    def run_once(
        self,
        key: EffectKey,
        state_id: str,
        operation: Callable[[Sandbox], ResultT],
        parse_result: Callable[[str], ResultT],
        effect: CommandEffect,
        *,
        is_deferred: bool = False,
    ) -> tuple[ResultT, str]:
        """Run an operation once in a sandbox state; return its result and the state after it.

        If deferred, the state may still be being saved afterwards: the caller uses the result only for the graph's state.

        A repeated call (same key) returns the recorded result. A call that was interrupted is undone, by restoring the
        state before it, and run again. Operations without effect are not recorded: a repetition shows the same. Raises
        FencedError, SnapshotNotFoundError, ActConflictError, and RunStoppedError after a stop at once.
        """
        graph_task = find_graph_task()
        self.require_no_act()
        self.settle()
        with (
            self.stop.explain(),
            self._begin(key, graph_task, state_id, effect),
            self.take_place(state_id) as place,
        ):
            place._require_state(state_id)
            return place._run_once(
                key,
                state_id,
                operation,
                parse_result,
                effect,
                graph_task=graph_task,
                is_deferred=is_deferred and self._can_defer(),
            )

    @contextlib.contextmanager
    def _begin(
        self, key: EffectKey, graph_task: GraphTask | None, state_id: str, effect: CommandEffect
    ) -> Iterator[None]:
        """Raise ActConflictError for an operation beside one from the same state, unless their tasks are parallel."""
        mark = object()
        with self._begun_lock:
            others = [task for task, state in self._begun.values() if state == state_id]
            if effect != "nothing":
                self._begun[mark] = graph_task, state_id
        try:
            if effect != "nothing" and any(not is_parallel(graph_task, other) for other in others):
                recorded = effects.find(self.ledger, key)
                if recorded is None or not self._has_usable_result(recorded):
                    raise ActConflictError(
                        f"thread {self.thread!r}: acts of one task run at once and begin in one state, so that each would "
                        "lack the changes of the others (wait for each and pass its state on, or use nodes or Send)"
                    )
            yield
        finally:
            with self._begun_lock:
                self._begun.pop(mark, None)

    def _run_once(
        self,
        key: EffectKey,
        state_id: str,
        operation: Callable[[Sandbox], ResultT],
        parse_result: Callable[[str], ResultT],
        effect: CommandEffect,
        task: TaskBrief | None = None,
        graph_task: GraphTask | None = None,
        *,
        is_deferred: bool = False,
    ) -> tuple[ResultT, str]:
        self._require_saved(state_id)
        result = None
        if effect == "nothing":
            sandbox = self.enter_state(state_id, task)
            self.start_processes()
            result = self._run_operation(operation, sandbox)
            if not result.changes and not result.shell_ended:
                return result, state_id
            # It had an effect after all: for example, a command's name is an alias here.
            self._state_id, effect = None, "anything"
        # The order is what makes a crash safe: journal the begin, run, save the state, journal the end.
        recorded = effects.begin(self.lease, key, state_id)
        if recorded is not None:
            if self._has_usable_result(recorded):
                return parse_result(str(recorded.result)), str(recorded.state_after)
            self.close_sandbox()
            result = None
        sandbox = self._sandbox_manager.sandbox() if result else self.enter_state(state_id, task)
        self.start_processes()
        self._state_id = None
        result = result or self._run_operation(operation, sandbox)
        # The command's end may be that of its sandbox.
        self._require_open()
        self.stop.require_not_urgent()
        after, saving = self._states.save_state_after(sandbox, state_id, effect, changes=result.changes)
        if saving is not None and is_deferred:
            self._saving = saving
            self.pending.add(saving, find_begun_checkpoints(), find_graph_task())
        elif saving is not None:
            saving.result()
        self._state_id = after
        move = None
        if graph_task is not None and after != state_id:
            move = Move(graph_task.place, key.call, graph_task.step, state_id, after)
        # A result whose state never became durable does not count: the call is repeated.
        effects.end(self.lease, key, after, result.model_dump_json(), move)
        if (thinning := self._main.thinning) is not None:
            thinning.begin_if_due()
        return result, after

    def _require_saved(self, state_id: str) -> None:
        """Wait until the state that the sandbox is in is durable. If it is wanted, raise what saving it raised."""
        saving, self._saving = self._saving, None
        if saving is not None and (error := saving.exception()) is not None:
            is_wanted = state_id == self._state_id
            self.close_sandbox()
            if is_wanted:
                raise error

    def record_call(
        self, key: EffectKey, state_before: str, state_after: str, result: str, *, name: str | None = None
    ) -> None:
        """Record a call that consists of recorded acts, so that later calls find the state after it.

        With `name`, which a conflict then shows, as a change of the sandbox by the running task of a user's graph.
        """
        graph_task, move = find_graph_task(), None
        if name is not None and graph_task is not None and state_after != state_before:
            move = Move(graph_task.name_place(name), key.call, graph_task.step, state_before, state_after)
        effects.begin(self.lease, key, state_before)
        effects.end(self.lease, key, state_after, result, move)

    def forget_call(self, key: EffectKey) -> None:
        """Forget a recorded call, which another one replaces. Raises FencedError."""
        effects.forget(self.lease, key)

    def _has_usable_result(self, recorded: Effect) -> bool:
        """Whether a recorded call ended in a state that can be entered."""
        if recorded.result is None or recorded.state_after is None:
            return False
        return self.can_enter_state(recorded.state_after)

    def _run_operation(self, operation: Callable[[Sandbox], ResultT], sandbox: Sandbox) -> ResultT:
        act = _Act(self)
        token = _act.set(act)
        try:
            return operation(sandbox)
        except SandboxUnavailableError:
            # If another process took the thread over, it ended the sandbox: FencedError names the cause.
            with self.hold_lease():
                raise
        finally:
            act.is_running = False
            _act.reset(token)

    # Snapshots

    def save_snapshot(self, state_id: str) -> Snapshot:
        """Return the snapshot of a state; take it if the sandbox is in that state and has none.

        Raises SnapshotNotFoundError if the sandbox is in another state by now.
        """
        self.pending.settle()
        with self.take_turn():
            if state_id == BASE_STATE:  # every spec has its own base, so its snapshot gets an id of its own
                return self._states.take_snapshot(self.enter_state(BASE_STATE), create_state_id())
            if (snapshot := self._states.find(state_id)) is not None:
                return snapshot
            return self._states.take_snapshot(self.enter_state(state_id), state_id)

    def find_snapshot(self, state_id: str) -> Snapshot | None:
        """Return the snapshot of a state, if it has one."""
        self.pending.wait()
        return self._states.find(state_id)

    def create_state(
        self, state_id: str, parent: str, make: Callable[[Path], Snapshot | None]
    ) -> Snapshot | None:
        """Save the snapshot that a function makes in a directory as a state of the thread; nothing if it makes none."""
        with self._states.open_part() as part:
            if (snapshot := make(part)) is not None:
                self._states.store(part, snapshot, state_id, parent)
            return snapshot

    def save_current_state(self) -> None:
        """Save a snapshot of the sandbox's current state, if that is known and not the base."""
        if (
            self._states.snapshot_every != "never"
            and self._state_id is not None
            and self._state_id != BASE_STATE
        ):
            self.save_snapshot(self._state_id)

    def forget_snapshots(self, *, keep: Collection[str] = ()) -> None:
        """Forget the thread's states except the base and `keep`; records are not affected."""
        self._require_open()
        self.pending.wait()
        self._states.forget(keep=keep)

    @contextlib.contextmanager
    def forget_everything(self) -> Iterator[None]:
        """Let nothing happen on the thread while the caller deletes it; then forget its sandbox too."""
        self.require_no_act()
        with self.take_turn():
            yield
            self.close_sandbox()
            self._trace_state, self.file_diffs = None, FileDiffs()

    def snapshot_directory(self, snapshot: Snapshot) -> Path:
        """The directory with the files of a snapshot."""
        return self._states.snapshot_directory(snapshot)

    def enter_record(self, record: HandoffRecord) -> str:
        """Restore a record's snapshot as a state of the thread, and return the state's id.

        Raises SnapshotCorruptError, also if the sandbox has lost what the record's trace or patch changed.
        """
        state_id = self.adopt_record(record)
        self.enter_state(state_id)
        self.enter_checked_state(state_id, lambda sandbox: require_record(sandbox, record))
        return state_id

    def adopt_record(self, record: HandoffRecord) -> str:
        """Add a record's snapshot to the thread's states, and return the state's id."""
        name = f"{record.id} {record.required_snapshot.digest}"
        return self._adopt(record.required_snapshot, self.records.directory(record.id), name)

    def adopt_snapshot(self, snapshot: Snapshot, store: Path) -> str:
        """Add a snapshot, whose files are in `store`, to the thread's states, and return the state's id."""
        return self._adopt(snapshot, store)

    def _adopt(self, snapshot: Snapshot, store: Path, name: str | None = None) -> str:
        self._require_open()
        return self._states.adopt_snapshot(snapshot, store, name)

    def share_states(self, source: str, ids: Collection[str]) -> None:
        """Add states of another thread of the home, under their ids. Raises FencedError."""
        self._require_open()
        self._states.share_states(source, ids)

    # Lease

    @contextlib.contextmanager
    def hold_lease(self) -> Iterator[None]:
        """Keep every other process from taking the thread meanwhile. Raises FencedError if one already has."""
        with self.lease.ledger.write_transaction() as connection:
            self.lease.require(connection)
            yield

    @property
    def spec(self) -> SandboxSpec:
        return self._sandbox_manager.spec

    @property
    def snapshot_every(self) -> SnapshotEvery:
        return self._states.snapshot_every

    @property
    def ledger(self) -> Ledger:
        """The ledger of leases, effects and handoffs."""
        return self.lease.ledger

    @property
    def handoff_request(self) -> str | None:
        """The reason of a pending handoff request from outside; None if none is pending."""
        return self.lease.handoff_request

    def answer_handoff_request(self) -> None:
        """Mark a pending handoff request as answered."""
        if self.handoff_request is not None:
            answer_request(self.lease)

    def explain_fencing(self) -> contextlib.AbstractContextManager[None]:
        """Turn every error into FencedError if another run has taken the thread."""
        return self.lease.explain_fencing()

    def _is_lease_lost(self) -> bool:
        try:
            return self.lease.is_lost()
        except LedgerUnavailableError:
            return True  # as far as this process knows; the next holder removes stale resources

    # Trace

    def update_trace_state(
        self,
        events: list[dict[str, Any]],
        task: TaskBrief,
        record_id: str | None,
        *,
        load: Callable[[dict[str, Any]], Event] = Event.model_validate,
    ) -> TraceState:
        """Return detector state and tree differences after these events; a taken-over record comes before them.

        `load` returns an event of the list, which the graph state may store in another form.
        """
        if self._trace_state is None or not self._trace_state.is_prefix_of(events):
            before = compute_differences(self.records.load(record_id).trace) if record_id else {}
            self._trace_state = TraceState(
                detectors.create_state(task.base_directories, task.workspace), before
            )
        self._trace_state.add_all(events, load)
        return self._trace_state

    def suspend(self) -> None:
        """Release the thread and keep the sandbox, until `resume` or `close`.

        Its state is saved before. If another process has taken the thread, the sandbox is closed.
        """
        try:
            if self.thinning is not None:
                self.thinning.finish()
            self.save_current_state()
            is_kept = not self._is_lease_lost()
        except BaseException:
            is_kept = False
            raise
        finally:
            self.lease.end()
            self._close_branches()
            if not is_kept:
                self.close_sandbox()
            if self._turn.acquire(timeout=_CLOSING_WAIT_S):  # the lease is over for another OS thread, too
                self._turn.release()
            self._release_lease()

    def _close_branches(self) -> None:
        """Close the further sandboxes; their states are saved."""
        branches, self._branches = self._branches, []
        for each in branches:
            each.is_closed = True
        if (error := run_all(*(each._close_sandbox_in_turn for each in branches))) is not None:
            raise error

    def _close_sandbox_in_turn(self) -> None:
        self.close_sandbox()
        if self._turn.acquire(timeout=_CLOSING_WAIT_S):  # another OS thread may be starting a sandbox
            self._turn.release()
            self.close_sandbox()

    def resume(self) -> None:
        """Continue after `suspend`; the caller has acquired the lease again."""
        self.pending.forget_failure()
        self.stop.begin_again()

    def close(self) -> None:
        """Close the sandbox and release the thread. Idempotent."""
        self.is_closed = True
        self.pending.wait()
        if self.thinning is not None:
            self.thinning.finish()
        # First of all: a node that still runs in another thread must not use a half-removed sandbox.
        self.lease.end()
        with clean_up(
            self._close_branches, self._remove_stale_resources, self._release_lease, self.pending.settle
        ):
            self._close_sandbox_in_turn()

    def _remove_stale_resources(self) -> None:
        if not self._is_owner_unique and self._is_lease_lost():
            return  # a process that took the thread over has a sandbox under the same owner name
        spec = self._sandbox_manager.spec
        try:
            remove_stale_resources(spec.backend, spec.owner, kept_images=None)
        except SandboxUnavailableError:
            if self._sandbox_manager.was_started:
                raise

    def _release_lease(self) -> None:
        # If the database is unavailable, the lease expires.
        with contextlib.suppress(LedgerUnavailableError):
            self.calls.close()
            self.lease.release()


class _StateView:
    """The sandbox in one state: each call waits for its turn, and restores the state if acts have left it."""

    def __init__(self, session: Session, state_id: str) -> None:
        self._session = session
        self._state_id = state_id

    def __getattr__(self, name: str) -> Any:
        with self._session.take_place(self._state_id) as place:
            value = getattr(self._enter(place), name)
        return self._make_call(name) if callable(value) else value

    def _make_call(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with self._session.take_place(self._state_id) as place:
                return getattr(self._enter(place), name)(*arguments, **named)

        return call

    def _enter(self, place: Session) -> Sandbox:
        self._session.require_no_act()
        return place.enter_state(self._state_id)

    def end_command(self) -> None:
        """End the running command, from another OS thread."""
        self._session.end_command()

    def close(self) -> None:
        with self._session.take_turn():
            if self._session.is_in_state(self._state_id):
                self._session.close_sandbox()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        end_block(self.close, *details)
