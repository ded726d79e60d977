"""Find and repair what dead runs left in a home; report the rest with a cure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from langgraph_takeover.graph.home import Home
from langgraph_takeover.handoff.ledger import effects, handoffs, idempotency, leases
from langgraph_takeover.handoff.ledger.handoffs import Handoff, HandoffState
from langgraph_takeover.handoff.records.record import RecordError
from langgraph_takeover.nodes.delivery.policy import DeliveryPolicy

_OFFER_GRACE_S = 60.0
"""Seconds that a sender may take from storing a handoff to offering it."""
_PARTIAL_RECORD_AGE_S = 3600.0
_MAX_CLOCK_SKEW_S = 60.0
_ACTOR = "the repair"


class RepairFinding(NamedTuple):
    """One finding of a repair.

    Example:
        >>> from langgraph_takeover.protocol import repair
        >>> [finding.action for finding in repair(home)]
        []
    """

    subject: str
    problem: str
    action: str


def repair(home: Home, *, confirm_s: float = DeliveryPolicy().confirm_timeout_s) -> tuple[RepairFinding, ...]:
    """Repair what a crash may have left in a home; a second call finds nothing more to repair.

    Safe beside active runs: what a live process holds is not touched. Raises LedgerUnavailableError.

    Example:
        >>> from langgraph_takeover.protocol import repair
        >>> repair(home)
        ()
    """
    return (
        *(
            finding
            for found in handoffs.list_handoffs(home.ledger)
            for finding in _check_handoff(home, found, confirm_s)
        ),
        *_check_effects(home),
        *_clean_files(home),
    )


def _check_handoff(home: Home, handoff: Handoff, confirm_s: float) -> Iterator[RepairFinding]:
    what = f"handoff {handoff.id}"
    with home.ledger.read_transaction() as connection:
        now = home.ledger.now(connection)
    if handoff.changed_at > now + _MAX_CLOCK_SKEW_S:
        yield RepairFinding(
            what,
            f"was changed {handoff.changed_at - now:,.0f} s in the future",
            "set this host's clock",
        )
    if handoff.state in handoffs.OPEN_STATES and (trouble := _find_record_problem(home, handoff)):
        yield RepairFinding(what, trouble, f"send the record again, or: handoff rollback {handoff.id}")
    if handoff.state == "prepared" and now - handoff.changed_at > _OFFER_GRACE_S:
        why = "its sender died before it was offered"
        if _try_move(home, handoff, "offered", why, deadline_s=confirm_s):
            yield RepairFinding(what, "was prepared but never offered", f"offered to {handoff.target}")
    elif handoff.state == "offered" and handoff.deadline_at is not None and now > handoff.deadline_at:
        why = f"{handoff.target} did not confirm in time"
        if _try_move(home, handoff, "timed_out", why):
            yield RepairFinding(what, why, f"set to timed_out; deliver it again: {handoff.id}")
    elif handoff.state in ("accepted", "active") and not leases.is_held(home.ledger, handoff.successor):
        yield RepairFinding(
            what,
            f"is {handoff.state}, but no process works on {handoff.successor}",
            f"deliver() continues there; or: handoff retry {handoff.id}",
        )
    elif handoff.state == "blocked":
        yield RepairFinding(
            what, f"is blocked: {handoff.reason}", f"handoff unblock {handoff.id}, or rollback"
        )


def _try_move(home: Home, handoff: Handoff, to: HandoffState, reason: str, **options: Any) -> bool:
    """Try a transition; False if another process has repaired or confirmed it meanwhile."""
    try:
        handoffs.change_state(
            home.ledger, handoff.id, to, by=_ACTOR, version=handoff.version, reason=reason, **options
        )
    except handoffs.IllegalTransitionError:
        return False
    return True


def _find_record_problem(home: Home, handoff: Handoff) -> str:
    try:
        record = home.records.load(handoff.record)
    except RecordError as error:
        return str(error)
    return (
        "" if record.digest == handoff.digest else f"record {handoff.record} is not the record that was sent"
    )


def _check_effects(home: Home) -> Iterator[RepairFinding]:
    for thread in effects.list_unfinished_threads(home.ledger):
        if not leases.is_held(home.ledger, thread):
            yield RepairFinding(
                f"thread {thread}", "a call started and did not end", "undone when the thread resumes"
            )


def _clean_files(home: Home) -> Iterator[RepairFinding]:
    expired = idempotency.remove_expired_keys(home.ledger)
    if expired:
        yield RepairFinding("idempotency keys", f"{expired} had expired", "removed")
    old = home.records.remove_partial(older_than=time.time() - _PARTIAL_RECORD_AGE_S)
    if old:
        yield RepairFinding("records", f"{old} were never completely saved", "removed")
    unused = home.remove_unused_snapshots()
    if unused:
        yield RepairFinding("snapshots", f"{unused} belonged to no checkpoint", "removed")
