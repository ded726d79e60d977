"""The studies of the protocol as data, and the selection of handoff points."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import cycle, islice
from typing import Any, NamedTuple, cast, get_args

import yaml

from langgraph_takeover.base.values import Frozen
from langgraph_takeover.evals.models import parse_model_name, split_agent
from langgraph_takeover.evals.run.settings.config import POINTS, RunConfig, RunUsageError, Shard, read_names
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.evals.tasks.grading import HandoffState
from langgraph_takeover.handoff.names import AGENT_NAMES, CONTINUATION
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


TIERS = ("15 min - 1 hour", "1-4 hours")
SEED = 20260430
EXCLUDED = "sphinx-doc__sphinx-9229"
_TIER_PATTERN = (0, 0, 1)
"""Two tasks of the first tier, then one of the second."""


def order_tasks(instances: Iterable[Mapping[str, Any]]) -> list[str]:
    """The ids of the tasks of both tiers in the study's order, with the excluded task.

    Tasks are grouped by tier and repository, and each group is shuffled. Each position takes a task of its tier from
    the repository that was taken least often, the first in the alphabet of those. [ours, see above]
    """
    groups: dict[tuple[int, str], list[str]] = {}
    for instance in sorted(instances, key=lambda each: str(each["instance_id"])):
        if instance.get("difficulty") in TIERS:
            group = (TIERS.index(instance["difficulty"]), str(instance["repo"]))
            groups.setdefault(group, []).append(str(instance["instance_id"]))
    generator = random.Random(SEED)
    for group in sorted(groups):
        generator.shuffle(groups[group])
    order: list[str] = []
    taken: Counter[str] = Counter()
    while remaining := [group for group in groups if groups[group]]:
        tier = _TIER_PATTERN[len(order) % len(_TIER_PATTERN)]
        of_tier = [group for group in remaining if group[0] == tier] or remaining
        group = min(of_tier, key=lambda each: (taken[each[1]], each[1]))
        order.append(groups[group].pop(0))
        taken[group[1]] += 1
    return order


def add_continuation(views: str) -> str:
    """The names of views with `continuation`, the baseline of the study."""
    return views if CONTINUATION in re.split(r"[\s,]+", views) else f"{views},{CONTINUATION}"


def list_installed(model: str, programs: Mapping[str, str]) -> list[str]:
    """The names of this model in each installed external agent, and in the built-in one. Raises RunUsageError."""
    from langgraph_takeover.agents import AgentProgramError, external_agent

    bare = split_agent(model)[1]
    names = []
    for agent in AGENT_NAMES:
        try:
            external_agent(agent, program=programs.get(agent))
        except AgentProgramError:
            continue
        names.append(f"{agent}:{bare}")
    if not names:
        raise RunUsageError(
            f"--study agents: no external agent is installed: {', '.join(AGENT_NAMES)} (put one on PATH, pass "
            "--agent-program, or name the agents by --predecessor)"
        )
    # The vendor's endpoint answers only its own agent.
    is_native = parse_model_name(names[0]).kind == "native"
    return names if is_native else [*names, bare]


DATASET = "SWE-bench/SWE-bench_Verified"
_STUDIES = files("langgraph_takeover.evals.run.settings") / "studies"


class Study(Frozen):
    """One study. The user sets the fields that it leaves open."""

    title: str
    tasks: int | None = None
    """Number of tasks, from the start of the fixed order; None: the user's tasks."""
    views: tuple[str, ...]
    repeats: int = 1
    max_points: int | None = None
    """Per predecessor."""
    quotas: tuple[str, ...] = ()
    """Numbers of points by state, as `read_quotas` reads them."""
    predecessors: int = 1
    """Number of models in the paper."""
    successors: int = 1
    mixes_agents: bool = False
    """Whether each agent of the run takes over from each."""
    paper: Mapping[str, int] = {}
    """Counts of the paper's study; empty for a study that the paper does not have."""

    def list_task_ids(self, limit: int | None = None) -> tuple[str, ...]:
        """The study's tasks; those that follow them in the order too, if the limit is higher."""
        listed = (_STUDIES / "task_order.txt").read_text(encoding="utf-8").split()
        return tuple(listed[: max(self.tasks or 0, limit or 0)])

    def get_options(self, limit: int | None = None) -> dict[str, Any]:
        """The options that the study sets, named like the command line's."""
        if self.tasks is None:
            return {"view": ",".join(self.views)}
        return {
            "tasks": DATASET,
            "task_ids": ",".join(self.list_task_ids(limit)),
            "view": ",".join(self.views),
            "repeats": self.repeats,
            "max_points": self.max_points,
            "quota": list(self.quotas),
            "prompt": "paper",
            "grading_network": True,
        }


@lru_cache
def load_studies() -> dict[str, Study]:
    read = yaml.safe_load((_STUDIES / "studies.yaml").read_text(encoding="utf-8"))
    return {name: Study.model_validate(settings) for name, settings in read.items()}


def get_study(name: str) -> Study:
    """Raises RunUsageError."""
    if name not in load_studies():
        raise RunUsageError(f"--study: unknown study {name!r} (use {', '.join(load_studies())})")
    return load_studies()[name]


def check_tiers(tasks: Sequence[Task], source: str) -> None:
    """Check that a study's tasks have its two difficulties. Raises RunUsageError."""
    for task in tasks:
        tier = task.instance.get("difficulty")
        if tier not in TIERS:
            raise RunUsageError(
                f"--tasks: {source}: task {task.id} has difficulty {tier!r}, but the study requires {' or '.join(TIERS)} "
                "(use SWE-bench Verified)"
            )
