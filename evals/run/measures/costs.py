"""Tokens and money of the model calls of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from langgraph_takeover.evals.models import ModelPrice
from langgraph_takeover.handoff.trace.events import Event, Usage
from langgraph_takeover.handoff.views import CHARS_PER_TOKEN
from langgraph_takeover.nodes.model.actions import RECALL_TOOL

_DIGITS = 8
"""Decimals of an amount: the smallest call costs a fraction of a millionth of a dollar."""


class TokenTotals(NamedTuple):
    """Sums over the calls of a run. None if one of its calls was not counted, because a part is no sum."""

    prompt: int | None
    cached: int | None
    """The part of the prompt tokens that the endpoint had cached. None also if no call reports it."""
    completion: int | None
    uncounted_calls: int
    """Calls whose tokens the endpoint did not report: their replies, failed attempts and time-outs."""


def count_tokens(events: Iterable[Event], uncounted_calls: int = 0) -> TokenTotals:
    """Sum the usage of a run's calls; `uncounted_calls` are those that the runtime counted, with attempts without an event."""
    return sum_usage((event.usage or Usage() for event in events if event.kind == "action"), uncounted_calls)


def sum_usage(usages: Iterable[Usage], uncounted_calls: int = 0) -> TokenTotals:
    """Sum the usage of calls. The runtime's estimates suffice for its budgets, not for a measurement."""
    every = list(usages)
    uncounted = max(sum(not is_counted(usage) for usage in every), uncounted_calls)
    if uncounted or not every:
        return TokenTotals(None, None, None, uncounted)
    # Servers omit the cached tokens of a call that had none.
    cached = [usage.cached_tokens for usage in every if usage.cached_tokens is not None]
    return TokenTotals(
        prompt=sum(usage.prompt_tokens or 0 for usage in every),
        cached=sum(cached) if cached else None,
        completion=sum(usage.completion_tokens or 0 for usage in every),
        uncounted_calls=0,
    )


def is_counted(usage: Usage) -> bool:
    """Whether the endpoint reported a call's tokens."""
    return not usage.estimated and usage.prompt_tokens is not None and usage.completion_tokens is not None


def compute_cost_usd(price: ModelPrice | None, tokens: TokenTotals, calls: int) -> float | None:
    """The cost in US dollars; None if the price or the usage is unknown, and 0 without any call."""
    if price is not None and price.input == price.output == (price.cached or 0.0) == 0.0:
        return 0.0
    if not calls and not tokens.uncounted_calls:
        return 0.0
    if price is None or tokens.prompt is None or tokens.completion is None:
        return None
    usage = Usage(
        prompt_tokens=tokens.prompt, cached_tokens=tokens.cached, completion_tokens=tokens.completion
    )
    return round(price.build_prices().compute_cost(usage), _DIGITS)


def count_recall_tokens(events: Sequence[Event]) -> list[int]:
    """The size of each recall of earlier events, estimated at four characters per token."""
    return [
        -(-(len(action.text) + len(seen.text)) // CHARS_PER_TOKEN)
        for action, seen in pairwise(events)
        if action.kind == "action" and action.tool == RECALL_TOOL and seen.kind == "observation"
    ]
