"""The journal of effects: started tool calls of a thread, their results, and the sandbox states before and after them.

Only a node that a crash interrupted reads the results of its calls. Once another node starts to act, the checkpoint
between them is on disk, so the journal lets go of what lies before: it stays as small as one node's calls. In a user's
graph, nodes of one step act side by side, and the journal keeps the calls of the whole step.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, bindparam, delete, insert, not_, select, update

from langgraph_takeover.handoff.ledger.database import LedgerUnavailableError, repeat_after_loss
from langgraph_takeover.handoff.ledger.leases import Lease
from langgraph_takeover.handoff.ledger.store import Ledger, effects, moves

_Kind = TypeVar("_Kind", bound=BaseModel)
_STORED_TEXT = re.compile(r"([0-9a-f]{16}) (.*)", re.DOTALL)


def add_checksum(text: str) -> str:
    """Add the checksum to a text."""
    return f"{_compute_checksum(text)} {text}"


def verify_text(ledger: Ledger, label: str, stored: str) -> str:
    """Remove and verify the checksum. Raises LedgerUnavailableError if the text is damaged."""
    found = _STORED_TEXT.fullmatch(stored) if isinstance(stored, str) else None
    if found is not None and found[1] == _compute_checksum(found[2]):
        return found[2]
    raise LedgerUnavailableError(f"{ledger.name}: {label} is damaged (restore the database from a copy)")


def parse_stored(ledger: Ledger, label: str, stored: str, kind: type[_Kind]) -> _Kind:
    """Parse a JSON text with a checksum. Raises LedgerUnavailableError if it is damaged."""
    try:
        return kind.model_validate_json(verify_text(ledger, label, stored))
    except ValidationError as error:
        raise LedgerUnavailableError(
            f"{ledger.name}: {label} cannot be read: {error.errors()[0]['msg']:.100} (restore the database from a copy)"
        ) from error


def _compute_checksum(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


NO_TASK = "thread sandbox"
"""The task of calls outside of a graph: nothing shows when such a call is no longer needed, so the journal keeps it."""


class EffectKey(NamedTuple):
    """The key of an effect: equal when a node runs again after a crash, different in every fork."""

    thread: str
    task_id: str
    """In a user's graph, the step and the task, separated by a colon."""
    call: str

    @property
    def step(self) -> str:
        """The step of a user's graph; empty for others."""
        return self.task_id.rpartition(":")[0]


class Move(NamedTuple):
    """A change of the sandbox by a task of a user's graph."""

    place: str
    """The task, with the tasks and steps around it."""
    call: str
    step: str
    state_before: str
    state_after: str

    @property
    def node(self) -> str:
        """Name and id of the task of the outermost graph."""
        return str(json.loads(self.place)[0][1])


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
_DELETE_OLDER_STEPS = delete(effects).where(
    effects.c.thread == bindparam("k_thread"),
    effects.c.task_id.like("%:%"),
    not_(effects.c.task_id.like(bindparam("k_prefix"))),
)
_UPDATE = update(effects).where(_KEY_MATCHES)
_DELETE = delete(effects).where(_KEY_MATCHES)


@repeat_after_loss(idempotent=True)
def find(ledger: Ledger, key: EffectKey) -> Effect | None:
    with ledger.read_transaction() as connection:
        row = connection.execute(_SELECT, _bind_key(key)).first()
    return _parse_effect(ledger, key, row)


def begin(lease: Lease, key: EffectKey, state_id: str) -> Effect | None:
    """Record that an effect starts in a sandbox state. Return the effect if it started before. Raises FencedError."""
    ledger, is_new = lease.ledger, False

    @repeat_after_loss(idempotent=True)
    def write() -> Any:
        nonlocal is_new
        with ledger.write_transaction() as connection:
            lease.require(connection)
            row = connection.execute(_SELECT, _bind_key(key)).first()
            if row is None:
                is_new = True  # the row of a repetition is from the lost attempt, because only this process has the lease
                _delete_older(connection, key)
                connection.execute(
                    _INSERT,
                    {**key._asdict(), "state_before": state_id, "begun_at": ledger.now(connection)},
                )
        return row

    row = write()
    return None if is_new else _parse_effect(ledger, key, row)


def _delete_older(connection: Connection, key: EffectKey) -> None:
    """Delete the effects that no interrupted node can ask for any more."""
    if key.step:
        connection.execute(_DELETE_OLDER_STEPS, {"k_thread": key.thread, "k_prefix": f"{key.step}:%"})
    elif key.task_id != NO_TASK:
        connection.execute(_DELETE_OLDER, _bind_key(key))


@repeat_after_loss(idempotent=True)
def end(lease: Lease, key: EffectKey, state_after: str, result: str, move: Move | None = None) -> None:
    """Note what an effect came to, and the change of the sandbox that it was. Raises FencedError."""
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
        if move is not None:
            _insert_move(connection, key.thread, move)


@repeat_after_loss(idempotent=True)
def record_move(lease: Lease, move: Move) -> None:
    """Record a change of the sandbox. Raises FencedError."""
    with lease.ledger.write_transaction() as connection:
        lease.require(connection)
        _insert_move(connection, lease.thread, move)


def _insert_move(connection: Connection, thread: str, move: Move) -> None:
    """Insert a move; forget those of earlier steps, and the same call's earlier one."""
    is_same = (moves.c.place == move.place) & (moves.c.call == move.call)
    connection.execute(delete(moves).where(moves.c.thread == thread, (moves.c.step != move.step) | is_same))
    connection.execute(insert(moves).values(thread=thread, **move._asdict()))


@repeat_after_loss(idempotent=True)
def list_moves(ledger: Ledger, thread: str) -> tuple[Move, ...]:
    """List the changes of a thread's sandbox in its newest step."""
    query = select(*(moves.c[name] for name in Move._fields)).where(moves.c.thread == thread)
    with ledger.read_transaction() as connection:
        return tuple(Move(*row) for row in connection.execute(query))


@repeat_after_loss(idempotent=True)
def list_states(ledger: Ledger, thread: str, step: str) -> frozenset[str]:
    """List the sandbox states of the effects in one step of a user's graph."""
    query = select(effects.c.state_before, effects.c.state_after).where(
        effects.c.thread == thread, effects.c.task_id.like(f"{step}:%")
    )
    with ledger.read_transaction() as connection:
        return frozenset(state for row in connection.execute(query) for state in row if state)


@repeat_after_loss(idempotent=True)
def forget(lease: Lease, key: EffectKey) -> None:
    """Remove an effect, and its change of the sandbox, from whose state no later effect started. Raises FencedError."""
    with lease.ledger.write_transaction() as connection:
        lease.require(connection)
        connection.execute(_DELETE, _bind_key(key))
        connection.execute(delete(moves).where(moves.c.thread == key.thread, moves.c.call == key.call))


@repeat_after_loss(idempotent=True)
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
