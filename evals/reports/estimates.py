"""Effects of matched takeovers against a baseline, with bootstrap intervals and exact tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.stats import binomtest, bootstrap

from langgraph_takeover.evals.run.measures.rediscovery import REDISCOVERY_KINDS
from langgraph_takeover.evals.run.rows import Row, Takeover
from langgraph_takeover.evals.run.settings.config import BASELINE

_TakeoverT = TypeVar("_TakeoverT", bound=Takeover)
RESAMPLES, SEED, CONFIDENCE = 5_000, 20260518, 0.95
POINT_KEY = ("record_id", "successor", "repeat")
_BATCH = 1_000
"""Resamples per batch, to bound memory."""


class Pair(NamedTuple):
    """A takeover and its baseline, which differ in one factor only."""

    row: Takeover
    baseline: Takeover


class Interval(NamedTuple):
    """A 95 % interval by percentile bootstrap."""

    low: float
    high: float


class Estimate(NamedTuple):
    """An estimate over pairs: no value without a pair, no interval with fewer than two."""

    pairs: int
    excluded: int
    """Pairs in which a measure is unknown or the baseline is zero."""
    value: float | None
    interval: Interval | None


class McNemar(NamedTuple):
    """Discordant pairs (gained: only the takeover is solved; lost: only the baseline) and their exact p-value."""

    gained: int
    lost: int
    p: float | None


def select_graded(rows: Iterable[_TakeoverT]) -> tuple[_TakeoverT, ...]:
    """The rows without an infrastructure failure; only they have measures."""
    return tuple(row for row in rows if row.outcome == "graded")


def read_measure(row: Row, measure: str) -> float | None:
    """A measure of a row; None if it is unknown."""
    value: float | None = getattr(row, measure)
    return value


def read_values(rows: Iterable[Row], measure: str) -> list[float]:
    """The known values of a measure."""
    return [value for row in rows if (value := read_measure(row, measure)) is not None]


def quantile(sample: Sequence[float], share: float) -> float | None:
    """The quantile, interpolated linearly; None for an empty sample."""
    return float(np.quantile(sample, share)) if sample else None


def match_pairs(
    rows: Iterable[Takeover], baselines: Iterable[Takeover], key: Sequence[str]
) -> tuple[Pair, ...]:
    """Graded rows with the graded baseline of the same key, sorted by key."""
    baseline_by_key = {row.read(*key): row for row in select_graded(baselines)}
    row_by_key = {row.read(*key): row for row in select_graded(rows)}
    return tuple(
        Pair(row_by_key[value], baseline_by_key[value])
        for value in sorted(row_by_key)
        if value in baseline_by_key
    )


def pair_with_baseline(rows: Sequence[Takeover], view: str, baseline: str = BASELINE) -> tuple[Pair, ...]:
    """Takeovers under a view, each with the baseline's takeover of the same point, successor and repeat."""
    return match_pairs(
        (row for row in rows if row.view == view),
        (row for row in rows if row.view == baseline),
        POINT_KEY,
    )


def read_paired_values(pairs: Iterable[Pair], measure: str) -> list[tuple[float, float]]:
    """The measure of takeover and baseline, for pairs in which both are known."""
    both = ((read_measure(row, measure), read_measure(baseline, measure)) for row, baseline in pairs)
    return [(a, b) for a, b in both if a is not None and b is not None]


def estimate_change(pairs: Sequence[Pair], measure: str, statistic: Callable[..., Any]) -> Estimate:
    """The mean or median over pairs of the measure's change, as a share of the baseline; reductions are negative."""
    changes = [a / b - 1 for a, b in read_paired_values(pairs, measure) if b > 0]
    return _build_estimate(changes, len(pairs) - len(changes), statistic)


def estimate_solved_delta(pairs: Sequence[Pair]) -> Estimate:
    """The mean difference over pairs of solved (1 or 0)."""
    return _build_estimate([float(a.is_solved) - float(b.is_solved) for a, b in pairs], 0, np.mean)


def compute_matched_medians(pairs: Sequence[Pair], measure: str) -> tuple[float, float] | None:
    """The medians of takeovers and baselines over the pairs in which both are known; None without such a pair."""
    both = read_paired_values(pairs, measure)
    return (median(a for a, _ in both), median(b for _, b in both)) if both else None


def compute_median_change(pairs: Sequence[Pair], measure: str) -> float | None:
    """The change of the takeovers' median against the baselines' median, as a share of the latter."""
    own, base = compute_matched_medians(pairs, measure) or (0, 0)
    return own / base - 1 if base > 0 else None


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
    """The exact two-sided test over discordant pairs; p is 1 without any, and None without a pair."""
    outcomes = Counter((a.is_solved, b.is_solved) for a, b in pairs)
    gained, lost = outcomes[True, False], outcomes[False, True]
    if not outcomes:
        return McNemar(0, 0, None)
    return McNemar(
        gained, lost, float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
    )


def total_tokens(row: Takeover) -> float | None:
    """Prompt and completion tokens; None if either is unknown."""
    prompt, completion = row.prompt_tokens, row.completion_tokens
    return None if prompt is None or completion is None else prompt + completion


def compute_break_even(notes_tokens: float | None, pairs: Iterable[Pair]) -> float | None:
    """Number of takeovers after which notes of this size pay off, at the median saving per takeover.

    None if nothing is saved, or the tokens are unknown.
    """
    both = ((total_tokens(row), total_tokens(baseline)) for row, baseline in pairs)
    savings = [b - a for a, b in both if a is not None and b is not None]
    if notes_tokens is None or not savings or median(savings) <= 0:
        return None
    return notes_tokens / median(savings)


def count_rediscovery(rows: Iterable[Takeover]) -> Counter[str]:
    """Number of events by kind of rediscovery, and of `verification` events."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update({kind: (row.rediscovery or {}).get(kind, 0) for kind in REDISCOVERY_KINDS})
        counts["verification"] += row.verification_events or 0
    return counts


def _build_estimate(sample: list[float], excluded: int, statistic: Callable[..., Any]) -> Estimate:
    value = float(statistic(sample)) if sample else None
    return Estimate(len(sample), excluded, value, bootstrap_interval(sample, statistic))
