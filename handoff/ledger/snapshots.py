"""Saved sandbox states: checkpoints refer to their ids, and a snapshot restores each."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, insert, select

from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.ledger.effects import add_checksum, parse_stored
from langgraph_takeover.handoff.ledger.leases import Lease
from langgraph_takeover.handoff.ledger.store import Ledger, snapshots
from langgraph_takeover.handoff.text.redaction import redact_known_secrets
from langgraph_takeover.sandbox.interface import Snapshot


@repeat_after_loss(idempotent=True)
def save(lease: Lease, state_id: str, snapshot: Snapshot) -> None:
    """Record that a state has a snapshot, which must be durable by now. Raises FencedError."""
    ledger = lease.ledger
    written = snapshot.model_copy(update={"shell_state": redact_known_secrets(snapshot.shell_state)})
    with ledger.write_transaction() as connection:
        lease.require(connection)
        if connection.execute(select(snapshots.c.id).where(snapshots.c.id == state_id)).first() is None:
            connection.execute(
                insert(snapshots).values(
                    id=state_id,
                    thread=lease.thread,
                    snapshot=add_checksum(written.model_dump_json()),
                    made_at=ledger.now(connection),
                )
            )


@repeat_after_loss(idempotent=True)
def find(ledger: Ledger, state_id: str) -> Snapshot | None:
    with ledger.read_transaction() as connection:
        row = connection.execute(select(snapshots.c.snapshot).where(snapshots.c.id == state_id)).first()
    return (
        parse_stored(ledger, f"the snapshot of sandbox state {state_id}", row.snapshot, Snapshot)
        if row
        else None
    )


@repeat_after_loss(idempotent=True)
def list_state_ids(ledger: Ledger, thread: str) -> frozenset[str]:
    """List the ids of a thread's states that have a snapshot."""
    with ledger.read_transaction() as connection:
        rows = connection.execute(select(snapshots.c.id).where(snapshots.c.thread == thread))
        return frozenset(row.id for row in rows)


@repeat_after_loss(idempotent=True)
def list_snapshots(ledger: Ledger) -> tuple[Snapshot, ...]:
    """List the snapshots of all states of all threads."""
    with ledger.read_transaction() as connection:
        rows = connection.execute(select(snapshots.c.id, snapshots.c.snapshot)).all()
    return tuple(
        parse_stored(ledger, f"the snapshot of sandbox state {row.id}", row.snapshot, Snapshot)
        for row in rows
    )


@repeat_after_loss(idempotent=True)
def remove(lease: Lease, ids: Collection[str]) -> None:
    """Record that these states of the thread have no snapshot any more. Raises FencedError."""
    with lease.ledger.write_transaction() as connection:
        lease.require(connection)
        connection.execute(
            delete(snapshots).where(snapshots.c.thread == lease.thread, snapshots.c.id.in_(ids))
        )
