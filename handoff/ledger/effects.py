"""The journal of effects: started tool calls of a thread, their results, and the sandbox states before and after them.

Only a node that a crash interrupted reads the results of its calls. Once another node starts to act, the checkpoint
between them is on disk, so the journal lets go of what lies before: it stays as small as one node's calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import bindparam, delete, insert, select, update

from langgraph_takeover.handoff.ledger.checksums import add_checksum, verify_text
from langgraph_takeover.handoff.ledger.leases import Lease
from langgraph_takeover.handoff.ledger.store import Ledger, effects


class EffectKey(NamedTuple):
    """The key of an effect: equal when a node runs again after a crash, different in every fork."""

    thread: str
    task_id: str
    call: str


class Effect(NamedTuple):
    """One effect as the journal has it; `result` is None until it ended."""

    state_before: str
    state_after: str | None
    result: str | None


_KEY_MATCHES = (
    (effects.c.thread == bindparam("k_thread"))
    & (effects.c.task_id == bindparam("k_task_id"))
    & (effects.c.call == bindparam("k_call"))
)
_SELECT = select(effects.c.state_before, effects.c.state_after, effects.c.result).where(_KEY_MATCHES)
_INSERT = insert(effects)
_DELETE_OLDER = delete(effects).where(
    effects.c.thread == bindparam("k_thread"), effects.c.task_id != bindparam("k_task_id")
)
_UPDATE = update(effects).where(_KEY_MATCHES)
_DELETE = delete(effects).where(_KEY_MATCHES)


def find(ledger: Ledger, key: EffectKey) -> Effect | None:
    with ledger.read_transaction() as connection:
        row = connection.execute(_SELECT, _bind_key(key)).first()
    return _parse_effect(ledger, key, row)


def begin(lease: Lease, key: EffectKey, state_id: str) -> Effect | None:
    """Record that an effect starts in a sandbox state. Return the effect if it started before. Raises FencedError."""
    ledger = lease.ledger
    with ledger.write_transaction() as connection:
        lease.require(connection)
        row = connection.execute(_SELECT, _bind_key(key)).first()
        if row is None:
            connection.execute(_DELETE_OLDER, _bind_key(key))
            connection.execute(
                _INSERT,
                {**key._asdict(), "state_before": state_id, "begun_at": ledger.now(connection)},
            )
    return _parse_effect(ledger, key, row)


def end(lease: Lease, key: EffectKey, state_after: str, result: str) -> None:
    """Note what an effect came to. Raises FencedError."""
    ledger = lease.ledger
    with ledger.write_transaction() as connection:
        lease.require(connection)
        connection.execute(
            _UPDATE,
            {
                **_bind_key(key),
                "state_after": state_after,
                "result": add_checksum(result),
                "ended_at": ledger.now(connection),
            },
        )


def forget(lease: Lease, key: EffectKey) -> None:
    """Remove an effect whose state no later effect started from. Raises FencedError."""
    with lease.ledger.write_transaction() as connection:
        lease.require(connection)
        connection.execute(_DELETE, _bind_key(key))


def list_unfinished_threads(ledger: Ledger) -> tuple[str, ...]:
    """The threads with an effect that began and did not end."""
    query = select(effects.c.thread).where(effects.c.result.is_(None)).distinct().order_by(effects.c.thread)
    with ledger.read_transaction() as connection:
        return tuple(connection.execute(query).scalars())


def _parse_effect(ledger: Ledger, key: EffectKey, row: Any) -> Effect | None:
    if row is None or row.result is None:
        return Effect(*row) if row else None
    what = f"the result of a call on thread {key.thread!r}"
    return Effect(row.state_before, row.state_after, verify_text(ledger, what, row.result))


def _bind_key(key: EffectKey) -> dict[str, str]:
    return {"k_thread": key.thread, "k_task_id": key.task_id, "k_call": key.call}
