"""What a run holds while it works: its thread's lease, the one machine, and which state that machine is in."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from langgraph_takeover import sandbox
from langgraph_takeover.handoff.ledger import Lease, Ledger, LedgerUnavailableError, effects, snapshots
from langgraph_takeover.handoff.ledger.effects import EffectKey
from langgraph_takeover.handoff.ledger.leases import answer_request
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore, TaskBrief
from langgraph_takeover.handoff.shell.command_effects import CommandEffect
from langgraph_takeover.handoff.text.redaction import redact_known_secrets
from langgraph_takeover.handoff.trace.events import compute_differences
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.session.trace_state import TraceState
from langgraph_takeover.sandbox.interface import (
    Sandbox,
    SandboxSpec,
    SandboxUnavailableError,
    Snapshot,
    TakeoverError,
)
from langgraph_takeover.sandbox.lifecycle import SandboxManager
from langgraph_takeover.sandbox.repository.patches import RepositoryError, head_commit
from langgraph_takeover.sandbox.snapshots.archive import sync_directory
from langgraph_takeover.sandbox.snapshots.transfer import copy_to_store
from langgraph_takeover.sandbox.storage.removal import remove_tree

BASE_STATE = "base"
"""The id of the state that every machine of a spec starts in."""
SnapshotEvery = Literal["never", "point", "step"]
"""Which states of a machine are kept: every one, those of handoff points and of ends, or records' alone."""


class SnapshotNotFoundError(TakeoverError):
    """A checkpoint's machine can be entered no more, or not any longer as it was."""


class Session:
    """The hold of one process on one thread: nobody else writes there meanwhile, and no machine is left over.

    A machine's state has an id, which the graph's state carries. `enter` makes the machine match it; what an
    action leaves has another id, unless it can have changed nothing.
    """

    def __init__(
        self,
        lease: Lease,
        spec: SandboxSpec,
        records: RecordStore,
        directory: Path,
        *,
        snapshot_every: SnapshotEvery = "step",
    ) -> None:
        self.thread = lease.thread
        self.records = records
        self._lease = lease
        self._directory = directory
        self._snapshot_every = snapshot_every
        self._sandbox_manager = SandboxManager(spec)
        self._state_id: str | None = None
        self.is_closed = False
        """Whether the hold is over, although a node may still run in another thread."""
        self._trace_state: TraceState | None = None

    def enter_state(self, state_id: str, task: TaskBrief | None = None) -> Sandbox:
        """The machine, in that state. Raises SnapshotNotFoundError, SnapshotCorruptError or SandboxUnavailableError."""
        if state_id == self._state_id:
            return self._sandbox_manager.sandbox()
        self._close_sandbox()
        machine = self._start_base(task) if state_id == BASE_STATE else self._restore_state(state_id)
        if self.is_closed:  # meanwhile, by whoever left a stream whose node still runs in another thread
            self._close_sandbox()
            raise SandboxUnavailableError(f"thread {self.thread!r}: its run was closed; resume it")
        self._state_id = state_id
        return machine

    def start_run(self) -> str:
        """The id of the state that a run begins in: kept where every step is, because a base may change later."""
        machine = self.enter_state(BASE_STATE)
        if self._snapshot_every != "step":
            return BASE_STATE
        self._state_id = _create_state_id()
        self._take_snapshot(machine, self._state_id)
        return self._state_id

    def can_enter_state(self, state_id: str) -> bool:
        return (
            state_id in (BASE_STATE, self._state_id)
            or snapshots.find(self._lease.ledger, state_id) is not None
        )

    def act(
        self,
        task_id: str,
        call_id: str,
        state_id: str,
        task: TaskBrief,
        operation: Callable[[Sandbox], Observation],
        effect: CommandEffect,
    ) -> tuple[Observation, str]:
        """Do something to the machine in that state, once; what was seen, and the state it left.

        The same task and call get the result that was recorded. Something that had begun and not ended is
        undone before it is done again: its machine is left, and that of before entered. An action
        without effect is not recorded: repeating it shows the same. Raises FencedError.
        """
        key, seen = EffectKey(self.thread, task_id, call_id), None
        if effect == "nothing":
            seen = self._run_operation(operation, self.enter_state(state_id, task))
            if not seen.changes and not seen.shell_ended:
                return seen, state_id
            # A name that stands for something else here, or a process behind: it has an effect after all.
            self._state_id, effect = None, "anything"
        known = effects.begin(self._lease, key, state_id)
        if known is not None:
            after = known.state_after
            if known.result is not None and after is not None and self.can_enter_state(after):
                return Observation.model_validate_json(known.result), after
            self._close_sandbox()
            seen = None
        machine = self._sandbox_manager.sandbox() if seen else self.enter_state(state_id, task)
        self._state_id = None
        seen = seen or self._run_operation(operation, machine)
        after = self._save_state_after(machine, state_id, seen, effect)
        self._state_id = after
        effects.end(self._lease, key, after, seen.model_dump_json())
        return seen, after

    def save_snapshot(self, state_id: str) -> Snapshot:
        """The snapshot by which a state can be entered; the machine is frozen if it stands there unkept.

        Raises SnapshotNotFoundError when it stands elsewhere by now.
        """
        if state_id == BASE_STATE:  # which is another machine for another spec
            return self._take_snapshot(self.enter_state(BASE_STATE), _create_state_id())
        found = snapshots.find(self._lease.ledger, state_id)
        if found is not None:
            return found
        return self._take_snapshot(self.enter_state(state_id), state_id)

    def save_current_state(self) -> None:
        """Keep the state that the machine stands in, if it stands in one and ends are to be kept."""
        if self._snapshot_every != "never" and self._state_id is not None and self._state_id != BASE_STATE:
            self.save_snapshot(self._state_id)

    def forget_snapshots(self, *, keep: Collection[str] = ()) -> None:
        """No checkpoint of this thread can be entered any more but by its base or these; records stay as they are."""
        snapshots.remove(self._lease, snapshots.list_state_ids(self._lease.ledger, self.thread) - set(keep))

    def snapshot_directory(self, snapshot: Snapshot) -> Path:
        """The directory in which a kept state's snapshot lies."""
        return self._directory / snapshot_directory_name(snapshot)

    def adopt_snapshot(self, record: HandoffRecord) -> str:
        """Keep a record's machine as a state of this thread; its id."""
        machine_id = _create_state_id()
        snapshot = record.required_snapshot
        with self._lease.ledger.lock_snapshots():
            copy_to_store(snapshot, self.records.directory(record.id), self.snapshot_directory(snapshot))
            snapshots.save(self._lease, machine_id, snapshot)
        return machine_id

    @contextlib.contextmanager
    def hold_lease(self) -> Iterator[None]:
        """Nobody else gets the thread meanwhile. Raises FencedError where somebody has."""
        with self._lease.ledger.write_transaction() as connection:
            self._lease.require(connection)
            yield

    @property
    def ledger(self) -> Ledger:
        """Where handoffs stand, too."""
        return self._lease.ledger

    @property
    def handoff_request(self) -> str | None:
        """Why somebody outside wants this thread handed over; None if nobody does."""
        return self._lease.handoff_request

    def answer_handoff_request(self) -> None:
        """What somebody outside asked for has been done."""
        if self.handoff_request is not None:
            answer_request(self._lease)

    def update_trace_state(
        self, events: list[dict[str, Any]], task: TaskBrief, record_id: str | None
    ) -> TraceState:
        """What the detectors know after these events, and how the tree differs from its base."""
        if self._trace_state is None or not self._trace_state.is_prefix_of(events):
            before = compute_differences(self.records.load(record_id).trace) if record_id else {}
            self._trace_state = TraceState(
                detectors.create_state(task.base_directories, task.workspace), before
            )
        self._trace_state.add_all(events)
        return self._trace_state

    def close(self) -> None:
        """End the machine and let others onto the thread; may be called twice."""
        self.is_closed = True
        # A node that still runs in another thread must not keep a machine that is half removed.
        self._lease.end()
        try:
            self._close_sandbox()
            # Whoever has the thread by now has a machine under the same owner's name.
            if not self._is_lease_lost():
                sandbox.remove_stale_resources(
                    self._sandbox_manager.spec.backend, self._sandbox_manager.spec.owner, kept_images=None
                )
        finally:
            # Where the database is away, the lease ends with its time.
            with contextlib.suppress(LedgerUnavailableError):
                self._lease.release()

    def explain_fencing(self) -> contextlib.AbstractContextManager[None]:
        """Raise FencedError for whatever fails meanwhile because another run has taken the thread."""
        return self._lease.explain_fencing()

    def _is_lease_lost(self) -> bool:
        try:
            return self._lease.is_lost()
        except LedgerUnavailableError:
            return True  # as far as is known here; the next holder removes what is left

    def _run_operation(self, operation: Callable[[Sandbox], Observation], sandbox: Sandbox) -> Observation:
        try:
            return operation(sandbox)
        except SandboxUnavailableError:
            with self.hold_lease():  # whoever took the thread away has ended the machine
                raise

    def _close_sandbox(self) -> None:
        self._state_id = None
        self._sandbox_manager.close()

    def _start_base(self, task: TaskBrief | None) -> Sandbox:
        machine = self._sandbox_manager.sandbox()
        if task is None:
            return machine
        try:
            found = head_commit(machine)
        except RepositoryError as error:
            raise SnapshotNotFoundError(
                f"the base of task {task.id} holds no repository any more: {error}"
            ) from error
        if found != task.base_commit:
            raise SnapshotNotFoundError(
                f"the base of task {task.id} is at commit {found[:12]} now, but the thread began at "
                f"{task.base_commit[:12]}; give the sandbox that it began with"
            )
        return machine

    def _restore_state(self, state_id: str) -> Sandbox:
        snapshot = snapshots.find(self._lease.ledger, state_id)
        if snapshot is None:
            raise SnapshotNotFoundError(
                f"thread {self.thread}: the machine of this checkpoint ({state_id}) was not kept, or given back since"
            )
        return self._sandbox_manager.restore(snapshot, self.snapshot_directory(snapshot))

    def _save_state_after(
        self, sandbox: Sandbox, state_before: str, observation: Observation, effect: CommandEffect
    ) -> str:
        if effect == "anything" or observation.changes:
            after = _create_state_id()
            if self._snapshot_every == "step":
                self._take_snapshot(sandbox, after)
            return after
        state = redact_known_secrets(sandbox.shell_state())
        kept = snapshots.find(self._lease.ledger, state_before) if state_before != BASE_STATE else None
        if kept is not None and kept.shell_state == state:
            return state_before
        after = _create_state_id()
        if kept is not None and kept.backend == self._sandbox_manager.spec.backend:
            # Where a thawed machine lies elsewhere than the frozen one did, its shell speaks of that.
            told = {"shell_state": state, "workspace": sandbox.workspace}
            snapshots.save(self._lease, after, kept.model_copy(update=told))
        elif self._snapshot_every == "step":
            self._take_snapshot(sandbox, after)
        return after

    def _take_snapshot(self, sandbox: Sandbox, state_id: str) -> Snapshot:
        part = self._directory / f".freezing-{uuid.uuid4().hex}"
        part.mkdir(parents=True)
        try:
            snapshot = sandbox.snapshot(part, labels={"thread": self.thread, "machine": state_id}).result()
            with self._lease.ledger.lock_snapshots():
                target = self.snapshot_directory(snapshot)
                if not _is_complete(target, snapshot):
                    remove_tree(target)
                    part.rename(target)
                    sync_directory(self._directory)
                snapshots.save(self._lease, state_id, snapshot)
        finally:
            remove_tree(part)
        return snapshot


def build_owner_name(owner: str, ledger: Ledger, thread: str) -> str:
    """An owner's name that no other thread's machines have, in whichever database."""
    name = hashlib.sha256(f"{ledger.url}\0{thread}".encode()).hexdigest()[:12]
    return f"{owner[:80]}.{name}"


def snapshot_directory_name(snapshot: Snapshot) -> str:
    """What the directory is called in which a snapshot lies, the same for the same content."""
    return f"{snapshot.backend}-{snapshot.base[-12:]}-{snapshot.digest}"


def _is_complete(directory: Path, snapshot: Snapshot) -> bool:
    """Whether a snapshot lies there; what was killed while it made or removed one may have left less."""
    on_daemon = snapshot.location.startswith("sha256:")
    return directory.is_dir() and (on_daemon or (directory / snapshot.location).is_file())


def snapshot_directory_names(snapshots: Iterable[Snapshot]) -> frozenset[str]:
    return frozenset(map(snapshot_directory_name, snapshots))


def _create_state_id() -> str:
    return uuid.uuid4().hex[:16]
