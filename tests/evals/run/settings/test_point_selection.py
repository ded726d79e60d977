"""Selection of handoff points by number, kind and state."""

from __future__ import annotations

from collections import Counter

import pytest

from langgraph_takeover.evals.run.settings.config import POINTS, RunUsageError, read_shard
from langgraph_takeover.evals.run.settings.study import (
    Quota,
    ReachedPoint,
    choose_points,
    describe_shortages,
    get_study,
    read_quotas,
)
from langgraph_takeover.evals.tasks import Task


def make_points(*reached: tuple[int, str, str]) -> list[ReachedPoint]:
    return [
        ReachedPoint(Task(id=f"t{n}", instance={}), model, f"t{n}.{model}.{kind}")
        for n, model, kind in reached
    ]


def make_pool(tasks: int, failing: int, models: str = "m") -> list[ReachedPoint]:
    """The points of tasks by each model; only the first tasks fail a validation."""
    return make_points(
        *((n, model, kind) for n in range(tasks) for model in models for kind in POINTS[: 2 + (n < failing)])
    )


def count_kinds(points: tuple[ReachedPoint, ...]) -> list[int]:
    kinds = Counter(point.kind for point in points)
    return [kinds[kind] for kind in POINTS]


def test_points_are_split_evenly_over_the_kinds() -> None:
    pool = make_pool(10, 4)
    found = choose_points(pool, [Quota(10)], {})
    assert count_kinds(found) == [4, 3, 3]
    assert {point.task.id for point in found} == {"t0", "t1", "t2", "t3"}
    assert choose_points(pool, [Quota(10)], {}) == found
    assert choose_points(pool, [Quota(100)], {}) == tuple(pool)


def test_other_kinds_replace_one_with_too_few_points() -> None:
    assert count_kinds(choose_points(make_pool(20, 3), [Quota(30)], {})) == [14, 13, 3]


def test_each_predecessor_gets_its_own_points() -> None:
    found = choose_points(make_pool(40, 16, "abc"), [Quota(60)], {})
    assert Counter(point.predecessor for point in found) == {"a": 60, "b": 60, "c": 60}
    few = choose_points([*make_pool(40, 16, "ab"), *make_points((0, "c", POINTS[0]))], [Quota(60)], {})
    assert Counter(point.predecessor for point in few) == {"a": 60, "b": 60, "c": 1}


def test_points_reached_by_all_predecessors_come_first() -> None:
    reached = make_points(
        (0, "a", POINTS[0]),
        *((1, model, POINTS[0]) for model in "abc"),
        *((2, model, POINTS[0]) for model in "ab"),
        *((3, model, POINTS[1]) for model in "abc"),
    )
    found = choose_points(reached, [Quota(2)], {})
    assert Counter((point.task.id, point.kind) for point in found) == {
        ("t1", POINTS[0]): 3,
        ("t3", POINTS[1]): 3,
    }


def make_states(points: list[ReachedPoint], solved_every: int) -> dict[str, str | None]:
    return {
        point.record_id: "needs_completion" if number % solved_every else "already_solved"
        for number, point in enumerate(points)
    }


def test_the_study_of_repeats() -> None:
    quotas = read_quotas(get_study("repeats").quotas)
    pool = make_pool(75, 31)
    states = make_states(pool, 4)
    found = choose_points(pool, quotas, states)
    by_state = {
        state: tuple(point for point in found if states[point.record_id] == state)
        for state in ("needs_completion", "already_solved")
    }
    assert count_kinds(by_state["needs_completion"]) == [10, 10, 10]
    assert count_kinds(by_state["already_solved"]) == [5, 5, 0]
    assert choose_points(pool, quotas, states) == found


def test_a_state_with_too_few_points_is_not_replaced_by_another() -> None:
    quotas = read_quotas(["needs_completion=6", "already_solved=4:first_source_edit,first_validation"])
    pool = make_pool(6, 1)
    states = make_states(pool, 100)  # one point is solved
    found = choose_points(pool, quotas, states)
    assert Counter(states[point.record_id] for point in found) == {"needs_completion": 6, "already_solved": 1}
    assert describe_shortages(found, quotas, states, ["m", "n"]) == [
        "1 of 4 already_solved points by m",
        "0 of 6 needs_completion points by n",
        "0 of 4 already_solved points by n",
    ]
    assert choose_points(pool, quotas, dict.fromkeys(states, "behavior_broken")) == ()
    assert choose_points(pool, quotas, {}) == ()


@pytest.mark.parametrize("total", [2, 3, 6, 8])
def test_the_shards_of_a_quota_add_up_and_are_balanced(total: int) -> None:
    (quota,) = read_quotas(["needs_completion=30"])
    pool = make_pool(72, 72)
    states = dict.fromkeys((point.record_id for point in pool), "needs_completion")
    kinds = Counter[str]()
    for part in range(1, total + 1):
        shard = read_shard(f"{part}/{total}")
        own = {f"t{n}" for n in shard.select(range(72))}
        found = choose_points([point for point in pool if point.task.id in own], [quota], states, shard)
        numbers = count_kinds(found)
        assert max(numbers) - min(numbers) <= 1, "no shard has a kind for itself"
        kinds.update(point.kind for point in found)
    assert kinds == dict.fromkeys(POINTS, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("solved", "use STATE=NUMBER"),
        ("already_solved=0", "use STATE=NUMBER"),
        ("solved=3", "unknown state 'solved'"),
        ("already_solved=3:edit", "--quota: unknown point 'edit'"),
    ],
)
def test_invalid_quotas(text: str, message: str) -> None:
    with pytest.raises(RunUsageError, match=message):
        read_quotas([text])
    with pytest.raises(RunUsageError, match="two quotas"):
        read_quotas(["already_solved=3", "already_solved=4"])
