"""How many random examples a test draws."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import TypeVar

from hypothesis import HealthCheck

SEED = os.environ.get("TAKEOVER_TEST_SEED")
"""Seed of random tests; None for reproducible examples."""
CHECKS_OFF = (HealthCheck.too_slow,)
"""Checks that no random test uses: a busy machine makes any test slow."""
SHARED_FIXTURES = (*CHECKS_OFF, HealthCheck.function_scoped_fixture)
"""The same for a test whose examples share the fixtures of its function."""
_REPRODUCIBLE_PART = 4
_RANDOM_PART = 2
_RowT = TypeVar("_RowT")


def examples(count: int) -> int:
    """Return the number of random examples: half of them with a seed, else a quarter, which are the same in every run."""
    return max(count // (_RANDOM_PART if SEED else _REPRODUCIBLE_PART), 10)


def draw(rows: Sequence[_RowT], count: int, key: str = "") -> list[_RowT]:
    """Return `count` rows of a long matrix, which differ by seed and key, in order; without a seed, all rows."""
    if SEED is None:
        return list(rows)
    chosen = set(Random(f"{SEED} {key}").sample(range(len(rows)), count))
    return [row for number, row in enumerate(rows) if number in chosen]
