"""The journal of effects: what was begun on a thread, what it came to, and between which machines it lies.

Only a node that a crash cut short asks for what its calls came to. Once another one begins to act, the checkpoint
between them is on disk, so the journal lets go of what lies before: it stays as small as one node's calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import bindparam, delete, insert, select, update

from handoff.ledger.leases import Lease
from handoff.ledger.sealing import seal_text, unseal_text
from handoff.ledger.store import Ledger, effects


class Key(NamedTuple):
    """What names one effect: the same when a node is run again after a crash, another in every fork."""

    thread: str
    task_id: str
    call: str


class Effect(NamedTuple):
    """One effect as the journal has it; `result` is None until it ended."""

    machine_before: str
    machine_after: str | None
    result: str | None


_matching = (
    (effects.c.thread == bindparam("k_thread"))
    & (effects.c.task_id == bindparam("k_task_id"))
    & (effects.c.call == bindparam("k_call"))
)
_select = select(effects.c.machine_before, effects.c.machine_after, effects.c.result).where(_matching)
_begin = insert(effects)
_let_go = delete(effects).where(
    effects.c.thread == bindparam("k_thread"), effects.c.task_id != bindparam("k_task_id")
)
_end = update(effects).where(_matching)


def find(ledger: Ledger, key: Key) -> Effect | None:
    with ledger.reading() as connection:
        row = connection.execute(_select, _bound(key)).first()
    return _effect(ledger, key, row)


def begin(lease: Lease, key: Key, machine: str) -> Effect | None:
    """Note that an effect begins upon a machine; what is known of it, if it had begun before. Raises Fenced."""
    ledger = lease.ledger
    with ledger.writing() as connection:
        lease.require(connection)
        row = connection.execute(_select, _bound(key)).first()
        if row is None:
            connection.execute(_let_go, _bound(key))
            connection.execute(
                _begin,
                {**key._asdict(), "machine_before": machine, "begun_at": ledger.now(connection)},
            )
    return _effect(ledger, key, row)


def end(lease: Lease, key: Key, machine_after: str, result: str) -> None:
    """Note what an effect came to. Raises Fenced."""
    ledger = lease.ledger
    with ledger.writing() as connection:
        lease.require(connection)
        connection.execute(
            _end,
            {
                **_bound(key),
                "machine_after": machine_after,
                "result": seal_text(result),
                "ended_at": ledger.now(connection),
            },
        )


def unfinished(ledger: Ledger) -> tuple[str, ...]:
    """The threads with an effect that began and did not end."""
    asked = select(effects.c.thread).where(effects.c.result.is_(None)).distinct().order_by(effects.c.thread)
    with ledger.reading() as connection:
        return tuple(connection.execute(asked).scalars())


def _effect(ledger: Ledger, key: Key, row: Any) -> Effect | None:
    if row is None or row.result is None:
        return Effect(*row) if row else None
    what = f"the result of a call on thread {key.thread!r}"
    return Effect(row.machine_before, row.machine_after, unseal_text(ledger, what, row.result))


def _bound(key: Key) -> dict[str, str]:
    return {"k_thread": key.thread, "k_task_id": key.task_id, "k_call": key.call}
