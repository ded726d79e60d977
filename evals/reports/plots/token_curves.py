"""Cumulative tokens of takeovers by step, from a sample of their traces."""

from __future__ import annotations

import random
from collections import Counter
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from langgraph_takeover.evals.models import is_llm
from langgraph_takeover.evals.reports.collection import ReportData
from langgraph_takeover.evals.reports.estimates import SEED, quantile
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.handoff.trace.events import Event

MAX_TRACES = 280


class Band(NamedTuple):
    """Quartiles and median of cumulative tokens by step."""

    low: list[float]
    middle: list[float]
    high: list[float]


class TokenCurves(NamedTuple):
    bands: dict[tuple[str, str], Band]
    """By successor and view."""
    counts: dict[str, int]
    """Number of traces by view."""
    is_estimated: bool
    """Whether some token counts are estimates (four characters per token) instead of a server's."""


def compute_curves(results: Results, data: ReportData) -> TokenCurves:
    """Compute the curves from a random but reproducible sample of at most MAX_TRACES traces."""
    groups = [(successor, view) for successor in data.successors for view in data.views]
    bands, is_estimated = {}, False
    counts: Counter[str] = Counter()
    for group in groups:
        rows = sorted(data.select(successor=group[0], view=group[1]), key=lambda row: str(row.get("trace")))
        limit = max(1, MAX_TRACES // len(groups))
        sample = rows if len(rows) <= limit else random.Random(SEED).sample(rows, limit)
        curves = []
        for row in sample:
            trace = results.load_trace(row) if row.get("trace") else None
            sums = _cumulative_tokens(trace.events) if trace else None
            if sums is not None and trace is not None:
                curves.append(sums)
                is_estimated = is_estimated or not is_llm(row["successor"]) or _has_estimates(trace.events)
        if curves:
            bands[group] = _compute_band(curves)
            counts[group[1]] += len(curves)
    return TokenCurves(bands, dict(counts), is_estimated)


def _cumulative_tokens(events: tuple[Event, ...]) -> list[int] | None:
    """Cumulative tokens after each model call; None if a count is missing."""
    counts = [
        event.usage.prompt_tokens if event.usage else None for event in events if event.kind == "action"
    ]
    known = [count for count in counts if count is not None]
    return list(accumulate(known)) if known and len(known) == len(counts) else None


def _has_estimates(events: tuple[Event, ...]) -> bool:
    return any(event.usage is not None and event.usage.estimated for event in events)


def _compute_band(token_sums: list[list[int]]) -> Band:
    # A few long runs must not compress the rest of the plot.
    longest = ceil(quantile([float(len(sums)) for sums in token_sums], 0.95) or 1)
    columns = [[sums[min(step, len(sums) - 1)] for sums in token_sums] for step in range(longest)]
    low, middle, high = (
        [quantile(column, share) or 0.0 for column in columns] for share in (0.25, 0.5, 0.75)
    )
    return Band(low, middle, high)
