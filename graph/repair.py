"""What a start-up finds of earlier runs that died: mended where that is safe, else told with what mends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from graph.home import Home
from handoff.ledger import effects, handoffs, leases
from handoff.ledger.handoffs import Handoff, State
from handoff.record import RecordRefused
from nodes.delivering import Patience

_SENDER_S = 60.0
"""How long a sender may take from writing a handoff down to offering it."""
_PARTIAL_S = 3600.0
_SKEW_S = 60.0
_BY = "the repair"


class Finding(NamedTuple):
    """One thing that was found, and what was done about it or is to be done."""

    what: str
    found: str
    done: str


def repair(home: Home, *, confirm_s: float = Patience().confirm_s) -> tuple[Finding, ...]:
    """Look at everything in a home that a crash may have left, and mend it; asked again it finds nothing more to mend.

    Safe beside runs that are at work: what a live process holds is left alone.
    """
    return (
        *(finding for found in handoffs.every(home.ledger) for finding in _of(home, found, confirm_s)),
        *_of_effects(home),
        *_of_files(home),
    )


def _of(home: Home, found: Handoff, confirm_s: float) -> Iterator[Finding]:
    what = f"handoff {found.id}"
    with home.ledger.reading() as connection:
        now = home.ledger.now(connection)
    if found.changed_at > now + _SKEW_S:
        yield Finding(
            what, f"was changed {found.changed_at - now:,.0f} s in the future", "set this host's clock right"
        )
    if found.state in handoffs.OPEN and (trouble := _record_trouble(home, found)):
        yield Finding(what, trouble, f"send the record again, or: python -m handoff rollback {found.id}")
    if found.state == "prepared" and now - found.changed_at > _SENDER_S:
        why = "its sender died before it was offered"
        if _moved(home, found, "offered", why, deadline_s=confirm_s):
            yield Finding(what, "was prepared and never offered", f"offered to {found.target}")
    elif found.state == "offered" and found.deadline_at is not None and now > found.deadline_at:
        why = f"{found.target} did not confirm in time"
        if _moved(home, found, "timed_out", why):
            yield Finding(what, why, f"timed out; deliver it again: {found.id}")
    elif found.state in ("accepted", "active") and not leases.is_held(home.ledger, found.successor):
        yield Finding(
            what,
            f"is {found.state}, and nobody works on {found.successor}",
            f"deliver goes on there; or: python -m handoff retry {found.id}",
        )
    elif found.state == "blocked":
        yield Finding(
            what, f"is blocked: {found.reason}", f"python -m handoff unblock {found.id}, or rollback"
        )


def _moved(home: Home, found: Handoff, to: State, why: str, **more: Any) -> bool:
    """Whether it was still as it was seen: another process may mend it, or confirm it, at the same time."""
    try:
        handoffs.move(home.ledger, found.id, to, by=_BY, version=found.version, reason=why, **more)
    except handoffs.IllegalTransition:
        return False
    return True


def _record_trouble(home: Home, found: Handoff) -> str:
    try:
        record = home.records.load(found.record)
    except RecordRefused as error:
        return str(error)
    return "" if record.digest == found.digest else f"record {found.record} is another one than was sent"


def _of_effects(home: Home) -> Iterator[Finding]:
    for thread in effects.unfinished(home.ledger):
        if not leases.is_held(home.ledger, thread):
            yield Finding(f"thread {thread}", "a call had begun and not ended", "undone when it is resumed")


def _of_files(home: Home) -> Iterator[Finding]:
    expired = handoffs.forget_keys(home.ledger)
    if expired:
        yield Finding("idempotency keys", f"{expired} had expired", "removed")
    old = home.records.remove_partial(older_than=time.time() - _PARTIAL_S)
    if old:
        yield Finding("records", f"{old} were never saved whole", "removed")
    unused = home.remove_unused_machines()
    if unused:
        yield Finding("machines", f"{unused} belonged to no checkpoint", "removed")
