"""One writer a thread: a lease that is renewed while its holder lives, with a token that fences it off after."""

from __future__ import annotations

import os
import re
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, delete, insert, select, text, update

from handoff.ledger.database import LedgerUnusable
from handoff.ledger.store import Ledger, closed, leases
from handoff.redaction import redacted
from sandbox.ownership import process_state, this_process

TTL_S = 30.0
LONGEST_ID = 255
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_unsaid: set[tuple[str, str, int]] = set()
"""The leases that this process let go of when the database could not be told: of which, thread and token."""
_PLACE = text(
    "INSERT INTO takeover_leases (thread, token, holder, process, acquired_at, expires_at, place) "
    "VALUES (:thread, 0, '', '', 0, 0, '') ON CONFLICT (thread) DO NOTHING"
)


LOOK = "SELECT token, holder, requested FROM takeover_leases WHERE thread = "
_LOOK = text(f"{LOOK}:thread")
_LOOK_AND_LOCK = text(f"{LOOK}:thread FOR SHARE")


class ThreadHeld(Exception):
    """Another run works on the thread; the text names it, and says until when its lease lasts."""

    def __init__(self, thread: str, holder: str, left_s: float) -> None:
        super().__init__(
            f"thread {thread!r} is held by {holder}; its lease runs {max(left_s, 0):.0f} s more and is renewed "
            "while it lives: wait for it, or end it"
        )
        self.thread = thread
        self.holder = holder


class Fenced(Exception):
    """The lease was lost to another run, so nothing that this one does counts any more."""

    def __init__(self, thread: str, holder: str) -> None:
        super().__init__(f"thread {thread!r} was taken over by {holder}; nothing more is written here")
        self.thread = thread
        self.holder = holder


class HandedOver(Exception):
    """Nothing goes on upon the thread: its work was handed over, or the handoff that it was begun for gave it up."""

    def __init__(self, thread: str, target: str, handoff: str) -> None:
        super().__init__(
            f"thread {thread!r}: its work was handed over to {target} by handoff {handoff}; go on there, or undo it: "
            f"python -m handoff rollback {handoff}"
            if target
            else f"thread {thread!r}: handoff {handoff} gave it up; see python -m handoff history {handoff}"
        )
        self.thread = thread
        self.handoff = handoff


class BadThread(ValueError):
    """A thread's id is none that every database and every file name can take."""


def check_thread(thread: str) -> None:
    """Raises BadThread."""
    check_name(thread, "thread's id")


def check_name(name: str, what: str = "name") -> None:
    """Raises BadThread for what not every database and file name can take, or what could steer a terminal."""
    if not isinstance(name, str):
        raise BadThread(f"a {what} is text, not {name!r:.60}")
    if not name.strip() or len(name) > LONGEST_ID or _UNPRINTABLE.search(name):
        raise BadThread(
            f"{name!r:.60} is no {what}: give 1 to {LONGEST_ID} characters, none of them a control character"
        )


class Lease:
    """The right to write to one thread, until it is released or lost."""

    def __init__(self, ledger: Ledger, thread: str, token: int, ttl_s: float, left: str = "") -> None:
        self.ledger = ledger
        self.thread = thread
        self.token = token
        self.left = left
        """Where the holder before had its machine, if it went without releasing the lease."""
        self.asked: str | None = None
        """Why somebody outside wants the thread handed over, as of the last look; None if nobody does."""
        self._ended = threading.Event()
        self._released = False
        renewing = threading.Thread(
            target=_renew, args=(weakref.ref(self), self._ended, ttl_s), name=f"lease-{thread}", daemon=True
        )
        renewing.start()

    def require(self, connection: Connection) -> None:
        """Raise Fenced unless the lease still holds, to the end of the transaction."""
        row = connection.execute(_LOOK if self.ledger.on_sqlite else _LOOK_AND_LOCK, {"thread": self.thread})
        self.take(row.first())

    def take(self, row: Any) -> None:
        """Take up what the database says of the thread: token, holder, request. Raises Fenced."""
        if row is None or row[0] != self.token or self._ended.is_set():
            raise Fenced(self.thread, row[1] if row else "nobody")
        self.asked = row[2]

    def is_lost(self) -> bool:
        """Whether this lease no longer holds the thread. Raises LedgerUnusable."""
        return self._winner() is not None

    @contextmanager
    def explain_fencing(self) -> Iterator[None]:
        """Raise Fenced for whatever fails because another run has the thread and has removed what was used here."""
        try:
            yield
        except (Fenced, LedgerUnusable):
            raise
        except Exception as error:
            winner = None
            with suppress(LedgerUnusable):
                winner = self._winner()
            if winner is None:
                raise
            raise Fenced(self.thread, winner) from error

    def _winner(self) -> str | None:
        """The new holder of the thread, "nobody" if its row is gone; None while this lease holds it."""
        with self.ledger.reading() as connection:
            row = connection.execute(_LOOK, {"thread": self.thread}).first()
        if row is None:
            return "nobody"
        return None if row.token == self.token else str(row.holder)

    def renew(self, ttl_s: float) -> None:
        with self.ledger.writing() as connection:
            connection.execute(
                update(leases)
                # One that was released meanwhile stays so.
                .where(leases.c.thread == self.thread, leases.c.token == self.token, leases.c.expires_at > 0)
                .values(expires_at=self.ledger.now(connection) + ttl_s)
            )

    def end(self) -> None:
        """Nothing more is written under it, while others still wait."""
        self._ended.set()

    def release(self) -> None:
        """Let others in at once; may be called twice."""
        if self._released:
            return
        self._released = True
        self.end()
        named = (self.ledger.url, self.thread, self.token)
        _unsaid.add(named)
        with self.ledger.writing() as connection:
            connection.execute(
                update(leases)
                .where(leases.c.thread == self.thread, leases.c.token == self.token)
                .values(expires_at=0.0)
            )
        _unsaid.discard(named)


def acquire(ledger: Ledger, thread: str, *, place: str = "", ttl_s: float = TTL_S) -> Lease:
    """The thread's lease; `place` says where its holder will have its machine. Raises BadThread or ThreadHeld.

    A holder on this host that is dead is known to be; one elsewhere loses its lease when it expires.
    """
    check_thread(thread)
    process, holder = this_process(), f"process {os.getpid()} on {socket.gethostname()}"
    with ledger.writing() as connection:
        connection.execute(_PLACE, {"thread": thread})
        now = ledger.now(connection)
        asked = select(leases).where(leases.c.thread == thread)
        row = connection.execute(asked if ledger.on_sqlite else asked.with_for_update()).one()
        let_go = row.process == process and (ledger.url, thread, row.token) in _unsaid
        if row.expires_at > now and not let_go and process_state(row.process) != "dead":
            raise ThreadHeld(thread, row.holder, row.expires_at - now)
        shut = connection.execute(select(closed).where(closed.c.thread == thread)).first()
        if shut is not None:
            raise HandedOver(thread, shut.target, shut.handoff)
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
    return Lease(ledger, thread, row.token + 1, ttl_s, row.place if row.expires_at else "")


def is_held(ledger: Ledger, thread: str) -> bool:
    """Whether a live holder works on the thread, as far as can be known from here."""
    with ledger.reading() as connection:
        row = connection.execute(select(leases).where(leases.c.thread == thread)).first()
        if row is None or row.expires_at <= ledger.now(connection):
            return False
        return process_state(row.process) != "dead"


def close(connection: Connection, thread: str, handoff: str, target: str = "") -> None:
    """Let nobody write to a thread any more, whoever holds it; `target` is who goes on elsewhere.

    Raises HandedOver where another handoff has closed it.
    """
    connection.execute(_PLACE, {"thread": thread})
    # The row stays locked to the end of the transaction, so that of two that close it one sees the other.
    connection.execute(
        update(leases)
        .where(leases.c.thread == thread)
        .values(token=leases.c.token + 1, holder=f"handoff {handoff}", process="", expires_at=0.0, place="")
    )
    found = connection.execute(select(closed).where(closed.c.thread == thread)).first()
    if found is not None and (found.handoff, found.target) != (handoff, target):
        raise HandedOver(thread, found.target, found.handoff)
    if found is None:
        connection.execute(insert(closed).values(thread=thread, handoff=handoff, target=target))


def reopen(connection: Connection, thread: str, handoff: str) -> None:
    """Let the thread's work go on there, where this handoff had closed it."""
    connection.execute(delete(closed).where(closed.c.thread == thread, closed.c.handoff == handoff))


def request_handoff(ledger: Ledger, thread: str, reason: str) -> bool:
    """Ask the run on a thread, now or when it goes on, to hand over after its step; False if it never ran. Raises BadThread."""
    check_thread(thread)
    with ledger.writing() as connection:
        done = connection.execute(
            update(leases)
            .where(leases.c.thread == thread)
            .values(requested=redacted(reason)[:500] or "requested")
        )
        return done.rowcount > 0


def threads(ledger: Ledger) -> tuple[str, ...]:
    """Every thread that a lease was ever held on."""
    with ledger.reading() as connection:
        return tuple(connection.execute(select(leases.c.thread).order_by(leases.c.thread)).scalars())


def answer_request(lease: Lease) -> None:
    """The thread has handed over: what was asked is done."""
    with lease.ledger.writing() as connection:
        lease.require(connection)
        connection.execute(update(leases).where(leases.c.thread == lease.thread).values(requested=None))
    lease.asked = None


def _renew(lease: weakref.ref[Lease], ended: threading.Event, ttl_s: float) -> None:
    while not ended.wait(ttl_s / 3):
        held = lease()
        if held is None:
            return
        # A database that is away for a moment is asked again; the token tells what came of it.
        try:
            held.renew(ttl_s)
        except LedgerUnusable:
            continue
        del held
