"""What a run holds while it works: its thread's lease, the one machine, and which state that machine is in."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import sandbox
from handoff import detectors
from handoff.command_effects import Effect
from handoff.ledger import Lease, Ledger, LedgerUnusable, effects, machines
from handoff.ledger.effects import Key
from handoff.ledger.leases import answer_request
from handoff.record import HandoffRecord, RecordStore, TaskBrief
from handoff.redaction import without_known
from handoff.trace import differences
from nodes.folded import Folded
from nodes.observation import Observation
from sandbox.archive import sync_directory
from sandbox.machine import Sandbox, SandboxSpec, SandboxUnavailable, Snapshot
from sandbox.removal import remove_tree
from sandbox.repository import RepositoryBroken, head_commit
from sandbox.transfer import bring
from sandbox.workbench import Workbench

BASE = "base"
"""The id of the state that every machine of a spec starts in."""
SnapshotEvery = Literal["never", "point", "step"]
"""Which states of a machine are kept: every one, those of handoff points and of ends, or records' alone."""


class MachineNotKept(Exception):
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
        place: Path,
        *,
        snapshot_every: SnapshotEvery = "step",
    ) -> None:
        self.thread = lease.thread
        self.records = records
        self._lease = lease
        self._directory = place
        self._every = snapshot_every
        self._bench = Workbench(spec)
        self._at: str | None = None
        self.closed = False
        """Whether the hold is over, although a node may still run in another thread."""
        self._folded: Folded | None = None

    def enter(self, machine_id: str, task: TaskBrief | None = None) -> Sandbox:
        """The machine, in that state. Raises MachineNotKept, SnapshotCorrupt or SandboxUnavailable."""
        if machine_id == self._at:
            return self._bench.machine()
        self._leave()
        machine = self._started(task) if machine_id == BASE else self._thawed(machine_id)
        if self.closed:  # meanwhile, by whoever left a stream whose node still runs in another thread
            self._leave()
            raise SandboxUnavailable(f"thread {self.thread!r}: its run was closed; resume it")
        self._at = machine_id
        return machine

    def begun(self) -> str:
        """The id of the state that a run begins in: kept where every step is, because a base may change later."""
        machine = self.enter(BASE)
        if self._every != "step":
            return BASE
        self._at = _new_id()
        self._frozen(machine, self._at)
        return self._at

    def can_enter(self, machine_id: str) -> bool:
        return machine_id in (BASE, self._at) or machines.find(self._lease.ledger, machine_id) is not None

    def act(
        self,
        task_id: str,
        call: str,
        machine_id: str,
        task: TaskBrief,
        do: Callable[[Sandbox], Observation],
        effect: Effect,
    ) -> tuple[Observation, str]:
        """Do something to the machine in that state, once; what was seen, and the state it left.

        The same task and call get the result that was recorded. Something that had begun and not ended is
        undone before it is done again: its machine is left, and that of before entered. An action
        without effect is not recorded: repeating it shows the same. Raises Fenced.
        """
        key, seen = Key(self.thread, task_id, call), None
        if effect == "nothing":
            seen = self._done(do, self.enter(machine_id, task))
            if not seen.changes and not seen.shell_ended:
                return seen, machine_id
            # A name that stands for something else here, or a process behind: it has an effect after all.
            self._at, effect = None, "anything"
        known = effects.begin(self._lease, key, machine_id)
        if known is not None:
            after = known.machine_after
            if known.result is not None and after is not None and self.can_enter(after):
                return Observation.model_validate_json(known.result), after
            self._leave()
            seen = None
        machine = self._bench.machine() if seen else self.enter(machine_id, task)
        self._at = None
        seen = seen or self._done(do, machine)
        after = self._after(machine, machine_id, seen, effect)
        self._at = after
        effects.end(self._lease, key, after, seen.model_dump_json())
        return seen, after

    def keep(self, machine_id: str) -> Snapshot:
        """The snapshot by which a state can be entered; the machine is frozen if it stands there unkept.

        Raises MachineNotKept when it stands elsewhere by now.
        """
        if machine_id == BASE:  # which is another machine for another spec
            return self._frozen(self.enter(BASE), _new_id())
        found = machines.find(self._lease.ledger, machine_id)
        if found is not None:
            return found
        return self._frozen(self.enter(machine_id), machine_id)

    def keep_standing(self) -> None:
        """Keep the state that the machine stands in, if it stands in one and ends are to be kept."""
        if self._every != "never" and self._at is not None and self._at != BASE:
            self.keep(self._at)

    def forget_machines(self, *, but: Collection[str] = ()) -> None:
        """No checkpoint of this thread can be entered any more but by its base or these; records stay as they are."""
        machines.forget(self._lease, machines.kept(self._lease.ledger, self.thread) - set(but))

    def store_of(self, snapshot: Snapshot) -> Path:
        """The directory in which a kept state's snapshot lies."""
        return self._directory / directory_of(snapshot)

    def adopt(self, record: HandoffRecord) -> str:
        """Keep a record's machine as a state of this thread; its id."""
        machine_id = _new_id()
        snapshot = record.machine
        with self._lease.ledger.filing():
            bring(snapshot, self.records.directory(record.id), self.store_of(snapshot))
            machines.keep(self._lease, machine_id, snapshot)
        return machine_id

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Nobody else gets the thread meanwhile. Raises Fenced where somebody has."""
        with self._lease.ledger.writing() as connection:
            self._lease.require(connection)
            yield

    @property
    def ledger(self) -> Ledger:
        """Where handoffs stand, too."""
        return self._lease.ledger

    @property
    def asked(self) -> str | None:
        """Why somebody outside wants this thread handed over; None if nobody does."""
        return self._lease.asked

    def handed_over(self) -> None:
        """What somebody outside asked for has been done."""
        if self.asked is not None:
            answer_request(self._lease)

    def fold(self, events: list[dict[str, Any]], task: TaskBrief, record_id: str | None) -> Folded:
        """What the detectors know after these events, and how the tree differs from its base."""
        if self._folded is None or not self._folded.is_after(events):
            before = differences(self.records.load(record_id).trace) if record_id else {}
            self._folded = Folded(detectors.start(task.base_directories, task.workspace), before)
        self._folded.take(events)
        return self._folded

    def close(self) -> None:
        """End the machine and let others onto the thread; may be called twice."""
        self.closed = True
        # A node that still runs in another thread must not keep a machine that is half removed.
        self._lease.end()
        try:
            self._leave()
            # Whoever has the thread by now has a machine under the same owner's name.
            if not self._is_lost():
                sandbox.remove_leftovers(self._bench.spec.backend, self._bench.spec.owner, keep=None)
        finally:
            # Where the database is away, the lease ends with its time.
            with contextlib.suppress(LedgerUnusable):
                self._lease.release()

    def explain_fencing(self) -> contextlib.AbstractContextManager[None]:
        """Raise Fenced for whatever fails meanwhile because another run has taken the thread."""
        return self._lease.explain_fencing()

    def _is_lost(self) -> bool:
        try:
            return self._lease.is_lost()
        except LedgerUnusable:
            return True  # as far as is known here; the next holder removes what is left

    def _done(self, do: Callable[[Sandbox], Observation], machine: Sandbox) -> Observation:
        try:
            return do(machine)
        except SandboxUnavailable:
            with self.holding():  # whoever took the thread away has ended the machine
                raise

    def _leave(self) -> None:
        self._at = None
        self._bench.close()

    def _started(self, task: TaskBrief | None) -> Sandbox:
        machine = self._bench.machine()
        if task is None:
            return machine
        try:
            found = head_commit(machine)
        except RepositoryBroken as error:
            raise MachineNotKept(
                f"the base of task {task.id} holds no repository any more: {error}"
            ) from error
        if found != task.base_commit:
            raise MachineNotKept(
                f"the base of task {task.id} is at commit {found[:12]} now, but the thread began at "
                f"{task.base_commit[:12]}; give the sandbox that it began with"
            )
        return machine

    def _thawed(self, machine_id: str) -> Sandbox:
        snapshot = machines.find(self._lease.ledger, machine_id)
        if snapshot is None:
            raise MachineNotKept(
                f"thread {self.thread}: the machine of this checkpoint ({machine_id}) was not kept, or given back since"
            )
        return self._bench.thaw(snapshot, self.store_of(snapshot))

    def _after(self, machine: Sandbox, before: str, seen: Observation, effect: Effect) -> str:
        if effect == "anything" or seen.changes:
            after = _new_id()
            if self._every == "step":
                self._frozen(machine, after)
            return after
        state = without_known(machine.shell_state())
        kept = machines.find(self._lease.ledger, before) if before != BASE else None
        if kept is not None and kept.shell_state == state:
            return before
        after = _new_id()
        if kept is not None and kept.backend == self._bench.spec.backend:
            # Where a thawed machine lies elsewhere than the frozen one did, its shell speaks of that.
            told = {"shell_state": state, "workspace": machine.workspace}
            machines.keep(self._lease, after, kept.model_copy(update=told))
        elif self._every == "step":
            self._frozen(machine, after)
        return after

    def _frozen(self, machine: Sandbox, machine_id: str) -> Snapshot:
        part = self._directory / f".freezing-{uuid.uuid4().hex}"
        part.mkdir(parents=True)
        try:
            snapshot = machine.freeze(part, labels={"thread": self.thread, "machine": machine_id}).result()
            with self._lease.ledger.filing():
                target = self.store_of(snapshot)
                if not _is_whole(target, snapshot):
                    remove_tree(target)
                    part.rename(target)
                    sync_directory(self._directory)
                machines.keep(self._lease, machine_id, snapshot)
        finally:
            remove_tree(part)
        return snapshot


def owner_of(owner: str, ledger: Ledger, thread: str) -> str:
    """An owner's name that no other thread's machines have, in whichever database."""
    name = hashlib.sha256(f"{ledger.url}\0{thread}".encode()).hexdigest()[:12]
    return f"{owner[:80]}.{name}"


def directory_of(snapshot: Snapshot) -> str:
    """What the directory is called in which a snapshot lies, the same for the same content."""
    return f"{snapshot.backend}-{snapshot.base[-12:]}-{snapshot.digest}"


def _is_whole(directory: Path, snapshot: Snapshot) -> bool:
    """Whether a snapshot lies there; what was killed while it made or removed one may have left less."""
    on_daemon = snapshot.location.startswith("sha256:")
    return directory.is_dir() and (on_daemon or (directory / snapshot.location).is_file())


def directories(snapshots: Iterable[Snapshot]) -> frozenset[str]:
    return frozenset(map(directory_of, snapshots))


def _new_id() -> str:
    return uuid.uuid4().hex[:16]
