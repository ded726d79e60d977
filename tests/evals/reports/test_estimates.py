"""Estimates compared with independent implementations: statsmodels, a second bootstrap, manual arithmetic."""

from __future__ import annotations

import math
import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from langgraph_takeover.evals.reports.estimates import (
    Pair,
    bootstrap_interval,
    compute_break_even,
    compute_matched_medians,
    compute_median_change,
    count_rediscovery,
    estimate_change,
    estimate_solved_delta,
    mcnemar,
    pair_with_baseline,
    quantile,
)
from langgraph_takeover.evals.run.rows import Takeover


def row(point: int = 1, view: str = "trace", **fields: Any) -> Takeover:
    defaults = {
        "record_id": f"t.{point:03}",
        "successor": "s",
        "repeat": 1,
        "outcome": "graded",
        "resolved": True,
    }
    counts = {"events": 10, "prompt_tokens": 100, "completion_tokens": 10}
    return Takeover.model_validate(defaults | {"view": view} | counts | fields)


def pairs_with_outcomes(*outcomes: tuple[bool, bool]) -> tuple[Pair, ...]:
    return tuple(Pair(row(resolved=ours), row(resolved=theirs)) for ours, theirs in outcomes)


def pairs_with_costs(*costs: tuple[Any, Any], measure: str = "events") -> tuple[Pair, ...]:
    return tuple(Pair(row(**{measure: ours}), row(**{measure: theirs})) for ours, theirs in costs)


def bootstrap_by_hand(values: list[float], statistic: Any, seed: int) -> tuple[float, float]:
    """The percentile bootstrap, one resample at a time."""
    rng = random.Random(seed)
    sample = sorted(float(statistic(rng.choices(values, k=len(values)))) for _ in range(5000))
    return sample[125], sample[-126]


@pytest.mark.parametrize(("statistic", "name"), [(np.median, "median"), (np.mean, "mean")])
def test_intervals_equal_an_independent_bootstrap(statistic: Any, name: str) -> None:
    rng = random.Random(7)
    sample = [rng.gauss(0.3, 0.2) for _ in range(60)]
    low, high = bootstrap_interval(sample, statistic) or (0, 0)
    others = [bootstrap_by_hand(sample, statistic, seed) for seed in range(3)]
    assert low < float(statistic(sample)) < high
    for other_low, other_high in others:
        assert low == pytest.approx(other_low, abs=0.02)
        assert high == pytest.approx(other_high, abs=0.02)


def test_the_interval_of_a_median_of_three_is_exact() -> None:
    """The median of a resample of three is the largest where two or three of them are: 7 of 27, more than 2.5 %."""
    assert bootstrap_interval([0.1, 0.2, 0.9], np.median) == (0.1, 0.9)


def test_intervals_are_deterministic_and_independent_of_row_order() -> None:
    rng = random.Random(3)
    rows = [
        row(point, view, events=rng.randrange(5, 90), resolved=rng.random() < 0.5)
        for point, view in product(range(40), ("trace", "repository"))
    ]
    first = pair_with_baseline(rows, "trace")
    rng.shuffle(rows)
    second = pair_with_baseline(rows, "trace")
    for statistic in (np.mean, np.median):
        estimates = [estimate_change(pairs, "events", statistic) for pairs in (first, second, first[:-1])]
        assert estimates[0] == estimates[1]
        assert estimates[0].interval != estimates[2].interval
    assert estimate_solved_delta(first) == estimate_solved_delta(second)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (0, 3), (2, 2), (3, 1), (11, 4), (40, 71)])
def test_mcnemar_equals_statsmodels(gained: int, lost: int) -> None:
    pairs = pairs_with_outcomes(
        *[(True, False)] * gained, *[(False, True)] * lost, *[(True, True)] * 5, (False, False)
    )
    test = mcnemar(pairs)
    assert test[:2] == (gained, lost)
    assert test.p == pytest.approx(statsmodels_mcnemar([[5, gained], [lost, 1]], exact=True).pvalue)


def test_mcnemar_equals_a_manual_computation() -> None:
    # Of four discordant pairs three gained: 2 * (1 + 4) / 16.
    assert mcnemar(pairs_with_outcomes(*[(True, False)] * 3, (False, True))).p == pytest.approx(0.625)
    assert mcnemar(()) == (0, 0, None)


def test_changes_use_matched_runs_only() -> None:
    rows = [
        *(row(1, "repository", events=20), row(1, "trace", events=5)),
        *(row(2, "repository", events=10), row(2, "trace", events=8)),
        row(3, "trace", events=1),  # has no baseline
        *(row(4, "repository", events=10), row(4, "trace", outcome="infrastructure_failure", resolved=None)),
        *(row(5, "repository", events=10, successor="other"), row(5, "trace", events=1)),
        *(row(6, "repository", events=10, repeat=2), row(6, "trace", events=1)),
    ]
    estimate = estimate_change(pair_with_baseline(rows, "trace"), "events", np.mean)
    assert (estimate.pairs, estimate.excluded) == (2, 0)
    assert estimate.value == pytest.approx(-(0.75 + 0.2) / 2)
    assert pair_with_baseline(rows, "summary") == ()


def test_missing_values_are_excluded_and_counted() -> None:
    costs = [(50, 100), (None, 100), (50, None), (50, 0), (30, 100)]
    estimate = estimate_change(pairs_with_costs(*costs, measure="prompt_tokens"), "prompt_tokens", np.median)
    assert (estimate.pairs, estimate.excluded) == (2, 3)
    assert estimate.value == pytest.approx(-0.6)


@pytest.mark.parametrize("value", [True, -1, 1.5, math.nan, math.inf, "many", 10**16])
def test_a_count_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ValidationError):
        row(events=value)


def test_one_pair_has_no_interval_and_no_pair_has_no_value() -> None:
    one = estimate_change(pairs_with_costs((5, 10)), "events", np.mean)
    assert (one.pairs, one.value, one.interval) == (1, -0.5, None)
    assert estimate_change((), "events", np.mean) == (0, 0, None, None)
    assert estimate_solved_delta(()) == (0, 0, None, None)
    assert compute_median_change((), "events") is None


def test_ties_have_an_interval_of_zero_width() -> None:
    for statistic in (np.mean, np.median):
        estimate = estimate_change(pairs_with_costs(*[(8, 10)] * 6), "events", statistic)
        assert estimate.interval == pytest.approx((-0.2, -0.2))
    assert estimate_solved_delta(pairs_with_outcomes(*[(True, True)] * 6)) == (6, 0, 0.0, (0.0, 0.0))


def test_the_change_of_medians_differs_from_mean_and_median_change() -> None:
    pairs = pairs_with_costs((10, 10), (12, 20), (9, 90))
    assert compute_matched_medians(pairs, "events") == (10, 20)
    assert compute_median_change(pairs, "events") == pytest.approx(-0.5)
    assert estimate_change(pairs, "events", np.median).value == pytest.approx(-0.4)
    assert estimate_change(pairs, "events", np.mean).value == pytest.approx(-1.3 / 3)
    assert compute_matched_medians((), "events") is None
    assert compute_median_change(pairs_with_costs((5, 0)), "events") is None


def test_break_even_divides_the_cost_of_notes_by_the_saving() -> None:
    saving = [Pair(row(prompt_tokens=100 - saved), row()) for saved in (10, 20, 60)]
    assert compute_break_even(50.0, saving) == pytest.approx(2.5)
    assert compute_break_even(50.0, [Pair(row(prompt_tokens=101), row())]) is None
    assert compute_break_even(50.0, [Pair(row(), row())]) is None
    assert compute_break_even(None, saving) is None
    assert compute_break_even(50.0, [Pair(row(completion_tokens=None), row())]) is None
    assert compute_break_even(50.0, ()) is None


def test_quantiles_and_rediscovery() -> None:
    assert quantile([1, 1, 2, 3, 4, 5, 6], 0.9) == pytest.approx(5.4)
    assert quantile([], 0.5) is None
    rows = [row(rediscovery={"read": 2, "search": 0, "command": 4}, verification_events=2), row()]
    assert count_rediscovery(rows) == {"read": 2, "search": 0, "command": 4, "verification": 2}
