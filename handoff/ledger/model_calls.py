"""Calls of models: waits for the endpoint, which other processes see, and calls whose replies were not saved."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import text

from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.ledger.leases import Lease
from langgraph_takeover.handoff.ledger.store import Ledger

_UPSERT = text(
    "INSERT INTO takeover_waits (thread, token, until) VALUES (:thread, :token, :until) "
    "ON CONFLICT (thread) DO UPDATE SET token = excluded.token, until = excluded.until"
)
_SELECT = text(
    "SELECT takeover_waits.until FROM takeover_waits JOIN takeover_leases "
    "ON takeover_leases.thread = takeover_waits.thread AND takeover_leases.token = takeover_waits.token "
    "WHERE takeover_waits.thread = :thread"
)
_NOTE_CALLS = (
    "INSERT INTO takeover_calls (thread, token, step, calls) "
    "SELECT thread, token, CAST(:step AS INTEGER), CAST(:calls AS INTEGER) FROM takeover_leases "
    "WHERE thread = :thread AND token = :token {lock} "
    "ON CONFLICT (thread) DO UPDATE SET token = excluded.token, step = excluded.step, calls = excluded.calls"
)
_NOTE_CALLS_SQLITE = text(_NOTE_CALLS.format(lock=""))
_NOTE_CALLS_POSTGRES = text(_NOTE_CALLS.format(lock="FOR SHARE"))
_KEEP_CALLS = text(
    "UPDATE takeover_calls SET token = 0, calls = :calls WHERE thread = :thread AND token = :token"
)
_FORGET_CALLS = text("DELETE FROM takeover_calls WHERE thread = :thread AND token = :token")
_SELECT_CALLS = text("SELECT step, calls FROM takeover_calls WHERE thread = :thread AND token <> :token")


class UnsavedCalls(NamedTuple):
    """Calls of one step that may be billed, and whose replies no checkpoint has."""

    step: int
    calls: int


@repeat_after_loss(idempotent=True)
def note_calls(lease: Lease, step: int, calls: int) -> None:
    """Note before a call how many of this step would be unsaved if the process died in it. Raises FencedError."""
    ledger = lease.ledger
    statement = _NOTE_CALLS_SQLITE if ledger.is_sqlite else _NOTE_CALLS_POSTGRES
    values = {"thread": lease.thread, "token": lease.token, "step": step, "calls": calls}
    if lease.has_ended or not ledger.execute(statement, values):
        with ledger.read_transaction() as connection:
            lease.require(connection)


@repeat_after_loss(idempotent=True)
def keep_calls(lease: Lease, calls: int) -> None:
    """Keep the number of unsaved calls of a step that failed, for the session that repeats it."""
    named = {"thread": lease.thread, "token": lease.token}
    with lease.ledger.write_transaction() as connection:
        if calls:
            connection.execute(_KEEP_CALLS, named | {"calls": calls})
        else:
            connection.execute(_FORGET_CALLS, named)


@repeat_after_loss(idempotent=True)
def forget_calls(lease: Lease) -> None:
    """Forget the noted calls of a session that ends: its checkpoints have their replies."""
    with lease.ledger.write_transaction() as connection:
        connection.execute(_FORGET_CALLS, {"thread": lease.thread, "token": lease.token})


@repeat_after_loss(idempotent=True)
def read_unsaved_calls(lease: Lease) -> UnsavedCalls | None:
    """The unsaved calls of earlier sessions."""
    with lease.ledger.read_transaction() as connection:
        row = connection.execute(_SELECT_CALLS, {"thread": lease.thread, "token": lease.token}).first()
    return UnsavedCalls(*row) if row else None


@repeat_after_loss(idempotent=True)
def note_wait(lease: Lease, seconds: float) -> None:
    """Note that the holder of a thread waits for its endpoint for some seconds."""
    with lease.ledger.write_transaction() as connection:
        until = lease.ledger.now(connection) + seconds
        connection.execute(_UPSERT, {"thread": lease.thread, "token": lease.token, "until": until})


@repeat_after_loss(idempotent=True)
def is_waiting(ledger: Ledger, thread: str) -> bool:
    """Whether the holder of the thread's lease waits for its endpoint now."""
    with ledger.read_transaction() as connection:
        row = connection.execute(_SELECT, {"thread": thread}).first()
        return row is not None and row.until > ledger.now(connection)
