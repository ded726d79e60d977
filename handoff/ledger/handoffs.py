"""Where each handoff stands: every transition is one atomic compare-and-set, and illegal ones cannot be written.

    prepared -> offered -> accepted -> active -> completed

From `offered` it may be `rejected` or have `timed_out`, after which it is offered again or `blocked`. All of
them can be `rolled_back`. From acceptance on its source's thread is closed, and with a time-out
or a roll-back the successor's thread is: at no moment can two agents write for one handoff.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple, get_args

from pydantic import ValidationError
from sqlalchemy import Connection, delete, insert, select, update

from handoff.envelope import Envelope, Understanding
from handoff.ledger.database import LedgerUnusable
from handoff.ledger.leases import check_name, close, reopen
from handoff.ledger.store import Ledger, handoffs, keys, transitions
from handoff.redaction import redacted
from sandbox.machine import Frozen

State = Literal[
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
LEGAL: dict[State, tuple[State, ...]] = {
    "prepared": ("offered", "rolled_back"),
    "offered": ("accepted", "rejected", "timed_out", "rolled_back"),
    "rejected": ("offered", "blocked", "rolled_back"),
    "timed_out": ("offered", "blocked", "rolled_back"),
    "accepted": ("active", "timed_out", "rolled_back"),
    "active": ("completed", "timed_out", "rolled_back"),
    "blocked": ("offered", "rolled_back"),
    "completed": ("rolled_back",),
    "rolled_back": (),
}
"""What each state may turn into."""
HELD: tuple[State, ...] = ("accepted", "active", "completed")
"""The states in which the successor has the task, and the source's thread is closed."""
OPEN: tuple[State, ...] = ("prepared", "offered", "rejected", "timed_out", "accepted", "active")
"""The states from which it goes on by itself."""
KEY_LIFETIME_S = 24 * 3600.0


class Handoff(Frozen):
    """One handoff as the ledger has it."""

    id: str
    record: str
    digest: str
    """The record's, as it was sent."""
    task: str
    thread: str
    """The source's."""
    source: str
    target: str
    successor: str
    """The thread that the target works on."""
    state: State
    version: int
    """How many transitions lie behind it."""
    offers: int
    """How often it was offered so far."""
    deadline_at: float | None
    """By when what comes next has to have come; None where nothing is waited for."""
    reason: str
    """Of the last transition."""
    envelope: Envelope
    understanding: Understanding | None
    made_at: float
    changed_at: float


class Transition(NamedTuple):
    """One line of a handoff's history."""

    version: int
    before: State | None
    after: State
    by: str
    reason: str
    at: float


class NoSuchHandoff(LookupError):
    """The ledger has no handoff of that id."""

    def __str__(self) -> str:
        return str(self.args[0])


class IllegalTransition(ValueError):
    """What was asked for cannot follow upon the state that the handoff is in, or another one was faster."""

    def __init__(self, found: Handoff, to: State, why: str = "") -> None:
        may = ", ".join(LEGAL[found.state]) or "nothing: it has ended"
        said = why or f"is {found.state}, which cannot become {to}; it can become {may}"
        super().__init__(f"handoff {found.id} {said}")
        self.found = found


class KeyReused(ValueError):
    """An idempotency key came back with something else than it was first used for."""


def prepare(
    ledger: Ledger,
    *,
    handoff_id: str,
    record: str,
    digest: str,
    task: str,
    thread: str,
    source: str,
    target: str,
    envelope: Envelope,
    by: str,
    key: str = "",
) -> Handoff:
    """Write a new handoff down. Asked again with the same key, or for what is there already, it is what it was.

    Raises KeyReused, or ValueError for names that cannot be.
    """
    for what, name in {"handoff's id": handoff_id, "source's name": source, "target's name": target}.items():
        check_name(name, what)
    asked = {
        "id": handoff_id,
        "record": record,
        "digest": digest,
        "task": task,
        "thread": thread,
        "source": source,
        "target": target,
    }
    told = envelope.model_validate(redacted(envelope.model_dump(mode="json")))

    def write(connection: Connection, now: float) -> Handoff:
        there = _find(connection, handoff_id)
        if there is not None:
            if {name: getattr(there, name) for name in asked} != asked or there.envelope != told:
                raise KeyReused(
                    f"handoff {handoff_id} is there already, of record {there.record} to {there.target}"
                )
            return there
        connection.execute(
            insert(handoffs).values(
                **asked, successor="", state="prepared", version=1, offers=0, deadline_at=None,
                reason="", envelope=told.model_dump_json(), understanding=None, made_at=now, changed_at=now,
            )
        )  # fmt: skip
        _note(connection, Transition(1, None, "prepared", by, "", now), handoff_id)
        return _there(connection, handoff_id)

    return _once(ledger, key, ["prepare", asked, told.model_dump(mode="json")], write)


def move(
    ledger: Ledger,
    handoff_id: str,
    to: State,
    *,
    by: str,
    version: int | None = None,
    reason: str = "",
    key: str = "",
    deadline_s: float | None = None,
    successor: str | None = None,
    understanding: Understanding | None = None,
) -> Handoff:
    """One transition. Who asks again with the same key gets what it came to the first time.

    `version` is the one that the caller saw; with another the transition is refused. The deadline counts from
    now. Raises IllegalTransition, NoSuchHandoff, KeyReused, or HandedOver where another handoff has the source.
    """
    if to not in get_args(State):
        raise ValueError(f"there is no state {to!r:.60}; there are {', '.join(get_args(State))}")
    said = redacted(reason)[:500]
    meant = None if understanding is None else redacted(understanding.model_dump(mode="json"))

    def write(connection: Connection, now: float) -> Handoff:
        found = _there(connection, handoff_id)
        seen = found.version if version is None else version
        changes: dict[str, Any] = {
            "state": to,
            "version": seen + 1,
            "offers": found.offers + (to == "offered"),
            "deadline_at": None if deadline_s is None else now + deadline_s,
            "reason": said,
            "changed_at": now,
        }
        if successor is not None:
            changes["successor"] = successor
        if meant is not None:
            changes["understanding"] = json.dumps(meant)
        before = [state for state, may in LEGAL.items() if to in may]
        done = connection.execute(
            update(handoffs)
            .where(handoffs.c.id == handoff_id, handoffs.c.version == seen, handoffs.c.state.in_(before))
            .values(**changes)
        )
        if done.rowcount != 1:
            raise IllegalTransition(found, to)
        _note(connection, Transition(seen + 1, found.state, to, by, said, now), handoff_id)
        _pass_on(connection, found, to)
        return _there(connection, handoff_id)

    return _once(ledger, key, ["move", handoff_id, to, meant], write)


def find(ledger: Ledger, handoff_id: str) -> Handoff | None:
    with ledger.reading() as connection:
        return _find(connection, handoff_id)


def load(ledger: Ledger, handoff_id: str) -> Handoff:
    """Raises NoSuchHandoff."""
    with ledger.reading() as connection:
        return _there(connection, handoff_id)


def every(ledger: Ledger, states: Collection[State] = ()) -> tuple[Handoff, ...]:
    """All handoffs, oldest first, or those in these states."""
    asked = select(handoffs).order_by(handoffs.c.made_at, handoffs.c.id)
    if states:
        asked = asked.where(handoffs.c.state.in_(states))
    with ledger.reading() as connection:
        return tuple(_handoff(row) for row in connection.execute(asked))


def that_led_to(ledger: Ledger, thread: str) -> Handoff | None:
    """The handoff that a thread was begun for, if it was for one."""
    with ledger.reading() as connection:
        row = connection.execute(select(handoffs).where(handoffs.c.successor == thread)).first()
    return _handoff(row) if row else None


def reach(ledger: Ledger, handoff_id: str, to: State, *, by: str, reason: str = "") -> None:
    """Let a handoff that its successor has come to the next state of; said again, it changes nothing.

    Raises IllegalTransition where it is not the successor's any more.
    """
    found = load(ledger, handoff_id)
    if found.state != to and not (found.state in HELD and HELD.index(found.state) > HELD.index(to)):
        move(ledger, handoff_id, to, by=by, reason=reason, version=found.version)


def history(ledger: Ledger, handoff_id: str) -> tuple[Transition, ...]:
    """Its transitions, oldest first. Raises NoSuchHandoff."""
    asked = select(transitions).where(transitions.c.handoff == handoff_id).order_by(transitions.c.version)
    with ledger.reading() as connection:
        _there(connection, handoff_id)
        return tuple(
            Transition(row.version, row.before, row.after, row.by, row.reason, row.at)
            for row in connection.execute(asked)
        )


def forget_keys(ledger: Ledger) -> int:
    """Remove the idempotency keys whose time is over; how many those were."""
    with ledger.writing() as connection:
        return connection.execute(delete(keys).where(keys.c.expires_at <= ledger.now(connection))).rowcount


def _once(
    ledger: Ledger, key: str, asked: list[Any], write: Callable[[Connection, float], Handoff]
) -> Handoff:
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    if key:
        check_name(key)
    with ledger.writing() as connection:
        now = ledger.now(connection)
        if not key:
            return write(connection, now)
        connection.execute(delete(keys).where(keys.c.expires_at <= now))
        known = connection.execute(select(keys).where(keys.c.key == key)).first()
        if known is not None:
            if known.asked != digest:
                raise KeyReused(
                    f"the key {key!r} was used for something else; take a new one for each intent"
                )
            return Handoff.model_validate_json(known.result)
        result = write(connection, now)
        connection.execute(
            insert(keys).values(
                key=key, asked=digest, result=result.model_dump_json(), expires_at=now + KEY_LIFETIME_S
            )
        )
        return result


def _pass_on(connection: Connection, found: Handoff, to: State) -> None:
    """Close the thread of whoever has not the task any more, even where it still runs, and open the other's."""
    if to == "accepted":
        close(connection, found.thread, found.id, found.target)
    elif found.state in HELD and to not in HELD:
        later = select(handoffs.c.id).where(handoffs.c.thread == found.successor, handoffs.c.state.in_(HELD))
        if (next_one := connection.execute(later).scalars().first()) is not None:
            raise IllegalTransition(found, to, f"was handed on by handoff {next_one}; roll that back first")
        reopen(connection, found.thread, found.id)
        if found.successor:
            close(connection, found.successor, found.id)


def _note(connection: Connection, transition: Transition, handoff_id: str) -> None:
    connection.execute(insert(transitions).values(handoff=handoff_id, **transition._asdict()))


def _there(connection: Connection, handoff_id: str) -> Handoff:
    found = _find(connection, handoff_id)
    if found is None:
        ids = (
            connection.execute(select(handoffs.c.id).order_by(handoffs.c.made_at.desc()).limit(10))
            .scalars()
            .all()
        )
        raise NoSuchHandoff(
            f"there is no handoff {handoff_id!r:.60}; "
            + (f"there are {', '.join(ids)}" if ids else "there is none yet")
        )
    return found


def _find(connection: Connection, handoff_id: str) -> Handoff | None:
    row = connection.execute(select(handoffs).where(handoffs.c.id == handoff_id)).first()
    return _handoff(row) if row else None


def _handoff(row: Any) -> Handoff:
    values = row._asdict()
    understanding = values.pop("understanding")
    try:
        return Handoff(
            **values | {"envelope": Envelope.model_validate_json(values["envelope"])},
            understanding=Understanding.model_validate_json(understanding) if understanding else None,
        )
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"])) or "text"
        raise LedgerUnusable(
            f"handoff {values['id']!r:.60}: its row is damaged ({field}); restore the ledger's database from a copy"
        ) from error
