"""Where runs leave everything: checkpoints and ledger in one database, records and machines in a directory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from langchain_core.runnables import RunnableConfig

from langgraph_takeover.graph.checkpoints.savers import Saver, open_saver
from langgraph_takeover.graph.errors import ThreadNotFoundError
from langgraph_takeover.handoff.ledger import Ledger, LedgerUnavailableError, acquire, leases, snapshots
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.nodes.session.session import (
    BASE_STATE,
    Session,
    SnapshotEvery,
    build_owner_name,
    snapshot_directory_names,
)
from langgraph_takeover.sandbox import remove_stale_resources
from langgraph_takeover.sandbox.interface import (
    BackendName,
    SandboxSpec,
    SandboxUnavailableError,
)
from langgraph_takeover.sandbox.storage.removal import remove_tree, set_aside

DATABASE_FILE = "takeover.sqlite"
_MAX_SNAPSHOT_S = 24 * 3600.0


class CheckpointInfo(NamedTuple):
    """One checkpoint of a thread, as its history lists it."""

    checkpoint: str
    parent: str | None
    step: int
    """How many replies of the model lie before it."""
    next: tuple[str, ...]
    """The nodes that would run from it."""
    state_id: str
    is_restorable: bool
    """Whether its machine can be entered."""
    created_at: str


class Home:
    """One place of work for any number of threads; several processes and hosts may share its database."""

    def __init__(self, directory: Path, ledger: Ledger, saver: Saver) -> None:
        self.directory = directory
        self.ledger = ledger
        self.saver = saver
        """For reading: it refuses to write. `open_run` brings the one that can."""
        self.records = RecordStore(directory / "records")
        self.snapshot_directory = directory / "machines"

    @contextmanager
    def open_session(
        self,
        thread: str,
        sandbox: SandboxSpec,
        *,
        snapshot_every: SnapshotEvery = "step",
        lease_s: float = leases.TTL_S,
    ) -> Iterator[tuple[Session, Saver]]:
        """The sole hold on a thread, and a saver that writes under it. Raises ThreadHeldError or ThreadNameError.

        `lease_s` is how long others wait for a holder on another host that does not renew its hold any more.
        """
        leases.check_thread(thread)
        own = sandbox.model_copy(update={"owner": build_owner_name(sandbox.owner, self.ledger, thread)})
        lease = acquire(self.ledger, thread, place=f"{own.backend} {own.owner}", ttl_s=lease_s)
        session = Session(lease, own, self.records, self.snapshot_directory, snapshot_every=snapshot_every)
        try:
            with contextlib.suppress(SandboxUnavailableError):  # whoever needs a machine is told then
                _stop_stale_sandbox(lease.previous_place)
            with open_saver(self.ledger, lease) as saver, session.explain_fencing():
                yield session, saver
        finally:
            session.close()

    def history(self, thread: str) -> list[CheckpointInfo]:
        """The thread's checkpoints, newest first, those of forks among them. Raises ThreadNotFoundError or ThreadNameError."""
        leases.check_thread(thread)
        kept = snapshots.list_state_ids(self.ledger, thread) | {BASE_STATE}
        found = [_checkpoint_info(each, kept) for each in self.saver.list(_config(thread))]
        if not found:
            raise ThreadNotFoundError(
                f"thread {thread!r}: nothing has run on it; {self._describe_other_threads(thread)}"
            )
        return found

    def require_thread(self, thread: str) -> None:
        """Raises ThreadNotFoundError or ThreadNameError where no run ever held the thread."""
        leases.check_thread(thread)
        if thread not in self.threads():
            raise ThreadNotFoundError(
                f"thread {thread!r}: nothing has run on it; {self._describe_other_threads(thread)}"
            )

    def find_restorable_checkpoint(self, thread: str, checkpoint: str) -> CheckpointInfo | None:
        """The nearest checkpoint on the way to this one whose machine can be entered."""
        moments = {each.checkpoint: each for each in self.history(thread)}
        found = moments.get(checkpoint)
        while found is not None and not found.is_restorable:
            found = moments.get(found.parent) if found.parent else None
        return found

    def threads(self) -> tuple[str, ...]:
        """Every thread that anything was ever run on."""
        return leases.list_threads(self.ledger)

    def request_handoff(self, thread: str, reason: str = "") -> None:
        """Ask the run on a thread to hand over after its step, now or when it goes on. Raises ThreadNotFoundError."""
        if not leases.request_handoff(self.ledger, thread, reason):
            raise ThreadNotFoundError(
                f"thread {thread!r}: nothing has run on it; {self._describe_other_threads(thread)}"
            )

    def remove_unused_snapshots(self, *, is_exclusive: bool = False) -> int:
        """Remove what no checkpoint's machine and no record lies in any more; how many directories those were.

        `alone` says that nobody else works here, so that what is half made is of no use to anybody.
        """
        with self.ledger.lock_snapshots():
            used = snapshot_directory_names(snapshots.list_snapshots(self.ledger))
            unused = [
                each
                for each in _list_entries(self.snapshot_directory)
                if each.name not in used and (is_exclusive or not _is_in_progress(each))
            ]
            for each in unused:
                # Half of one must not look like a whole one, should this be killed meanwhile.
                remove_tree(set_aside(each))
        return len(unused)

    def _describe_other_threads(self, thread: str) -> str:
        known = [each for each in self.threads() if each != thread]
        shown = ", ".join(each if len(each) <= 60 else f"{each[:59]}…" for each in known[:10]) + (
            ", …" if len(known) > 10 else ""
        )
        return f"there are {shown}" if known else f"{self.directory} holds no other"


@contextmanager
def open_home(directory: str | Path, database: str | None = None) -> Iterator[Home]:
    """The home in a directory, made where there is none.

    `database` is a URL, such as `postgresql://user@host/name`; left out, it is an SQLite file in the directory.
    Raises LedgerUnavailableError.
    """
    place = Path(directory)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerUnavailableError(
            f"{place}: {error.strerror}; name a directory that can be written to"
        ) from error
    ledger = Ledger(database or f"sqlite:///{place.absolute() / DATABASE_FILE}")
    try:
        with open_saver(ledger) as saver:
            yield Home(place, ledger, saver)
    finally:
        ledger.close()


def _checkpoint_info(stored: Any, restorable: frozenset[str]) -> CheckpointInfo:
    values = stored.checkpoint["channel_values"]
    machine = values.get("sandbox_state", BASE_STATE)
    prefix = "branch:to:"
    return CheckpointInfo(
        checkpoint=stored.config["configurable"]["checkpoint_id"],
        parent=stored.parent_config["configurable"]["checkpoint_id"] if stored.parent_config else None,
        step=values.get("steps", 0),
        next=tuple(sorted(name.removeprefix(prefix) for name in values if name.startswith(prefix))),
        state_id=machine,
        is_restorable=machine in restorable,
        created_at=stored.checkpoint["ts"],
    )


def _config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def _stop_stale_sandbox(location: str) -> None:
    """End what a holder that is gone has left running, if it was on this host."""
    backend, _, owner = location.partition(" ")
    # What is no machine's place was written by nobody of ours.
    with contextlib.suppress(ValueError):
        if backend in get_args(BackendName):
            remove_stale_resources(cast(BackendName, backend), owner, kept_images=None)


def _is_in_progress(directory: Path) -> bool:
    """Whether somebody may be freezing a machine into it."""
    try:
        return directory.name.startswith(".") and time.time() - directory.stat().st_mtime < _MAX_SNAPSHOT_S
    except FileNotFoundError:
        return True  # and has just ended that


def _list_entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []
