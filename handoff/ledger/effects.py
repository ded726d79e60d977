"""The journal of effects, the saved sandbox states that they refer to, and calls of models."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, bindparam, delete, insert, not_, select, text, update

from langgraph_takeover.base.takeover_error import LedgerUnavailableError
from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.ledger.leases import Lease
from langgraph_takeover.handoff.ledger.store import Ledger, effects, moves, snapshots
from langgraph_takeover.handoff.records.process_facts import redact_snapshot
from langgraph_takeover.sandbox.interface import Snapshot

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


_STATE_SEPARATOR = "+"
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

    @property
    def names(self) -> list[str]:
        """Names of the nodes, from the outermost graph inwards."""
        return [str(task).partition(":")[0] for _, task in json.loads(self.place)]


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


@repeat_after_loss(idempotent=True)
def save(lease: Lease, state_id: str, snapshot: Snapshot, parent: str | None = None) -> None:
    """Record that a state has a snapshot, which must be durable by now. Raises FencedError.

    `parent` is the state that the sandbox was in before; of a merge, its base and the merged states, separated by `+`.
    """
    ledger = lease.ledger
    written = redact_snapshot(snapshot)
    with ledger.write_transaction() as connection:
        lease.require(connection)
        same = (snapshots.c.thread == lease.thread) & (snapshots.c.id == state_id)
        if connection.execute(select(snapshots.c.id).where(same)).first() is None:
            connection.execute(
                insert(snapshots).values(
                    id=state_id,
                    thread=lease.thread,
                    snapshot=add_checksum(written.model_dump_json()),
                    parent=parent,
                    made_at=ledger.now(connection),
                )
            )


@repeat_after_loss(idempotent=True)
def find_snapshot(ledger: Ledger, state_id: str, thread: str | None = None) -> Snapshot | None:
    """Return the snapshot of a state, in any thread by default."""
    query = select(snapshots.c.id, snapshots.c.snapshot).where(snapshots.c.id == state_id)
    with ledger.read_transaction() as connection:
        row = connection.execute(
            query if thread is None else query.where(snapshots.c.thread == thread)
        ).first()
    return _parse_snapshot(ledger, row) if row else None


@repeat_after_loss(idempotent=True)
def find_thread(ledger: Ledger, state_id: str) -> str | None:
    """Return a thread that has a snapshot of a state."""
    with ledger.read_transaction() as connection:
        row = connection.execute(select(snapshots.c.thread).where(snapshots.c.id == state_id)).first()
    return str(row.thread) if row else None


@repeat_after_loss(idempotent=True)
def list_state_ids(ledger: Ledger, thread: str) -> frozenset[str]:
    """List the ids of a thread's states that have a snapshot."""
    with ledger.read_transaction() as connection:
        rows = connection.execute(select(snapshots.c.id).where(snapshots.c.thread == thread))
        return frozenset(row.id for row in rows)


@repeat_after_loss(idempotent=True)
def list_parents(ledger: Ledger, thread: str) -> dict[str, tuple[str, ...]]:
    """Return the states of a thread that have a snapshot, each with the states that it was made of.

    An act makes a state of one; a merge, of its base and the merged states.
    """
    with ledger.read_transaction() as connection:
        return _select_parents(connection, thread)


def _select_parents(connection: Connection, thread: str) -> dict[str, tuple[str, ...]]:
    query = select(snapshots.c.id, snapshots.c.parent).where(snapshots.c.thread == thread)
    return {
        row.id: tuple(row.parent.split(_STATE_SEPARATOR)) if row.parent else ()
        for row in connection.execute(query)
    }


@repeat_after_loss(idempotent=True)
def list_old_steps(ledger: Ledger, thread: str, age_s: float) -> dict[str, Snapshot]:
    """Return the states of a thread that are older than this, with their snapshots, and that are steps between others.

    Ends of branches, states from which several others or a merge were made, and those of calls that may be repeated are none.
    """
    with ledger.read_transaction() as connection:
        named = select(effects.c.state_before, effects.c.state_after).where(effects.c.thread == thread)
        moved = select(moves.c.state_before, moves.c.state_after).where(moves.c.thread == thread)
        used = {state for query in (named, moved) for row in connection.execute(query) for state in row}
        children: Counter[str] = Counter()
        for above in _select_parents(connection, thread).values():
            for each in above:
                children[each] += len(above)  # what was merged counts as often as needed
        old = select(snapshots.c.id, snapshots.c.snapshot).where(
            snapshots.c.thread == thread, snapshots.c.made_at < ledger.now(connection) - age_s
        )
        rows = [row for row in connection.execute(old) if row.id not in used and children[row.id] == 1]
    return {row.id: _parse_snapshot(ledger, row) for row in rows}


def _parse_snapshot(ledger: Ledger, row: Any) -> Snapshot:
    return parse_stored(ledger, f"the snapshot of sandbox state {row.id}", row.snapshot, Snapshot)


@repeat_after_loss(idempotent=True)
def read_time(ledger: Ledger) -> float:
    """Return the time of the database, with which it dates states."""
    with ledger.read_transaction() as connection:
        return ledger.now(connection)


@repeat_after_loss(idempotent=True)
def list_snapshots(ledger: Ledger, *, since: float = 0.0) -> tuple[Snapshot, ...]:
    """List the snapshots of all states of all threads, or of those saved since a time of the database."""
    query = select(snapshots.c.id, snapshots.c.snapshot).where(snapshots.c.made_at >= since)
    with ledger.read_transaction() as connection:
        rows = connection.execute(query).all()
    return tuple(_parse_snapshot(ledger, row) for row in rows)


@repeat_after_loss(idempotent=True)
def remove(lease: Lease, ids: Collection[str]) -> None:
    """Record that these states of the thread have no snapshot any more. Raises FencedError.

    The parents of the others are then their nearest remaining ancestors.
    """
    with lease.ledger.write_transaction() as connection:
        lease.require(connection)
        parents = _select_parents(connection, lease.thread)
        for state, above in parents.items():
            parent = _join_left(above, parents, ids)
            if parent != (_STATE_SEPARATOR.join(above) or None) and state not in ids:
                same = (snapshots.c.thread == lease.thread) & (snapshots.c.id == state)
                connection.execute(update(snapshots).where(same).values(parent=parent))
        connection.execute(
            delete(snapshots).where(snapshots.c.thread == lease.thread, snapshots.c.id.in_(ids))
        )


@repeat_after_loss(idempotent=True)
def share_states(lease: Lease, source: str, ids: Collection[str]) -> None:
    """Give a thread states of another one, with their ids and snapshots. Raises FencedError."""
    with lease.ledger.write_transaction() as connection:
        lease.require(connection)
        parents, known = _select_parents(connection, source), _select_parents(connection, lease.thread)
        rows = connection.execute(
            select(snapshots).where(snapshots.c.thread == source, snapshots.c.id.in_({*ids} - known.keys()))
        ).all()
        for row in rows:
            parent = _join_left(parents[row.id], parents, parents.keys() - ids)
            values = {**row._mapping, "thread": lease.thread, "parent": parent}
            connection.execute(insert(snapshots).values(values))


def _join_left(
    states: Iterable[str], parents: Mapping[str, tuple[str, ...]], removed: Collection[str]
) -> str | None:
    """Return a parent's text without the states that are removed."""
    left = dict.fromkeys(found for each in states for found in _find_left(each, parents, removed))
    return _STATE_SEPARATOR.join(left) or None


def _find_left(state: str, parents: Mapping[str, tuple[str, ...]], removed: Collection[str]) -> Iterator[str]:
    """Yield the state, or its nearest ancestor that is not removed."""
    while state in removed:
        above = parents.get(state)
        if not above:
            return
        state = above[0]
    yield state


_UPSERT = text(
    "INSERT INTO takeover_waits (thread, token, until) VALUES (:thread, :token, :until) "
    "ON CONFLICT (thread) DO UPDATE SET token = excluded.token, until = excluded.until"
)
_SELECT_WAIT = text(
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
        row = connection.execute(_SELECT_WAIT, {"thread": thread}).first()
        return row is not None and row.until > ledger.now(connection)
