"""Statistics over the handoffs of a ledger: success, time to acceptance, retries, refusals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import select

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.handoff.ledger.database import repeat_after_loss
from langgraph_takeover.handoff.ledger.handoffs import Handoff, HandoffState, list_handoffs
from langgraph_takeover.handoff.ledger.store import Ledger, transitions
from langgraph_takeover.handoff.records.envelope import parse_refusal_kind

_ENDED_STATES: tuple[HandoffState, ...] = ("completed", "blocked", "rolled_back")
UNKNOWN_KIND = "unknown"
"""Kind of a refusal whose reason names none."""
DEFAULT_VIEW = "default"
"""View of a handoff whose source asked for none."""


class Durations(Frozen):
    """The distribution of some durations."""

    median_s: float
    p90_s: float
    max_s: float


class GroupStatistics(Frozen):
    """Statistics over some handoffs."""

    handoffs: int
    open: int
    """Handoffs that have not ended: neither completed, nor blocked, nor rolled back."""
    accepted: int
    """Handoffs that were ever accepted."""
    completed: int
    success_rate: float | None
    """Completed handoffs in relation to all that have ended; None if none has ended."""
    time_to_acceptance: Durations | None
    """From the first offer to the first acceptance; None if none was accepted."""
    retries: int
    """Offers after the first one of each handoff."""
    refusals: dict[str, int]
    """Number of refusals by kind, most frequent first."""


class HandoffStatistics(GroupStatistics):
    """Statistics over all handoffs of a ledger, and by agent and view."""

    by_source: dict[str, GroupStatistics]
    by_target: dict[str, GroupStatistics]
    by_view: dict[str, GroupStatistics]


class _Course(NamedTuple):
    """One handoff and the parts of its history that count."""

    handoff: Handoff
    acceptance_s: float | None
    refusals: tuple[str, ...]


def compute_statistics(ledger: Ledger) -> HandoffStatistics:
    """Compute the statistics of a ledger's handoffs; nothing is written. Raises LedgerUnavailableError."""
    courses = _read_courses(ledger)
    return HandoffStatistics(
        **dict(_summarize(courses)),
        by_source=_group(courses, lambda each: each.handoff.source),
        by_target=_group(courses, lambda each: each.handoff.target),
        by_view=_group(courses, lambda each: each.handoff.envelope.view or DEFAULT_VIEW),
    )


@repeat_after_loss(idempotent=True)
def _read_courses(ledger: Ledger) -> list[_Course]:
    query = select(transitions).where(transitions.c.after.in_(("offered", "accepted", "rejected")))
    offered_at: dict[str, float] = {}
    accepted_at: dict[str, float] = {}
    refusals: dict[str, list[str]] = {}
    every = list_handoffs(ledger)
    with ledger.read_transaction() as connection:
        for row in connection.execute(query.order_by(transitions.c.handoff, transitions.c.version)):
            if row.after == "offered":
                offered_at.setdefault(row.handoff, row.at)
            elif row.after == "accepted":
                accepted_at.setdefault(row.handoff, row.at)
            elif row.before == "offered":
                refusals.setdefault(row.handoff, []).append(parse_refusal_kind(row.reason) or UNKNOWN_KIND)
    return [
        _Course(
            each,
            # A clock may have been set back meanwhile.
            max(accepted_at[each.id] - offered_at[each.id], 0.0) if each.id in accepted_at else None,
            tuple(refusals.get(each.id, ())),
        )
        for each in every
    ]


def _group(courses: Iterable[_Course], key: Callable[[_Course], str]) -> dict[str, GroupStatistics]:
    """Return the statistics by key, the largest group first."""
    groups: dict[str, list[_Course]] = {}
    for each in courses:
        groups.setdefault(key(each), []).append(each)
    return {
        name: _summarize(group)
        for name, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    }


def _summarize(courses: Sequence[_Course]) -> GroupStatistics:
    states = Counter(each.handoff.state for each in courses)
    ended = sum(states[state] for state in _ENDED_STATES)
    seconds = [each.acceptance_s for each in courses if each.acceptance_s is not None]
    kinds = Counter(kind for each in courses for kind in each.refusals)
    return GroupStatistics(
        handoffs=len(courses),
        open=len(courses) - ended,
        accepted=len(seconds),
        completed=states["completed"],
        success_rate=states["completed"] / ended if ended else None,
        time_to_acceptance=_describe_durations(seconds),
        retries=sum(max(each.handoff.offers - 1, 0) for each in courses),
        refusals=dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0]))),
    )


def _describe_durations(seconds: list[float]) -> Durations | None:
    if not seconds:
        return None
    deciles = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
    return Durations(median_s=statistics.median(seconds), p90_s=deciles[8], max_s=max(seconds))
