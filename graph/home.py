"""A home: checkpoints and ledger in one database, records and snapshots in a directory."""

from __future__ import annotations

import contextlib
import math
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar, cast, get_args

from langgraph.checkpoint.base import CheckpointTuple

from langgraph_takeover.base.failures import clean_up
from langgraph_takeover.graph.checkpoints.inspection import (
    CheckpointInfo,
    describe_checkpoint,
    find_last_states,
    has_next_step,
    is_own_graph,
    is_waiting,
    require_graph,
    thread_config,
)
from langgraph_takeover.graph.checkpoints.savers import Saver, open_saver
from langgraph_takeover.graph.outcome import get_run_status
from langgraph_takeover.graph.usage_errors import ThreadNotFoundError
from langgraph_takeover.handoff.ledger import Ledger, LedgerUnavailableError, acquire, effects, leases
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.nodes.context.settings import SettingsError
from langgraph_takeover.nodes.session.session import Session
from langgraph_takeover.nodes.session.state_store import (
    BASE_STATE,
    OWNER_LENGTH,
    SnapshotEvery,
    build_owner_name,
    snapshot_directory_names,
)
from langgraph_takeover.nodes.session.thinning import Thinning
from langgraph_takeover.nodes.session.workers import OpenableContext, Workers, default_workers
from langgraph_takeover.sandbox import remove_stale_resources
from langgraph_takeover.sandbox.interface import (
    BackendName,
    SandboxSpec,
    SandboxUnavailableError,
)
from langgraph_takeover.sandbox.untrusted_trees import REMOVED_PREFIX, list_directory, remove_tree, set_aside

DATABASE_FILE = "takeover.sqlite"
ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")
_MAX_SNAPSHOT_S = 24 * 3600.0
ThreadStatus = Literal[
    "empty",
    "running",
    "waiting_for_model",
    "stopping",
    "stopped",
    "waiting",
    "finished",
    "handed_over",
    "failed",
    "elsewhere",
]
"""What happens on a thread: `RunStatus`; while a process holds it `running`, `stopping`, or `waiting_for_model` if the
endpoint asked it to wait; `empty` before that. `elsewhere`: it has states of the sandbox, but no checkpoint here, since
its graph was compiled with a saver of the user's own."""


class Home:
    """A place for any number of threads. Several processes and hosts can share its database.

    `open_home` makes it.

    Example:
        >>> home.threads()
        ('fix-1',)
    """

    def __init__(self, directory: Path, ledger: Ledger, saver: Saver, workers: Workers | None = None) -> None:
        self.directory = directory
        self.ledger = ledger
        self.saver = saver
        """Read-only; `open_run` provides one that can write."""
        self.records = RecordStore(directory / "records")
        self.snapshot_directory = directory / "snapshots"
        self.workers = workers or default_workers()
        """The threads in which asynchronous runs do what would block their event loop."""

    @contextmanager
    def open_session(
        self,
        thread: str,
        sandbox: SandboxSpec,
        *,
        snapshot_every: SnapshotEvery = "step",
        lease_s: float = leases.TTL_S,
        keep_every_step_s: float | None = None,
    ) -> Iterator[tuple[Session, Saver]]:
        """Hold the lease of a thread; yield its session and a saver that writes under the lease.

        `lease_s` is how long others wait for a holder on another host that no longer renews its lease. With
        `keep_every_step_s`, snapshots of older steps are thinned beside the run: `thin_snapshots`. Raises ThreadHeldError
        and ThreadNameError.
        """
        leases.check_thread(thread)
        own = sandbox.model_copy(update={"owner": build_owner_name(sandbox.owner, self.ledger, thread)})
        lease = acquire(self.ledger, thread, place=_describe_place(own), ttl_s=lease_s)
        session = self._build_session(lease, own, snapshot_every, keep_every_step_s)
        with clean_up(session.close):
            self.stop_stale_sandbox(lease.previous_place)
            with (
                open_saver(self.ledger, lease, self.workers, session.pending) as saver,
                session.explain_fencing(),
                session.stop.explain(),
            ):
                saver.deletion = lambda: self._surround_deletion(session)
                yield session, saver

    def create_session(
        self,
        lease: leases.Lease,
        sandbox: SandboxSpec,
        *,
        snapshot_every: SnapshotEvery,
        keep_every_step_s: float | None = None,
    ) -> Session:
        """Return a session on the thread of an acquired lease, which can be suspended and resumed; the caller closes it."""
        owner = f"{build_owner_name(sandbox.owner, self.ledger, lease.thread)}.{uuid.uuid4().hex[:8]}"
        own = sandbox.model_copy(update={"owner": owner})
        lease.note_place(_describe_place(own))
        return self._build_session(lease, own, snapshot_every, keep_every_step_s, is_owner_unique=True)

    def _build_session(
        self,
        lease: leases.Lease,
        spec: SandboxSpec,
        snapshot_every: SnapshotEvery,
        keep_every_step_s: float | None,
        *,
        is_owner_unique: bool = False,
    ) -> Session:
        session = Session(
            lease,
            spec,
            self.records,
            self.snapshot_directory,
            snapshot_every=snapshot_every,
            workers=self.workers,
            is_owner_unique=is_owner_unique,
        )
        if keep_every_step_s is not None:
            check_thinning(keep_every_step_s)
            thin = partial(self._thin, lease, keep_every_step_s, hold_still=session.take_turn)
            session.thinning = Thinning(lease.thread, thin, keep_every_step_s)
        return session

    def remove_dead_sandboxes(self, sandbox: SandboxSpec) -> None:
        """Remove what dead processes of this host kept open for threads of a home. Raises SandboxUnavailableError."""
        from langgraph_takeover.sandbox.gc import remove_dead_owners

        owner = re.escape(sandbox.owner[:OWNER_LENGTH])
        remove_dead_owners(sandbox.backend, re.compile(owner + r"\.[0-9a-f]{12}\.[0-9a-f]{8}"))

    def stop_stale_sandbox(self, place: str) -> None:
        """Remove what a dead holder left running, if it ran on this host. A caller that needs a sandbox gets errors later."""
        backend, _, owner = place.partition(" ")
        # A value that names no back end was not written by this program.
        with contextlib.suppress(ValueError, SandboxUnavailableError):
            if backend in get_args(BackendName):
                remove_stale_resources(cast(BackendName, backend), owner, kept_images=None)

    @contextmanager
    def _surround_deletion(self, session: Session) -> Iterator[None]:
        with session.forget_everything():
            yield
        self.finish_deletions()

    def delete_thread(self, thread: str, *, records: bool = False) -> None:
        """Delete a thread: its checkpoints, its journal, its snapshots, and with `records` the records made on it.

        Its name is free afterwards. The handoffs of its records stay in the ledger. Raises ThreadNotFoundError,
        ThreadNameError, and ThreadHeldError while a process works on it.

        Example:
            >>> home.delete_thread("fix-1")
            >>> home.status("fix-1")
            'empty'
        """
        self.require_thread(thread)
        lease = acquire(self.ledger, thread)
        with clean_up(lease.release), open_saver(self.ledger, lease, self.workers) as saver:
            if records:
                self.ledger.begin_deletion(thread)
            saver.delete_thread(thread)
        self.finish_deletions()

    def finish_deletions(self) -> None:
        """Remove what deleted threads left in files, if a process died before it had removed them."""
        if deleted := self.ledger.list_deletions():
            self.remove_unused_snapshots()
            for thread in (thread for thread, with_records in deleted.items() if with_records):
                if (
                    self.saver.get_tuple(thread_config(thread)) is None
                ):  # otherwise it died before the deletion
                    self.records.remove_thread(thread)
            self.ledger.end_deletions(deleted)

    async def acall(
        self,
        function: Callable[ParametersT, ResultT],
        *arguments: ParametersT.args,
        **named: ParametersT.kwargs,
    ) -> ResultT:
        """Return what a blocking function of this package returns, called in a thread of the home.

        It occupies one of `workers` until it returns; this event loop awaits the chat models that it calls. A cancelled task does
        not end it: `stop` ends a run.

        Example:
            >>> import asyncio
            >>> async def list_threads():
            ...     async with open_home("work") as home:
            ...         return await home.acall(home.threads)
            >>> asyncio.run(list_threads())
            ()
        """
        return await self.workers.run("command", lambda: function(*arguments, **named))

    def history(self, thread: str) -> list[CheckpointInfo]:
        """List the thread's checkpoints, newest first, forks included. Raises ThreadNotFoundError and ThreadNameError."""
        leases.check_thread(thread)
        kept = effects.list_state_ids(self.ledger, thread) | {BASE_STATE}
        found = [describe_checkpoint(each, kept) for each in self.saver.list(thread_config(thread))]
        if not found:
            raise ThreadNotFoundError(
                f"thread not found: {thread!r} ({self._describe_other_threads(thread)})"
            )
        return found

    def require_thread(self, thread: str) -> None:
        """Raise ThreadNotFoundError or ThreadNameError unless a run has held the thread."""
        leases.check_thread(thread)
        if thread not in self.threads():
            raise ThreadNotFoundError(
                f"thread not found: {thread!r} ({self._describe_other_threads(thread)})"
            )

    def find_restorable_checkpoint(self, thread: str, checkpoint: str) -> CheckpointInfo | None:
        """Return the checkpoint itself or its nearest ancestor that has a snapshot."""
        moments = {each.checkpoint: each for each in self.history(thread)}
        found = moments.get(checkpoint)
        while found is not None and not found.is_restorable:
            found = moments.get(found.parent) if found.parent else None
        return found

    def threads(self) -> tuple[str, ...]:
        """List all threads."""
        return leases.list_threads(self.ledger)

    def request_handoff(self, thread: str, reason: str = "") -> None:
        """Ask the run on a thread to hand over after its current or next step.

        An agent with a `SandboxMiddleware` does so too; nodes of other graphs read `ThreadSandbox.handoff_request`.
        Raises ThreadNotFoundError, and ForeignThreadError for the thread of a delivery.
        """
        leases.check_thread(thread)
        require_graph(self.saver, thread, own=None)
        if not leases.request_handoff(self.ledger, thread, reason):
            raise ThreadNotFoundError(
                f"thread not found: {thread!r} ({self._describe_other_threads(thread)})"
            )

    def stop(self, thread: str, *, now: bool = False) -> bool:
        """Stop the run on a thread, in whatever process or thread it is; return whether one is running there.

        It ends after its current step; with `now` at once, and the running command or model call is repeated by
        `resume`. This returns before the run has ended: `status` reports it. Raises ThreadNotFoundError.
        """
        self.require_thread(thread)
        return leases.request_stop(self.ledger, thread, "now" if now else "step")

    def status(self, thread: str) -> ThreadStatus:
        """Return the status of a thread. Raises ThreadNotFoundError.

        `Sandboxes.status` is for threads whose checkpoints are in a saver of your own; here they are `elsewhere`.
        """
        self.require_thread(thread)
        return self.describe_status(thread, lambda: self.saver.get_tuple(thread_config(thread)))

    def describe_status(self, thread: str, load: Callable[[], CheckpointTuple | None]) -> ThreadStatus:
        """Return the status of a thread, whose newest checkpoint `load` returns."""
        if leases.is_held(self.ledger, thread):
            if leases.read_stop(self.ledger, thread):
                return "stopping"
            return "waiting_for_model" if effects.is_waiting(self.ledger, thread) else "running"
        stored = load()
        if stored is None:
            return "elsewhere" if effects.list_state_ids(self.ledger, thread) else "empty"
        if is_waiting(stored):
            return "waiting"
        if is_own_graph(stored):
            return "stopped" if has_next_step(stored) else "finished"
        return get_run_status(stored.checkpoint["channel_values"].get("stop_reason")).value

    def remove_unused_snapshots(self, *, is_exclusive: bool = False) -> int:
        """Remove snapshots that no checkpoint and no record uses; return the number of removed directories.

        Runs can save theirs meanwhile: they wait only while directories are renamed. With `is_exclusive`, no other process
        works here, so incomplete snapshots are removed too.
        """
        with self.ledger.lock_snapshots():  # whoever saves one has dated it by then
            since = effects.read_time(self.ledger) - _CLOCK_STEP_S
        used = snapshot_directory_names(effects.list_snapshots(self.ledger))
        unused = [
            each
            for each in list_directory(self.snapshot_directory)
            if each.name not in used and (is_exclusive or not _is_in_progress(each))
        ]
        aside: list[Path] = []
        with self.ledger.lock_snapshots():
            used = snapshot_directory_names(effects.list_snapshots(self.ledger, since=since))
            for each in unused:
                # Another process has removed it; one that cannot be removed does not keep the others.
                with contextlib.suppress(OSError):
                    # If this is killed, a partial directory must not look like a complete one.
                    aside += [] if each.name in used else [set_aside(each)]
        for each in aside:
            remove_tree(each)
        return len(aside)

    def thin_snapshots(self, thread: str, *, keep_every_step_s: float) -> int:
        """Delete the snapshots of a thread's old steps; return how many states then have none.

        Of states older than `keep_every_step_s` seconds, those remain that a record has (each handoff point), at which the
        thread forks or merges, and with which a branch ends. Checkpoints remain: to resume one of a deleted state names the
        nearest one before it that has a snapshot. Raises ThreadHeldError while a run works on it (pass `keep_every_step_s`
        to `open_run`), and ThreadNotFoundError.

        Example:
            >>> home.thin_snapshots("fix-1", keep_every_step_s=3600)
            0
        """
        check_thinning(keep_every_step_s)
        self.require_thread(thread)
        lease = acquire(self.ledger, thread)
        with clean_up(lease.release):
            return self._thin(lease, keep_every_step_s)

    def _thin(
        self,
        lease: leases.Lease,
        keep_every_step_s: float,
        *,
        hold_still: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> int:
        """`hold_still` surrounds the moment in which states lose their snapshots: none is restored then."""
        old = effects.list_old_steps(self.ledger, lease.thread, keep_every_step_s)
        if not old:
            return 0
        kept = self.records.list_files()
        if any(each.location.startswith("sha256:") for each in old.values()):  # on Docker's daemon
            locations = self.records.list_snapshot_locations()
            kept |= {each.location for each in old.values()} if locations is None else locations
        named = find_last_states(self.ledger, self.saver, lease.thread)
        thinned = {id_ for id_, each in old.items() if each.location not in kept and id_ not in named}
        if thinned:
            with hold_still():
                effects.remove(lease, thinned)
            self.remove_unused_snapshots()
        return len(thinned)

    def _describe_other_threads(self, thread: str) -> str:
        known = [each for each in self.threads() if each != thread]
        shown = ", ".join(each if len(each) <= 60 else f"{each[:59]}…" for each in known[:10]) + (
            ", …" if len(known) > 10 else ""
        )
        return f"known threads: {shown}" if known else f"{self.directory} has no other thread"


def open_home(
    directory: str | Path, database: str | None = None, *, workers: int | None = None
) -> OpenableContext[Home]:
    """Open the home in a directory, by `with` or `async with`; create it if it is missing.

    `database` is a URL, such as `postgresql://user@host/name`; default: an SQLite file in the directory. `workers` is the
    number of commands, edits and tools that asynchronous runs execute at once; default: four more than there are cores,
    at most 32. Raises LedgerUnavailableError and SettingsError.

    Example:
        >>> from langgraph_takeover import open_home
        >>> with open_home("work") as home:
        ...     home.threads()
        ()
    """
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise SettingsError(f"workers: invalid number {workers!r:.60} (pass 1 or more)")
    threads = Workers(workers)
    return OpenableContext(_open_home(Path(directory), database, threads), threads)


@contextmanager
def _open_home(path: Path, database: str | None, workers: Workers) -> Iterator[Home]:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerUnavailableError(f"{path}: {error.strerror} (pass a writable directory)") from error
    ledger = Ledger(database or f"sqlite:///{path.absolute() / DATABASE_FILE}")
    with clean_up(workers.close, ledger.close), open_saver(ledger, workers=workers) as saver:
        home = Home(path, ledger, saver, workers)
        home.finish_deletions()
        yield home


def check_thinning(keep_every_step_s: object) -> None:
    """Raise SettingsError unless it is a number of seconds."""
    is_number = isinstance(keep_every_step_s, int | float) and not isinstance(keep_every_step_s, bool)
    if not is_number or not 0 <= cast(float, keep_every_step_s) < math.inf:
        raise SettingsError(
            f"keep_every_step_s: invalid value {keep_every_step_s!r:.60} (pass seconds, 0 or more)"
        )


def _describe_place(spec: SandboxSpec) -> str:
    return f"{spec.backend} {spec.owner}"


_CLOCK_STEP_S = 600.0
"""How far a clock may be set back while unused snapshots are removed."""


def _is_in_progress(directory: Path) -> bool:
    """Whether another process may be writing a snapshot into it."""
    try:
        is_part = directory.name.startswith(".") and not directory.name.startswith(REMOVED_PREFIX)
        return is_part and time.time() - directory.stat().st_mtime < _MAX_SNAPSHOT_S
    except FileNotFoundError:
        return True  # it has just finished
