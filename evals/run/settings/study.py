"""The studies of the protocol as data: tasks, views, points, repeats, and shards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import yaml

from langgraph_takeover.evals.run.settings.config import POINTS, RunUsageError
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.sandbox.interface import Frozen

DATASET = "SWE-bench/SWE-bench_Verified"
TIERS = ("15 min - 1 hour", "1-4 hours")
_STUDIES = files("langgraph_takeover.evals.run.settings") / "studies"
_SHARD = re.compile(r"([\d,\-]+)/(\d+)")
_Item = TypeVar("_Item")


class Study(Frozen):
    """One study. The user sets the fields that it leaves open."""

    title: str
    tasks: int
    """Number of tasks, from the start of the fixed list."""
    views: tuple[str, ...]
    repeats: int = 1
    max_points: int | None = None
    predecessors: int = 1
    """Number of models in the paper."""
    successors: int = 1
    paper: Mapping[str, int]

    @property
    def task_ids(self) -> tuple[str, ...]:
        listed = (_STUDIES / "selected_075.txt").read_text(encoding="utf-8").split()
        return tuple(listed[: self.tasks])

    @property
    def options(self) -> dict[str, Any]:
        """The options that the study sets, named like the command line's."""
        return {
            "tasks": DATASET,
            "task_ids": ",".join(self.task_ids),
            "view": ",".join(self.views),
            "repeats": self.repeats,
            "max_points": self.max_points,
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


class Shard(NamedTuple):
    """Some of the equal parts of a run. Each task belongs to one part."""

    parts: frozenset[int]
    """Part numbers, from 1."""
    total: int

    def select(self, items: Sequence[_Item]) -> tuple[_Item, ...]:
        return tuple(item for number, item in enumerate(items) if number % self.total + 1 in self.parts)


def read_shard(text: str) -> Shard:
    """`2/8`, `1-3/8` or `1,5-6/8`. Raises RunUsageError."""
    matched = _SHARD.fullmatch(text)
    if matched is None:
        raise RunUsageError(f"--shard: invalid shard {text!r} (use 2/8, 1-3/8 or 1,5-6/8)")
    of = int(matched[2])
    parts: list[int] = []
    for piece in matched[1].split(","):
        first, _, last = piece.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or "-" in last:
            raise RunUsageError(f"--shard: {piece!r} in {text!r} is neither a number nor a range such as 1-3")
        parts += range(int(first), int(last or first) + 1)
    outside = [part for part in parts if not 1 <= part <= of]
    if outside or not parts:
        raise RunUsageError(f"--shard: {text!r}: parts are counted from 1 to {of}")
    twice = [part for part, number in Counter(parts).items() if number > 1]
    if twice:
        raise RunUsageError(f"--shard: {text!r} names part {twice[0]} twice")
    return Shard(frozenset(parts), of)


class ReachedPoint(NamedTuple):
    """A reached handoff point with its record."""

    task: Task
    predecessor: str
    record_id: str

    @property
    def kind(self) -> str:
        return self.record_id.rpartition(".")[2]


def choose_points(points: Sequence[ReachedPoint], limit: int | None) -> tuple[ReachedPoint, ...]:
    """At most that many points: from the kinds in turn, from the first task on, of all predecessors if all reached it. [ours]"""
    if limit is None or len(points) <= limit:
        return tuple(points)
    ranks = {name: n for n, name in enumerate(dict.fromkeys((point.task.id, point.kind) for point in points))}
    reached = Counter((point.task.id, point.kind) for point in points)
    by_kind = {
        kind: sorted(
            (point for point in points if point.kind == kind),
            key=lambda point: (-reached[point.task.id, point.kind], ranks[point.task.id, point.kind]),
        )
        for kind in POINTS
    }
    together = len({point.predecessor for point in points})
    taken: set[str] = set()
    while len(taken) < limit:
        for kind in POINTS:
            batch, by_kind[kind] = by_kind[kind][:together], by_kind[kind][together:]
            taken.update(point.record_id for point in batch[: limit - len(taken)])
    return tuple(point for point in points if point.record_id in taken)
