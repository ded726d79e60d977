"""One thread per database that renews this process's leases, and notices requests to stop their runs."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from sqlalchemy import bindparam, select, update

from langgraph_takeover.handoff.ledger.database import LedgerUnavailableError
from langgraph_takeover.handoff.ledger.stops import StopMode
from langgraph_takeover.handoff.ledger.store import Ledger, leases, stops
from langgraph_takeover.sandbox.storage.observers import get_logger

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
