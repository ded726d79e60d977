"""The state of each handoff, and keys by which a request is applied once."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, delete, func, insert, select, update

from langgraph_takeover.base.takeover_error import LedgerUnavailableError, TakeoverError
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.ledger.leases import check_name, close_thread, reopen_thread
from langgraph_takeover.handoff.ledger.store import Ledger, handoffs, idempotency_keys, transitions
from langgraph_takeover.handoff.records.envelope import Envelope, Understanding
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.handoff.text.redaction import redact

KEY_LIFETIME_S = 24 * 3600.0
KEY_LABEL = "idempotency key"
_LOCK_SPACE = 8402160
"""First part of the ids of PostgreSQL's advisory locks for keys."""
_Result = TypeVar("_Result", bound=BaseModel)


class KeyReusedError(TakeoverError, ValueError):
    """An idempotency key was used before, for another request."""


@repeat_after_loss(idempotent=False)
def run_once(
    ledger: Ledger,
    key: str,
    request: list[Any],
    write: Callable[[Connection, float], _Result],
    result_type: type[_Result],
    *,
    key_owner: str = "",
) -> _Result:
    """Run `write` in a transaction, or return its recorded result. An empty key is always new.

    Two owners can use the same key. Raises KeyReusedError, and ThreadNameError for an invalid key.
    """
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    if key:
        check_name(key, KEY_LABEL)
    stored_key = _build_stored_key(key, key_owner)
    with ledger.write_transaction() as connection:
        now = ledger.now(connection)
        if not key:
            return write(connection, now)
        if not ledger.is_sqlite:
            # Two requests with a new key must not both insert it; SQLite has one writer anyway.
            lock_id = int.from_bytes(hashlib.sha256(stored_key.encode()).digest()[:4], signed=True)
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK_SPACE, lock_id)))
        connection.execute(delete(idempotency_keys).where(idempotency_keys.c.expires_at <= now))
        known = connection.execute(
            select(idempotency_keys).where(idempotency_keys.c.key == stored_key)
        ).first()
        if known is not None:
            if known.asked != digest:
                raise KeyReusedError(
                    f"idempotency key {key!r} already belongs to a different request "
                    "(use a new key, or repeat the original request unchanged)"
                )
            return result_type.model_validate_json(known.result)
        result = write(connection, now)
        connection.execute(
            insert(idempotency_keys).values(
                key=stored_key, asked=digest, result=result.model_dump_json(), expires_at=now + KEY_LIFETIME_S
            )
        )
        return result


def forget_key(ledger: Ledger, key: str, *, key_owner: str = "") -> None:
    """Forget a key whose request failed and had no effect, so that another request can use it."""
    with ledger.write_transaction() as connection:
        connection.execute(
            delete(idempotency_keys).where(idempotency_keys.c.key == _build_stored_key(key, key_owner))
        )


def _build_stored_key(key: str, key_owner: str) -> str:
    # A list as JSON: owner "a b" with key "c" is not owner "a" with key "b c".
    return hashlib.sha256(json.dumps([key_owner, key]).encode()).hexdigest() if key_owner else key


def remove_expired_keys(ledger: Ledger) -> int:
    """Remove the expired idempotency keys; return their number."""
    with ledger.write_transaction() as connection:
        return connection.execute(
            delete(idempotency_keys).where(idempotency_keys.c.expires_at <= ledger.now(connection))
        ).rowcount


HandoffState = Literal[
    "prepared",
    "offered",
    "accepted",
    "active",
    "completed",
    "rejected",
    "timed_out",
    "rolled_back",
    "blocked",
]
ALLOWED_TRANSITIONS: dict[HandoffState, tuple[HandoffState, ...]] = {
    "prepared": ("offered", "rolled_back"),
    "offered": ("accepted", "rejected", "timed_out", "rolled_back"),
    "rejected": ("offered", "rejected", "blocked", "rolled_back"),
    "timed_out": ("offered", "blocked", "rolled_back"),
    "accepted": ("active", "timed_out", "rolled_back"),
    "active": ("completed", "timed_out", "rolled_back"),
    "blocked": ("offered", "rolled_back"),
    "completed": ("rolled_back",),
    "rolled_back": (),
}
"""The permitted next states of each state. `rejected` after `rejected`: the source was asked to send again, and cannot."""
TRANSFERRED_STATES: tuple[HandoffState, ...] = ("accepted", "active", "completed")
"""The states in which the successor has the task, and the source's thread is closed."""
OPEN_STATES: tuple[HandoffState, ...] = ("prepared", "offered", "rejected", "timed_out", "accepted", "active")
"""The states that continue without a decision."""


class Handoff(Frozen):
    """A handoff in the ledger.

    Example:
        >>> handoff = hand_over(home, "fix-1.first_validation", target="tester")
        >>> handoff.thread, handoff.target, handoff.offers
        ('fix-1', 'tester', 1)
    """

    id: str
    record: str
    digest: str
    """Digest of the sent record."""
    task: str
    thread: str
    """Thread of the source."""
    source: str
    target: str
    successor: str
    """Thread of the target."""
    state: HandoffState
    version: int
    """Number of transitions so far."""
    offers: int
    """Number of offers so far."""
    deadline_at: float | None
    """Unix time by which the next transition is due; None if none is expected."""
    reason: str
    """Reason of the last transition."""
    envelope: Envelope
    understanding: Understanding | None
    made_at: float
    changed_at: float


class Transition(NamedTuple):
    """One line of a handoff's history."""

    version: int
    before: HandoffState | None
    after: HandoffState
    by: str
    reason: str
    at: float


class HandoffNotFoundError(TakeoverError, LookupError):
    """The ledger has no handoff of that id."""

    def __str__(self) -> str:
        return str(self.args[0])


class IllegalTransitionError(TakeoverError, ValueError):
    """The requested transition is illegal from the current state, or another process was faster."""

    def __init__(self, handoff: Handoff, to: HandoffState, reason: str = "") -> None:
        may = ", ".join(ALLOWED_TRANSITIONS[handoff.state]) or "nothing: it has ended"
        explanation = reason or f"is {handoff.state}, which cannot become {to}; it can become {may}"
        super().__init__(f"handoff {handoff.id} {explanation}")
        self.handoff = handoff


class LateConfirmationError(IllegalTransitionError):
    """The receiver confirmed after the deadline of the offer."""

    def __init__(self, handoff: Handoff) -> None:
        super().__init__(handoff, "accepted", "was confirmed after its deadline")


def prepare(
    ledger: Ledger,
    *,
    record: str,
    digest: str,
    task: str,
    thread: str,
    source: str,
    target: str,
    envelope: Envelope,
    by: str,
    handoff_id: str | None = None,
    key: str = "",
) -> Handoff:
    """Store a new handoff; its default id is random. A repeated call with the same key or id returns it unchanged.

    Each source has its own keys. The comparison ignores the time of sending. Raises KeyReusedError, and ThreadNameError
    for an invalid name or key.
    """
    names = {"handoff's id": handoff_id, "source's name": source, "target's name": target}
    for what, name in names.items():
        if name is not None:
            check_name(name, what)
    expected = {
        "record": record,
        "digest": digest,
        "task": task,
        "thread": thread,
        "source": source,
        "target": target,
    }
    redacted = envelope.model_validate(redact(envelope.model_dump(mode="json")))

    def write(connection: Connection, now: float) -> Handoff:
        existing = _find(connection, handoff_id) if handoff_id else None
        if existing is not None:
            known = {name: getattr(existing, name) for name in expected}
            if known != expected or _drop_sent_at(existing.envelope) != _drop_sent_at(redacted):
                raise KeyReusedError(
                    f"handoff {handoff_id} already exists, of record {existing.record} to {existing.target}"
                )
            return existing
        new_id = handoff_id or uuid.uuid4().hex[:12]
        connection.execute(
            insert(handoffs).values(
                id=new_id, **expected, successor="", state="prepared", version=1, offers=0, deadline_at=None,
                reason="", envelope=redacted.model_dump_json(), understanding=None, made_at=now, changed_at=now,
            )
        )  # fmt: skip
        _record_transition(connection, Transition(1, None, "prepared", by, "", now), new_id)
        return _load(connection, new_id)

    request = ["prepare", handoff_id, expected, _drop_sent_at(redacted)]
    return run_once(ledger, key, request, write, Handoff, key_owner=source)


def _drop_sent_at(envelope: Envelope) -> dict[str, Any]:
    return envelope.model_dump(mode="json", exclude={"sent_at"})


def change_state(
    ledger: Ledger,
    handoff_id: str,
    to: HandoffState,
    *,
    by: str,
    version: int | None = None,
    reason: str = "",
    key: str = "",
    key_owner: str = "",
    deadline_s: float | None = None,
    successor: str | None = None,
    understanding: Understanding | None = None,
    record: HandoffRecord | None = None,
) -> Handoff:
    """Move a handoff to another state. A repetition with the same `key` returns the first result; each owner has keys of its own.

    `version` is the one that the caller saw; with another the transition is refused. The deadline counts from
    now. `record` replaces the sent record. Raises LateConfirmationError for an acceptance after the deadline,
    IllegalTransitionError, HandoffNotFoundError, KeyReusedError, or HandedOverError where another handoff has the
    source.
    """
    if to not in get_args(HandoffState):
        raise ValueError(f"unknown state {to!r:.60} (use {', '.join(get_args(HandoffState))})")
    redacted_reason = redact(reason)[:500]
    meant = None if understanding is None else redact(understanding.model_dump(mode="json"))

    def write(connection: Connection, now: float) -> Handoff:
        found = _load(connection, handoff_id)
        seen = found.version if version is None else version
        is_late = found.deadline_at is not None and now > found.deadline_at
        if to == "accepted" and is_late and (found.state, found.version) == ("offered", seen):
            raise LateConfirmationError(found)
        changes: dict[str, Any] = {
            "state": to,
            "version": seen + 1,
            "offers": found.offers + (to == "offered"),
            "deadline_at": None if deadline_s is None else now + deadline_s,
            "reason": redacted_reason,
            "changed_at": now,
        }
        if successor is not None:
            changes["successor"] = successor
        if meant is not None:
            changes["understanding"] = json.dumps(meant)
        if record is not None:
            changes |= {"record": record.id, "digest": record.digest}
        before = [state for state, may in ALLOWED_TRANSITIONS.items() if to in may]
        done = connection.execute(
            update(handoffs)
            .where(handoffs.c.id == handoff_id, handoffs.c.version == seen, handoffs.c.state.in_(before))
            .values(**changes)
        )
        if done.rowcount != 1:
            raise IllegalTransitionError(found, to)
        _record_transition(
            connection, Transition(seen + 1, found.state, to, by, redacted_reason, now), handoff_id
        )
        _update_thread_access(connection, found, to)
        return _load(connection, handoff_id)

    request = ["move", handoff_id, to, meant, *([record.digest] if record else [])]
    return run_once(ledger, key, request, write, Handoff, key_owner=key_owner)


def set_deadline(ledger: Ledger, handoff: Handoff, deadline_s: float) -> None:
    """Let the deadline of a handoff count from now. Raises IllegalTransitionError if its state changed meanwhile."""
    with ledger.write_transaction() as connection:
        done = connection.execute(
            update(handoffs)
            .where(handoffs.c.id == handoff.id, handoffs.c.version == handoff.version)
            .values(deadline_at=ledger.now(connection) + deadline_s)
        )
        if done.rowcount != 1:
            raise IllegalTransitionError(handoff, handoff.state, "was changed by another process")


@repeat_after_loss(idempotent=True)
def compute_remaining_s(ledger: Ledger, handoff: Handoff) -> float:
    """Return the time until the deadline, by the ledger's clock; negative if it has passed, infinite without one."""
    if handoff.deadline_at is None:
        return math.inf
    with ledger.read_transaction() as connection:
        return handoff.deadline_at - ledger.now(connection)


@repeat_after_loss(idempotent=True)
def find(ledger: Ledger, handoff_id: str) -> Handoff | None:
    with ledger.read_transaction() as connection:
        return _find(connection, handoff_id)


@repeat_after_loss(idempotent=True)
def load(ledger: Ledger, handoff_id: str) -> Handoff:
    """Raises HandoffNotFoundError."""
    with ledger.read_transaction() as connection:
        return _load(connection, handoff_id)


@repeat_after_loss(idempotent=True)
def list_handoffs(ledger: Ledger, states: Collection[HandoffState] = ()) -> tuple[Handoff, ...]:
    """All handoffs, oldest first, or those in these states."""
    query = select(handoffs).order_by(handoffs.c.made_at, handoffs.c.id)
    if states:
        query = query.where(handoffs.c.state.in_(states))
    with ledger.read_transaction() as connection:
        return tuple(_parse_row(row) for row in connection.execute(query))


@repeat_after_loss(idempotent=True)
def find_by_successor(ledger: Ledger, thread: str) -> Handoff | None:
    """The handoff that a thread was begun for, if it was for one."""
    with ledger.read_transaction() as connection:
        row = connection.execute(select(handoffs).where(handoffs.c.successor == thread)).first()
    return _parse_row(row) if row else None


def advance(ledger: Ledger, handoff_id: str, to: HandoffState, *, by: str, reason: str = "") -> None:
    """Record the next state of a handoff that its successor has reached. Repeating it changes nothing.

    Raises IllegalTransitionError where it is not the successor's any more.
    """
    found = load(ledger, handoff_id)
    if found.state != to and not (
        found.state in TRANSFERRED_STATES
        and TRANSFERRED_STATES.index(found.state) > TRANSFERRED_STATES.index(to)
    ):
        change_state(ledger, handoff_id, to, by=by, reason=reason, version=found.version)


@repeat_after_loss(idempotent=True)
def list_transitions(ledger: Ledger, handoff_id: str) -> tuple[Transition, ...]:
    """Its transitions, oldest first. Raises HandoffNotFoundError."""
    query = select(transitions).where(transitions.c.handoff == handoff_id).order_by(transitions.c.version)
    with ledger.read_transaction() as connection:
        _load(connection, handoff_id)
        return tuple(
            Transition(row.version, row.before, row.after, row.by, row.reason, row.at)
            for row in connection.execute(query)
        )


def _update_thread_access(connection: Connection, handoff: Handoff, to: HandoffState) -> None:
    """Close the thread of the agent that no longer has the task, even if it still runs, and open the other's."""
    if to == "accepted":
        close_thread(connection, handoff.thread, handoff.id, handoff.target)
    elif handoff.state in TRANSFERRED_STATES and to not in TRANSFERRED_STATES:
        later = select(handoffs.c.id).where(
            handoffs.c.thread == handoff.successor, handoffs.c.state.in_(TRANSFERRED_STATES)
        )
        if (next_one := connection.execute(later).scalars().first()) is not None:
            raise IllegalTransitionError(
                handoff, to, f"was handed on by handoff {next_one}; roll that back first"
            )
        reopen_thread(connection, handoff.thread, handoff.id)
        if handoff.successor:
            close_thread(connection, handoff.successor, handoff.id)


def _record_transition(connection: Connection, transition: Transition, handoff_id: str) -> None:
    connection.execute(insert(transitions).values(handoff=handoff_id, **transition._asdict()))


def _load(connection: Connection, handoff_id: str) -> Handoff:
    found = _find(connection, handoff_id)
    if found is None:
        ids = (
            connection.execute(select(handoffs.c.id).order_by(handoffs.c.made_at.desc()).limit(10))
            .scalars()
            .all()
        )
        raise HandoffNotFoundError(
            f"handoff not found: {handoff_id!r:.60} "
            + (f"(known handoffs: {', '.join(ids)})" if ids else "(no handoff yet)")
        )
    return found


def _find(connection: Connection, handoff_id: str) -> Handoff | None:
    row = connection.execute(select(handoffs).where(handoffs.c.id == handoff_id)).first()
    return _parse_row(row) if row else None


def _parse_row(row: Any) -> Handoff:
    values = row._asdict()
    understanding = values.pop("understanding")
    try:
        return Handoff(
            **values | {"envelope": Envelope.model_validate_json(values["envelope"])},
            understanding=Understanding.model_validate_json(understanding) if understanding else None,
        )
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"])) or "text"
        raise LedgerUnavailableError(
            f"handoff {values['id']!r:.60}: its row is damaged ({field}); restore the ledger's database from a copy"
        ) from error
