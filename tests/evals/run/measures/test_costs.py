from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.evals.models import ModelPrice
from langgraph_takeover.evals.run.measures.replies import (
    TokenTotals,
    compute_cost_usd,
    count_tokens,
    sum_usage,
)
from langgraph_takeover.handoff.trace.events import Event, Usage

PRICE = ModelPrice(input=2.0, output=10.0, cached=0.5)


def calls(*usages: Usage | None) -> list[Event]:
    events: list[Event] = []
    for usage in usages:
        events.append(Event(index=len(events), kind="action", tool="shell", text="", usage=usage))
        events.append(Event(index=len(events), kind="observation", tool="shell", text=""))
    return events


def usage(prompt: int | None, completion: int | None, cached: int | None = None, **more: Any) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached, **more)


def test_a_sum_of_counted_calls() -> None:
    assert count_tokens(calls(usage(5, 2), usage(7, 1))) == (12, None, 3, 0)
    assert count_tokens(calls(usage(5, 2, 4), usage(7, 1, 0))) == (12, 4, 3, 0)


def test_one_uncounted_call_makes_the_sum_unknown() -> None:
    """1,000 counted and 900,000 uncounted tokens are not 1,000."""
    guess = usage(900_000, 90, estimated=True)
    assert count_tokens(calls(usage(1_000, 10), guess)) == (None, None, None, 1)
    assert count_tokens(calls(usage(1_000, 10), Usage(), None)) == (None, None, None, 2)
    assert count_tokens(calls(usage(1_000, 10), usage(5, None))) == (None, None, None, 1)


def test_attempts_without_an_event_count_too() -> None:
    assert count_tokens(calls(usage(5, 2)), uncounted_calls=2) == (None, None, None, 2)
    # The runtime's count contains the estimated calls.
    assert count_tokens(calls(usage(5, 2, estimated=True)), uncounted_calls=1).uncounted_calls == 1


def test_a_run_without_calls_has_no_sum() -> None:
    assert count_tokens([]) == (None, None, None, 0)


def test_cached_tokens_that_a_server_omits_are_none_beside_reported_ones() -> None:
    assert sum_usage([usage(5, 2), usage(9, 2, 4)]).cached == 4


@pytest.mark.parametrize(
    ("price", "tokens", "cost"),
    [
        (PRICE, TokenTotals(1_000_000, None, 100_000, 0), 3.0),
        (PRICE, TokenTotals(1_000_000, 400_000, 100_000, 0), 2.4),
        (ModelPrice(input=2.0, output=10.0), TokenTotals(1_000_000, 400_000, 100_000, 0), 3.0),
        (PRICE, TokenTotals(1, 0, 1, 0), 0.000012),
        (None, TokenTotals(1_000_000, None, 100_000, 0), None),
        (PRICE, TokenTotals(None, None, None, 1), None),
        (ModelPrice(input=0.0, output=0.0), TokenTotals(None, None, None, 1), 0.0),
    ],
)
def test_costs_in_us_dollars(price: ModelPrice | None, tokens: TokenTotals, cost: float | None) -> None:
    assert compute_cost_usd(price, tokens, calls=1) == cost


def test_no_call_costs_nothing_and_a_time_out_an_unknown_amount() -> None:
    assert compute_cost_usd(PRICE, TokenTotals(None, None, None, 0), calls=0) == 0.0
    assert compute_cost_usd(None, TokenTotals(None, None, None, 0), calls=0) == 0.0
    assert compute_cost_usd(PRICE, TokenTotals(None, None, None, 1), calls=0) is None
