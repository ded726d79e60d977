"""What matched takeovers prove: reductions and deltas against a baseline, with intervals and exact tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binomtest, bootstrap

from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.settings.config import BASELINE

RESAMPLES, SEED, CONFIDENCE = 5_000, 20260518, 0.95
POINT_KEY = ("record_id", "successor", "repeat")
REDISCOVERY_KINDS = ("read", "search", "command")
_BATCH = 1_000
"""Resamples at a time, so that many pairs need little memory."""


class Pair(NamedTuple):
    """Two takeovers that differ in one thing only."""

    row: Row
    baseline: Row


class Interval(NamedTuple):
    """95 %, by percentile bootstrap."""

    low: float
    high: float


class Estimate(NamedTuple):
    """What pairs come to; no value without a pair, no interval from fewer than two."""

    pairs: int
    excluded: int
    """Pairs of which a measure is not known, or whose baseline is zero."""
    value: float | None
    interval: Interval | None


class McNemar(NamedTuple):
    """Pairs in which only one of the two is solved, and how likely they are if neither is better."""

    gained: int
    lost: int
    p: float | None


def select_graded(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Those whose infrastructure held; only they have measures."""
    return tuple(row for row in rows if row["outcome"] == "graded")


def read_measure(row: Row, measure: str) -> float | None:
    """A measure of a row; None where nobody counted, which NaN says too."""
    value = row.get(measure)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def read_values(rows: Iterable[Row], measure: str) -> list[float]:
    """The measure's values, where they are known."""
    return [value for row in rows if (value := read_measure(row, measure)) is not None]


def quantile(sample: Sequence[float], share: float) -> float | None:
    """Interpolated linearly; None of nothing."""
    return float(np.quantile(sample, share)) if sample else None


def match_pairs(rows: Iterable[Row], baselines: Iterable[Row], key: Sequence[str]) -> tuple[Pair, ...]:
    """Graded rows beside the graded baseline of the same key, by key whatever order they come in."""
    of = {tuple(row[name] for name in key): row for row in select_graded(baselines)}
    found = {tuple(row[name] for name in key): row for row in select_graded(rows)}
    return tuple(Pair(found[one], of[one]) for one in sorted(found) if one in of)


def pair_with_baseline(rows: Sequence[Row], view: str, baseline: str = BASELINE) -> tuple[Pair, ...]:
    """Takeovers under a view, each beside the one under the baseline at its point, by its successor and repeat."""
    return match_pairs(
        (row for row in rows if row["view"] == view),
        (row for row in rows if row["view"] == baseline),
        POINT_KEY,
    )


def read_paired_values(pairs: Iterable[Pair], measure: str) -> list[tuple[float, float]]:
    """The measure of both, where both are known."""
    both = ((read_measure(row, measure), read_measure(baseline, measure)) for row, baseline in pairs)
    return [(a, b) for a, b in both if a is not None and b is not None]


def compute_savings(pairs: Iterable[Pair], measure: str) -> list[float]:
    """Pair by pair, the share of the measure that is saved."""
    return [1 - a / b for a, b in read_paired_values(pairs, measure) if b > 0]


def estimate_reduction(pairs: Sequence[Pair], measure: str) -> Estimate:
    """The median of what pairs save."""
    saved = compute_savings(pairs, measure)
    return _build_estimate(saved, len(pairs) - len(saved), np.median)


def estimate_solved_delta(pairs: Sequence[Pair]) -> Estimate:
    """The mean, over pairs, of solved (1 or 0) less the baseline's."""
    return _build_estimate([float(a["resolved"]) - float(b["resolved"]) for a, b in pairs], 0, np.mean)


def compute_median_change(pairs: Sequence[Pair], measure: str) -> float | None:
    """How much the median over pairs differs from the baselines' median, as a share of that."""
    both = read_paired_values(pairs, measure)
    base = median(b for _, b in both) if both else 0
    return median(a for a, _ in both) / base - 1 if base > 0 else None


def bootstrap_interval(sample: Sequence[float], statistic: Callable[..., Any]) -> Interval | None:
    if len(sample) < 2:
        return None
    result = bootstrap(
        (np.asarray(sample, dtype=float),),
        statistic,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        batch=_BATCH,
        rng=np.random.default_rng(SEED),
    )
    return Interval(float(result.confidence_interval.low), float(result.confidence_interval.high))


def mcnemar(pairs: Iterable[Pair]) -> McNemar:
    """Exact and two-sided, over discordant pairs; p is 1 where there is none, and None without a pair."""
    kinds = Counter((bool(a["resolved"]), bool(b["resolved"])) for a, b in pairs)
    gained, lost = kinds[True, False], kinds[False, True]
    if not kinds:
        return McNemar(0, 0, None)
    return McNemar(
        gained, lost, float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
    )


def total_tokens(row: Row) -> float | None:
    """Prompt and completion tokens; None unless both are known."""
    prompt, completion = read_measure(row, "prompt_tokens"), read_measure(row, "completion_tokens")
    return None if prompt is None or completion is None else prompt + completion


def compute_break_even(notes_tokens: float | None, pairs: Iterable[Pair]) -> float | None:
    """After how many takeovers notes of so many tokens are paid by what a takeover saves, in the median.

    None when nothing is saved, or nobody counted.
    """
    both = ((total_tokens(row), total_tokens(baseline)) for row, baseline in pairs)
    saved = [b - a for a, b in both if a is not None and b is not None]
    if notes_tokens is None or not saved or median(saved) <= 0:
        return None
    return notes_tokens / median(saved)


def count_rediscovery(rows: Iterable[Row]) -> Counter[str]:
    """Events by kind: those that find out again what the predecessor knew, and `verification`."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update({kind: int((row.get("rediscovery") or {}).get(kind, 0)) for kind in REDISCOVERY_KINDS})
        found["verification"] += int(row.get("verification_events") or 0)
    return found


def _build_estimate(sample: list[float], excluded: int, statistic: Callable[..., Any]) -> Estimate:
    value = float(statistic(sample)) if sample else None
    return Estimate(len(sample), excluded, value, bootstrap_interval(sample, statistic))
