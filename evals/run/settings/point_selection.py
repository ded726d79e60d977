"""Selection of handoff points: a number per predecessor, balanced over the kinds, of any state or of one."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import NamedTuple, cast, get_args

from langgraph_takeover.evals.run.settings.config import POINTS, RunConfig, RunUsageError, read_names
from langgraph_takeover.evals.run.settings.entries import Shard
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.evals.tasks.grading import HandoffState
from langgraph_takeover.handoff.trace.events import PointKind

_QUOTA = re.compile(r"([a-z_]+)=(\d{1,6})(?::([a-z_,]+))?")


class ReachedPoint(NamedTuple):
    """A reached handoff point with its record."""

    task: Task
    predecessor: str
    record_id: str

    @property
    def kind(self) -> str:
        return self.record_id.rpartition(".")[2]


class Quota(NamedTuple):
    """Maximum number of handoff points per predecessor, split evenly over the kinds."""

    number: int
    kinds: tuple[PointKind, ...] = POINTS
    state: HandoffState | None = None
    """None: points of any state."""

    def list_wanted_kinds(self, shard: Shard | None) -> tuple[PointKind, ...]:
        """The kind of each point; of a shard, an even part of each kind."""
        in_turn = list(islice(cycle(self.kinds), self.number))
        wanted = tuple(sorted(in_turn, key=self.kinds.index))
        return wanted if shard is None else shard.select(wanted)


def read_quotas(texts: Iterable[str]) -> tuple[Quota, ...]:
    """Quotas such as `needs_completion=30` or `already_solved=10:first_validation`. Raises RunUsageError."""
    quotas: list[Quota] = []
    for text in texts:
        matched = _QUOTA.fullmatch(text)
        if matched is None or not int(matched[2]):
            raise RunUsageError(
                f"--quota: invalid quota {text!r} (use STATE=NUMBER or STATE=NUMBER:POINT,POINT)"
            )
        state, number, kinds = matched.groups()
        if state not in get_args(HandoffState):
            raise RunUsageError(f"--quota: unknown state {state!r} (use {', '.join(get_args(HandoffState))})")
        if any(state == quota.state for quota in quotas):
            raise RunUsageError(f"--quota: {state} has two quotas (pass one)")
        quotas.append(
            Quota(
                int(number),
                read_names("--quota", "point", kinds, POINTS) if kinds else POINTS,
                cast("HandoffState", state),
            )
        )
    return tuple(quotas)


def list_quotas(config: RunConfig) -> tuple[Quota, ...]:
    """The quotas of a run; none if it takes all points. Raises RunUsageError."""
    if config.max_points is not None:
        return (Quota(config.max_points, config.points),)
    return read_quotas(config.quotas)


def choose_points(
    points: Sequence[ReachedPoint],
    quotas: Sequence[Quota],
    states: Mapping[str, str | None],
    shard: Shard | None = None,
) -> tuple[ReachedPoint, ...]:
    """The points of all quotas, in their given order. [ours]

    Each predecessor gets its own. Within a kind, points that more of the predecessors reached come first, then the
    order of the tasks decides. A kind with too few points is replaced by the quota's other kinds, in turn.
    """
    reached = Counter((point.task.id, point.kind) for point in points)
    ranked = sorted(points, key=lambda point: -reached[point.task.id, point.kind])  # stable
    taken: set[str] = set()
    for predecessor in dict.fromkeys(point.predecessor for point in points):
        for quota in quotas:
            taken |= _fill_quota(
                quota.list_wanted_kinds(shard),
                quota.kinds,
                (
                    point
                    for point in ranked
                    if point.predecessor == predecessor
                    and quota.state in (None, states.get(point.record_id))
                    and point.record_id not in taken
                ),
            )
    return tuple(point for point in points if point.record_id in taken)


def describe_shortages(
    chosen: Sequence[ReachedPoint],
    quotas: Sequence[Quota],
    states: Mapping[str, str | None],
    predecessors: Sequence[str],
    shard: Shard | None = None,
) -> list[str]:
    """The quotas with fewer points than requested, for instance `2 of 30 needs_completion points by openai:a`."""
    shortages = []
    for predecessor in predecessors:
        for quota in quotas:
            number = sum(
                point.predecessor == predecessor and quota.state in (None, states.get(point.record_id))
                for point in chosen
            )
            wanted = len(quota.list_wanted_kinds(shard))
            if number < wanted:
                state = f"{quota.state} " if quota.state else ""
                shortages.append(f"{number} of {wanted} {state}points by {predecessor}")
    return shortages


def _fill_quota(
    wanted: Sequence[PointKind], kinds: Sequence[PointKind], candidates: Iterable[ReachedPoint]
) -> set[str]:
    """The ids of as many candidates as are wanted, of the wanted kinds as far as possible."""
    left: dict[str, deque[str]] = defaultdict(deque)
    for point in candidates:
        left[point.kind].append(point.record_id)
    taken = {left[kind].popleft() for kind in wanted if left[kind]}
    while len(taken) < len(wanted) and any(left[kind] for kind in kinds):
        taken.update([left[kind].popleft() for kind in kinds if left[kind]][: len(wanted) - len(taken)])
    return taken
