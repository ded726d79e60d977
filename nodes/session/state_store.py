"""Storage for the snapshots of a thread's sandbox states."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from langgraph_takeover.base.failures import sync_directory
from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.handoff.ledger import Lease, Ledger, effects
from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.records.process_facts import redact_processes
from langgraph_takeover.handoff.shell.command_effects import CommandEffect
from langgraph_takeover.handoff.text.redaction import redact_known_secrets
from langgraph_takeover.nodes.session.graph_tasks import create_state_id
from langgraph_takeover.sandbox.interface import BackendName, FileChange, Sandbox, Snapshot
from langgraph_takeover.sandbox.snapshots.transfer import copy_to_store
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

BASE_STATE = "base"
"""Id of the state in which every sandbox of a spec starts."""
OWNER_LENGTH = 80
"""Maximum number of characters that the owner's name of a spec adds to those of its threads' sandboxes."""
SnapshotEvery = Literal["never", "point", "step"]
"""Which states get a snapshot: those of all steps, those of handoff points and ends, or those of records only."""


class SnapshotNotFoundError(TakeoverError, LookupError):
    """The sandbox state of a checkpoint cannot be restored, or no longer as it was."""

    exit_code = 3


class StateStore:
    """The snapshots of one thread's sandbox states: the ledger maps state ids to them, `directory` has their files."""

    def __init__(
        self, lease: Lease, directory: Path, backend: BackendName, snapshot_every: SnapshotEvery
    ) -> None:
        self.snapshot_every = snapshot_every
        self._lease = lease
        self.directory = directory
        self._backend = backend

    def find(self, state_id: str) -> Snapshot | None:
        """Return the snapshot of a state; of another thread's, which the thread has from then on.

        LangGraph's server and savers copy checkpoints to other threads.
        """
        ledger, thread = self._lease.ledger, self._lease.thread
        found = effects.find_snapshot(ledger, state_id, thread)
        if found is None and (source := effects.find_thread(ledger, state_id)) is not None:
            effects.share_states(self._lease, source, [state_id])
            found = effects.find_snapshot(ledger, state_id, thread)
        return found

    def load(self, state_id: str) -> Snapshot:
        """Return the snapshot of a state. Raises SnapshotNotFoundError."""
        snapshot = self.find(state_id)
        if snapshot is None:
            raise SnapshotNotFoundError(
                f"thread {self._lease.thread!r}: no snapshot of sandbox state {state_id}; none was taken, or it was deleted"
            )
        return snapshot

    def snapshot_directory(self, snapshot: Snapshot) -> Path:
        """The directory with the files of a snapshot."""
        return self.directory / snapshot_directory_name(snapshot)

    def take_snapshot(self, sandbox: Sandbox, state_id: str, parent: str | None = None) -> Snapshot:
        """Save the sandbox durably as a state, which an act has made of its parent. Raises FencedError."""
        return self._begin_snapshot(sandbox, state_id, parent).result()

    def _begin_snapshot(
        self,
        sandbox: Sandbox,
        state_id: str,
        parent: str | None,
        *,
        in_background: bool = False,
    ) -> Future[Snapshot]:
        """Begin to save the sandbox as a state, which is durable when the future ends."""
        with ExitStack() as stack:
            part = stack.enter_context(self.open_part())
            labels = {"thread": self._lease.thread, "state": state_id}
            taking = sandbox.snapshot(part, labels=labels, in_background=in_background)
            rest = stack.pop_all()
        saving: Future[Snapshot] = Future()

        def finish(taken: Future[Snapshot]) -> None:
            try:
                with rest:
                    self.store(part, taken.result(), state_id, parent)
            except BaseException as error:
                saving.set_exception(error)
            else:
                saving.set_result(taken.result())

        taking.add_done_callback(finish)
        return saving

    @contextmanager
    def open_part(self) -> Iterator[Path]:
        """Yield a directory for the files of a snapshot that is being made."""
        part = self.directory / f".snapshot-{uuid.uuid4().hex}"
        part.mkdir(parents=True)
        try:
            yield part
        finally:
            remove_tree(part)

    @repeat_after_loss(idempotent=True)
    def store(self, part: Path, snapshot: Snapshot, state_id: str, parent: str | None) -> None:
        """Save a snapshot, whose files are in `part`, as a state."""
        with self._lease.ledger.lock_snapshots():
            target = self.snapshot_directory(snapshot)
            if not _is_complete(target, snapshot):
                remove_tree(target)
                part.rename(target)
                sync_directory(self.directory)
            effects.save(self._lease, state_id, snapshot, parent)

    def save_state_after(
        self,
        sandbox: Sandbox,
        state_before: str,
        effect: CommandEffect,
        *,
        changes: Sequence[FileChange],
    ) -> tuple[str, Future[Snapshot] | None]:
        """Save the state that an action left; return its id, which is `state_before` if nothing changed.

        A snapshot is taken in the background. Then its future is returned, too: the caller waits for it before the next use
        of the sandbox.
        """
        is_examined = effect == "anything" or bool(changes)
        if not all(each.generated for each in changes) or (is_examined and sandbox.has_unsaved_changes()):
            return self._save_new_state(sandbox, state_before)
        shell_state = redact_known_secrets(sandbox.shell_state())
        processes = redact_processes(sandbox.processes())
        before = self.find(state_before) if state_before != BASE_STATE else None
        if before is not None and (before.shell_state, before.processes) == (shell_state, processes):
            return state_before, None
        if before is not None and before.backend == self._backend:
            # The files are those of the snapshot before. A restored sandbox may have another workspace
            # than that snapshot, and its shell state refers to it.
            update = {"shell_state": shell_state, "processes": processes, "workspace": sandbox.workspace}
            after = create_state_id()
            effects.save(self._lease, after, before.model_copy(update=update), state_before)
            return after, None
        return self._save_new_state(sandbox, state_before)

    def _save_new_state(self, sandbox: Sandbox, state_before: str) -> tuple[str, Future[Snapshot] | None]:
        state_id = create_state_id()
        if self.snapshot_every != "step":
            return state_id, None
        return state_id, self._begin_snapshot(sandbox, state_id, state_before, in_background=True)

    @repeat_after_loss(idempotent=True)
    def adopt_snapshot(self, snapshot: Snapshot, store: Path, name: str | None = None) -> str:
        """Copy a snapshot from a directory to the thread's states, and return the state's id.

        With a name, a repeated call returns the same id.
        """
        state_id = create_state_id() if name is None else hashlib.sha256(name.encode()).hexdigest()[:16]
        with self._lease.ledger.lock_snapshots():
            copy_to_store(snapshot, store, self.snapshot_directory(snapshot))
            effects.save(self._lease, state_id, snapshot)
        return state_id

    def share_states(self, source: str, ids: Collection[str]) -> None:
        """Add states of another thread of the home, under their ids."""
        effects.share_states(self._lease, source, ids)

    def forget(self, *, keep: Collection[str] = ()) -> None:
        """Forget the thread's states except `keep`; the garbage collection removes their files."""
        state_ids = effects.list_state_ids(self._lease.ledger, self._lease.thread)
        effects.remove(self._lease, state_ids - set(keep))


def build_owner_name(owner: str, ledger: Ledger, thread: str) -> str:
    """Return an owner name for a thread's sandboxes that no other thread of any database has."""
    name = hashlib.sha256(f"{ledger.url}\0{thread}".encode()).hexdigest()[:12]
    return f"{owner[:OWNER_LENGTH]}.{name}"


def snapshot_directory_name(snapshot: Snapshot) -> str:
    """Return the name of a snapshot's directory, which depends on its content only."""
    return f"{snapshot.backend}-{snapshot.base[-12:]}-{snapshot.digest}"


def snapshot_directory_names(snapshots: Iterable[Snapshot]) -> frozenset[str]:
    return frozenset(map(snapshot_directory_name, snapshots))


def _is_complete(directory: Path, snapshot: Snapshot) -> bool:
    """Whether the directory has all files of a snapshot: a killed process may leave only some."""
    is_on_daemon = snapshot.location.startswith("sha256:")
    return directory.is_dir() and (is_on_daemon or (directory / snapshot.location).is_file())
