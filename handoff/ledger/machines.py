"""States of machines that are kept: each has an id that checkpoints name, and a snapshot to enter it by."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, insert, select

from handoff.ledger.leases import Lease
from handoff.ledger.sealing import parse_sealed, seal_text
from handoff.ledger.store import Ledger, machines
from handoff.redaction import without_known
from sandbox.machine import Snapshot


def keep(lease: Lease, machine_id: str, snapshot: Snapshot) -> None:
    """Note that a state can be entered by a snapshot, which must be durable by now. Raises Fenced."""
    ledger = lease.ledger
    written = snapshot.model_copy(update={"shell_state": without_known(snapshot.shell_state)})
    with ledger.writing() as connection:
        lease.require(connection)
        if connection.execute(select(machines.c.id).where(machines.c.id == machine_id)).first() is None:
            connection.execute(
                insert(machines).values(
                    id=machine_id,
                    thread=lease.thread,
                    snapshot=seal_text(written.model_dump_json()),
                    made_at=ledger.now(connection),
                )
            )


def find(ledger: Ledger, machine_id: str) -> Snapshot | None:
    with ledger.reading() as connection:
        row = connection.execute(select(machines.c.snapshot).where(machines.c.id == machine_id)).first()
    return (
        parse_sealed(ledger, f"the snapshot of machine {machine_id}", row.snapshot, Snapshot) if row else None
    )


def kept(ledger: Ledger, thread: str) -> frozenset[str]:
    """The ids of a thread's states that can be entered."""
    with ledger.reading() as connection:
        rows = connection.execute(select(machines.c.id).where(machines.c.thread == thread))
        return frozenset(row.id for row in rows)


def snapshots(ledger: Ledger) -> tuple[Snapshot, ...]:
    """Those of all states of all threads."""
    with ledger.reading() as connection:
        rows = connection.execute(select(machines.c.id, machines.c.snapshot)).all()
    return tuple(
        parse_sealed(ledger, f"the snapshot of machine {row.id}", row.snapshot, Snapshot) for row in rows
    )


def forget(lease: Lease, ids: Collection[str]) -> None:
    """Note that these states of the thread can be entered no more. Raises Fenced."""
    with lease.ledger.writing() as connection:
        lease.require(connection)
        connection.execute(delete(machines).where(machines.c.thread == lease.thread, machines.c.id.in_(ids)))
