"""How many random examples a test draws."""

from __future__ import annotations

import os

from hypothesis import HealthCheck

SEED = os.environ.get("TAKEOVER_TEST_SEED")
"""Seed of random tests; None for reproducible examples."""
CHECKS_OFF = (HealthCheck.too_slow,)
"""Checks that no random test uses: a busy machine makes any test slow."""
SHARED_FIXTURES = (*CHECKS_OFF, HealthCheck.function_scoped_fixture)
"""The same for a test whose examples share the fixtures of its function."""
_REPRODUCIBLE_PART = 4


def examples(count: int) -> int:
    """Return the number of random examples: all of them with a seed, else a quarter, which are the same in every run."""
    return count if SEED else max(count // _REPRODUCIBLE_PART, 10)
