"""How many random examples a test draws."""

from __future__ import annotations

import os

SEED = os.environ.get("TAKEOVER_TEST_SEED")
"""Seed of random tests; None for reproducible examples."""
_REPRODUCIBLE_PART = 4


def examples(count: int) -> int:
    """Return the number of random examples: all of them with a seed, else a quarter, which are the same in every run."""
    return count if SEED else max(count // _REPRODUCIBLE_PART, 10)
