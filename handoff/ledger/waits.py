"""Waits of runs for their model's endpoint, for the status that other processes see."""

from __future__ import annotations

from sqlalchemy import text

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


def note_wait(lease: Lease, seconds: float) -> None:
    """Note that the holder of a thread waits for its endpoint for some seconds."""
    with lease.ledger.write_transaction() as connection:
        until = lease.ledger.now(connection) + seconds
        connection.execute(_UPSERT, {"thread": lease.thread, "token": lease.token, "until": until})


def is_waiting(ledger: Ledger, thread: str) -> bool:
    """Whether the holder of the thread's lease waits for its endpoint now."""
    with ledger.read_transaction() as connection:
        row = connection.execute(_SELECT, {"thread": thread}).first()
        return row is not None and row.until > ledger.now(connection)
