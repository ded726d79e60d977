"""One writer per thread: a lease with a fencing token, renewed while its holder lives; and requests to stop."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol

from sqlalchemy import Connection, bindparam, delete, insert, select, text, update

from langgraph_takeover.base.failures import get_logger
from langgraph_takeover.base.takeover_error import LedgerUnavailableError, TakeoverError
from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.ledger.store import Ledger, closed_threads, leases, stops
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.sandbox.ownership import current_process_identity, process_state

_LOGGER = get_logger(__name__)
_POLL_S = 0.5
_BATCH = 500
"""Number of threads in one query: databases limit the parameters."""
_SELECT_STOPS = select(stops.c.thread, stops.c.token, stops.c.mode).where(
    stops.c.thread.in_(bindparam("threads", expanding=True))
)
# A lease that was released meanwhile stays released.
_RENEW = (
    update(leases)
    .where(
        leases.c.thread == bindparam("k_thread"),
        leases.c.token == bindparam("k_token"),
        leases.c.expires_at > 0,
    )
    .values(expires_at=bindparam("k_expires_at"))
)


class HeldLease(Protocol):
    """The fields of a lease that the keeper reads and sets."""

    thread: str
    token: int
    ttl_s: float
    renews_at: float
    stop_mode: StopMode | None
    on_stop: Callable[[StopMode], None] | None

    @property
    def has_ended(self) -> bool: ...


class LeaseKeeper:
    """Keeps the leases of one database while their holders live: an unreferenced lease is no longer renewed."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = weakref.ref(ledger)
        self._leases: weakref.WeakSet[HeldLease] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, lease: HeldLease) -> None:
        with self._lock:
            lease.renews_at = time.monotonic() + lease.ttl_s / 3
            self._leases.add(lease)
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="leases", daemon=True)
                self._thread.start()
        self._wakeup.set()

    def _keep(self) -> None:
        last = time.monotonic()
        while True:
            with self._lock:
                shortest = min((lease.ttl_s for lease in self._list_held()), default=None)
                if shortest is None:
                    self._thread = None
                    return
            due = last + min(_POLL_S, shortest / 3)
            if self._wakeup.wait(max(due - time.monotonic(), 0)):
                self._wakeup.clear()  # a new lease may be shorter
                if time.monotonic() < due:
                    continue
            last = time.monotonic()
            self._poll()

    def _poll(self) -> None:
        try:
            self._read_stops()
            self._renew()
        except LedgerUnavailableError:
            pass  # a database can be away briefly; the token shows whether the lease was lost
        except Exception:  # without this thread every lease would expire
            _LOGGER.exception("leases were not renewed")

    def _list_held(self) -> list[HeldLease]:
        with self._lock:
            return [lease for lease in self._leases if not lease.has_ended]

    def _read_stops(self) -> None:
        ledger, held = self._ledger(), {(lease.thread, lease.token): lease for lease in self._list_held()}
        if ledger is None:
            return
        for threads in _split(sorted({thread for thread, _ in held})):
            with ledger.read_transaction(waits=False) as connection:
                found = connection.execute(_SELECT_STOPS, {"threads": threads}).all()
            for thread, token, mode in found:
                if (lease := held.get((thread, token))) is not None:
                    _report_stop(lease, "now" if mode == "now" else "step")

    def _renew(self) -> None:
        ledger, now = self._ledger(), time.monotonic()
        due = [lease for lease in self._list_held() if now >= lease.renews_at]
        if ledger is not None and due:
            renew(ledger, due)


def renew(ledger: Ledger, held: Sequence[HeldLease]) -> None:
    """Renew leases, except those that were released or lost meanwhile."""
    now = time.monotonic()
    with ledger.write_transaction(waits=False) as connection:
        database_now = ledger.now(connection)
        rows = [
            {"k_thread": lease.thread, "k_token": lease.token, "k_expires_at": database_now + lease.ttl_s}
            for lease in held
        ]
        connection.execute(_RENEW, rows)
    for lease in held:
        lease.renews_at = now + lease.ttl_s / 3


def _report_stop(lease: HeldLease, mode: StopMode) -> None:
    """Report a new request in a thread of its own: ending a sandbox may take seconds."""
    if mode != lease.stop_mode:
        lease.stop_mode = mode
        if lease.on_stop is not None:
            threading.Thread(target=lease.on_stop, args=(mode,), name="stop", daemon=True).start()


def _split(threads: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(threads), _BATCH):
        yield threads[start : start + _BATCH]


_keepers: weakref.WeakKeyDictionary[Ledger, LeaseKeeper] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _forget_parent() -> None:
    """Drop what a forked process inherits: its parent's leases, and locks that the parent's threads may hold."""
    global _keepers, _lock
    _keepers, _lock = weakref.WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_forget_parent)


def find_keeper(ledger: Ledger) -> LeaseKeeper:
    """Return the keeper of a database's leases."""
    with _lock:
        return _keepers.setdefault(ledger, LeaseKeeper(ledger))


TTL_S = 30.0
MAX_ID_LENGTH = 255
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_unreported_releases: set[tuple[str, str, int]] = set()
"""Leases of this process that it released while the database was away: thread and token."""
_INSERT_LEASE = text(
    "INSERT INTO takeover_leases (thread, token, holder, process, acquired_at, expires_at, place) "
    "VALUES (:thread, 0, '', '', 0, 0, '') ON CONFLICT (thread) DO NOTHING"
)


SELECT_LEASE = "SELECT token, holder, requested FROM takeover_leases WHERE thread = "
_SELECT = text(f"{SELECT_LEASE}:thread")
_SELECT_FOR_SHARE = text(f"{SELECT_LEASE}:thread FOR SHARE")


class ThreadHeldError(TakeoverError):
    """Another run works on the thread; the message names it and its lease's remaining time."""

    def __init__(self, thread: str, holder: str, remaining_s: float) -> None:
        super().__init__(
            f"thread {thread!r} is held by {holder}; its lease runs {max(remaining_s, 0):.0f} s more and is renewed "
            "while it lives (wait for it, or stop it)"
        )
        self.thread = thread
        self.holder = holder


class FencedError(TakeoverError):
    """The lease went to another run, so nothing that this one does counts any more."""

    def __init__(self, thread: str, holder: str) -> None:
        super().__init__(f"thread {thread!r} was taken over by {holder} (this run writes nothing more)")
        self.thread = thread
        self.holder = holder


class HandedOverError(TakeoverError):
    """The thread is closed: its work was handed over, or its handoff was given up."""

    def __init__(self, thread: str, target: str, handoff: str) -> None:
        super().__init__(
            f"thread {thread!r}: its work was handed over to {target} by handoff {handoff} (continue there, or undo it: "
            f"handoff rollback {handoff})"
            if target
            else f"thread {thread!r}: handoff {handoff} gave it up (see: handoff history {handoff})"
        )
        self.thread = thread
        self.handoff = handoff


class ThreadNameError(TakeoverError, ValueError):
    """The name of a thread or an agent, or an idempotency key, is invalid."""


def check_thread(thread: str) -> None:
    """Raises ThreadNameError."""
    check_name(thread, "thread's id")


def check_name(name: str, label: str = "name") -> None:
    """Raise ThreadNameError for a name that some database or file system cannot store, or that could control a terminal."""
    if not isinstance(name, str):
        raise ThreadNameError(f"invalid {label} {name!r:.60} (pass text)")
    if not name.strip() or len(name) > MAX_ID_LENGTH or _UNPRINTABLE.search(name):
        raise ThreadNameError(
            f"invalid {label} {name!r:.60} (use 1 to {MAX_ID_LENGTH} characters, none of them a control character)"
        )


class Lease:
    """The right to write to one thread, from `acquire` until it is released or lost; it can be acquired again.

    Args:
        ttl_s: how long it holds without renewal, in seconds.
        place: where its holder will have its sandbox.
    """

    def __init__(self, ledger: Ledger, thread: str, ttl_s: float = TTL_S, place: str = "") -> None:
        self.ledger = ledger
        self.thread = thread
        self.token = 0
        self.place = place
        self.previous_place = ""
        """The sandbox of the previous holder, if it died without releasing the lease."""
        self.handoff_request: str | None = None
        """Reason of an external handoff request, as of the last read; None without a request."""
        self.stop_mode: StopMode | None = None
        """The stop that somebody requested of this run, as of the last read."""
        self.on_stop: Callable[[StopMode], None] | None = None
        """Called in a thread of its own when a stop is requested, and again if it becomes urgent."""
        self.ttl_s = ttl_s
        self.renews_at = 0.0
        """When the keeper renews it next, as `time.monotonic`."""
        self._ended = threading.Event()
        self._released = True

    def acquire(self) -> None:
        """Acquire it, for the first time or after a release.

        A dead holder on this host is detected; one elsewhere loses its lease when it expires. Raises ThreadHeldError.
        """
        found = _acquire(self.ledger, self.thread, self.place, self.ttl_s)
        self.token, self.previous_place, self.handoff_request = found
        self.stop_mode = None
        self._ended.clear()
        self._released = False
        find_keeper(self.ledger).add(self)

    @repeat_after_loss(idempotent=True)
    def note_place(self, place: str) -> None:
        """Note where its holder has its sandbox from now on. Raises FencedError."""
        with self.ledger.write_transaction() as connection:
            self.require(connection)
            connection.execute(update(leases).where(leases.c.thread == self.thread).values(place=place))
        self.place = place

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is written under it."""
        return self._ended.is_set()

    def require(self, connection: Connection) -> None:
        """Raise FencedError unless the lease holds until the end of the transaction."""
        row = connection.execute(
            _SELECT if self.ledger.is_sqlite else _SELECT_FOR_SHARE, {"thread": self.thread}
        )
        self.update_from_row(row.first())

    def update_from_row(self, row: Any) -> None:
        """Read the thread's token, holder and request. Raises FencedError."""
        if row is None or row[0] != self.token or self._ended.is_set():
            raise FencedError(self.thread, row[1] if row else "nobody")
        self.handoff_request = row[2]

    def is_lost(self) -> bool:
        """Whether this lease no longer holds the thread. Raises LedgerUnavailableError."""
        return self._find_new_holder() is not None

    @contextmanager
    def explain_fencing(self) -> Iterator[None]:
        """Raise FencedError for any failure that another run caused by taking the thread."""
        try:
            yield
        except (FencedError, LedgerUnavailableError):
            raise
        except Exception as error:
            winner = None
            with suppress(LedgerUnavailableError):
                winner = self._find_new_holder()
            if winner is None:
                raise
            raise FencedError(self.thread, winner) from error

    @repeat_after_loss(idempotent=True)
    def _find_new_holder(self) -> str | None:
        """Return the new holder of the thread, "nobody" if its row is gone; None while this lease holds it."""
        with self.ledger.read_transaction() as connection:
            row = connection.execute(_SELECT, {"thread": self.thread}).first()
        if row is None:
            return "nobody"
        return None if row.token == self.token else str(row.holder)

    def end(self) -> None:
        """Write nothing more under it, while others still wait."""
        self._ended.set()

    def release(self) -> None:
        """Release it at once; can be called twice."""
        if self._released:
            return
        self._released = True
        self.end()
        named = (self.ledger.url, self.thread, self.token)
        _unreported_releases.add(named)
        with self.ledger.write_transaction() as connection:
            connection.execute(
                update(leases)
                .where(leases.c.thread == self.thread, leases.c.token == self.token)
                .values(expires_at=0.0)
            )
        _unreported_releases.discard(named)

    def remove(self) -> None:
        """Release it and remove its thread, which has no checkpoints, from the list of threads."""
        self.release()
        with self.ledger.write_transaction() as connection:
            connection.execute(
                delete(leases).where(leases.c.thread == self.thread, leases.c.token == self.token)
            )


def acquire(ledger: Ledger, thread: str, *, place: str = "", ttl_s: float = TTL_S) -> Lease:
    """Return the thread's lease, acquired. Raises ThreadNameError and what `Lease.acquire` raises."""
    check_thread(thread)
    lease = Lease(ledger, thread, ttl_s, place)
    lease.acquire()
    return lease


def _acquire(ledger: Ledger, thread: str, place: str, ttl_s: float) -> tuple[int, str, str | None]:
    """Return the token of a new lease, the place of a holder that died without releasing the thread, and the handoff request."""
    process, holder = current_process_identity(), f"process {os.getpid()} on {socket.gethostname()}"
    tried: dict[tuple[int, float], str] = {}
    """Attempts that may have been committed, by token and time, with the place before."""

    @repeat_after_loss(idempotent=True)
    def write() -> tuple[int, str, str | None]:
        with ledger.write_transaction() as connection:
            connection.execute(_INSERT_LEASE, {"thread": thread})
            now = ledger.now(connection)
            query = select(leases).where(leases.c.thread == thread)
            row = connection.execute(query if ledger.is_sqlite else query.with_for_update()).one()
            if row.process == process and (row.token, row.acquired_at) in tried:
                return row.token, tried[row.token, row.acquired_at], row.requested
            let_go = row.process == process and (ledger.url, thread, row.token) in _unreported_releases
            if row.expires_at > now and not let_go and process_state(row.process) != "dead":
                raise ThreadHeldError(thread, row.holder, row.expires_at - now)
            shut = connection.execute(select(closed_threads).where(closed_threads.c.thread == thread)).first()
            if shut is not None:
                raise HandedOverError(thread, shut.target, shut.handoff)
            before = row.place if row.expires_at else ""
            tried[row.token + 1, now] = before
            connection.execute(
                update(leases)
                .where(leases.c.thread == thread)
                .values(
                    token=row.token + 1,
                    holder=holder,
                    process=process,
                    acquired_at=now,
                    expires_at=now + ttl_s,
                    place=place,
                )
            )
        return row.token + 1, before, row.requested

    return write()


@repeat_after_loss(idempotent=True)
def is_held(ledger: Ledger, thread: str) -> bool:
    """Whether a live holder works on the thread, as far as this host can know."""
    with ledger.read_transaction() as connection:
        row = connection.execute(select(leases).where(leases.c.thread == thread)).first()
        if row is None or row.expires_at <= ledger.now(connection):
            return False
        return process_state(row.process) != "dead"


def close_thread(connection: Connection, thread: str, handoff: str, target: str = "") -> None:
    """Close a thread to every writer; `target` continues the work elsewhere.

    Raises HandedOverError if another handoff has closed it.
    """
    connection.execute(_INSERT_LEASE, {"thread": thread})
    # The row stays locked until the transaction ends, so that of two that close it one sees the other.
    connection.execute(
        update(leases)
        .where(leases.c.thread == thread)
        .values(token=leases.c.token + 1, holder=f"handoff {handoff}", process="", expires_at=0.0, place="")
    )
    found = connection.execute(select(closed_threads).where(closed_threads.c.thread == thread)).first()
    if found is not None and (found.handoff, found.target) != (handoff, target):
        raise HandedOverError(thread, found.target, found.handoff)
    if found is None:
        connection.execute(insert(closed_threads).values(thread=thread, handoff=handoff, target=target))


def reopen_thread(connection: Connection, thread: str, handoff: str) -> None:
    """Reopen the thread, if this handoff closed it."""
    connection.execute(
        delete(closed_threads).where(closed_threads.c.thread == thread, closed_threads.c.handoff == handoff)
    )


def request_handoff(ledger: Ledger, thread: str, reason: str) -> bool:
    """Ask the run on a thread to hand over after its current or next step; False if nothing ever ran there."""
    check_thread(thread)
    with ledger.write_transaction() as connection:
        done = connection.execute(
            update(leases)
            .where(leases.c.thread == thread)
            .values(requested=redact(reason).replace("\0", "")[:500] or "requested")
        )
        return done.rowcount > 0


@repeat_after_loss(idempotent=True)
def list_threads(ledger: Ledger) -> tuple[str, ...]:
    """List every thread that was ever leased."""
    with ledger.read_transaction() as connection:
        return tuple(connection.execute(select(leases.c.thread).order_by(leases.c.thread)).scalars())


@repeat_after_loss(idempotent=True)
def answer_request(lease: Lease) -> None:
    """Mark the request for a handoff as done."""
    with lease.ledger.write_transaction() as connection:
        lease.require(connection)
        connection.execute(update(leases).where(leases.c.thread == lease.thread).values(requested=None))
    lease.handoff_request = None


StopMode = Literal["step", "now"]
"""After the current step, or at once: the running command and the model call in flight are ended and repeated later."""
_SELECT_LEASE = text("SELECT token, process, expires_at FROM takeover_leases WHERE thread = :thread")
_SELECT_STOP = text("SELECT token, mode FROM takeover_stops WHERE thread = :thread")
# A request to stop at once is never weakened.
_UPSERT_STOP = text(
    "INSERT INTO takeover_stops (thread, token, mode) VALUES (:thread, :token, :mode) ON CONFLICT (thread) DO UPDATE "
    "SET mode = CASE WHEN takeover_stops.token = excluded.token AND takeover_stops.mode = 'now' THEN 'now' "
    "ELSE excluded.mode END, token = excluded.token"
)


class RunStoppedError(TakeoverError):
    """A stop of the run was requested; `resume` continues from its last step."""


@repeat_after_loss(idempotent=True)
def request_stop(ledger: Ledger, thread: str, mode: StopMode) -> bool:
    """Ask the holder of a thread to stop; False if no process holds it. The request ends with the holder's lease."""
    with ledger.write_transaction() as connection:
        row = connection.execute(_SELECT_LEASE, {"thread": thread}).first()
        if row is None or row.expires_at <= ledger.now(connection) or process_state(row.process) == "dead":
            return False
        connection.execute(_UPSERT_STOP, {"thread": thread, "token": row.token, "mode": mode})
    return True


@repeat_after_loss(idempotent=True)
def read_stop(ledger: Ledger, thread: str, token: int | None = None) -> StopMode | None:
    """Return the stop that was requested from the holder of a lease (default: the present one), if any."""
    with ledger.read_transaction() as connection:
        stop = connection.execute(_SELECT_STOP, {"thread": thread}).first()
        if stop is not None and token is None:
            token = connection.execute(_SELECT_LEASE, {"thread": thread}).one().token
    if stop is None or stop.token != token:
        return None
    return "now" if stop.mode == "now" else "step"
