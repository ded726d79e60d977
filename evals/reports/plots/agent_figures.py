"""Figures of agents: the heat map of the cost of a switch, one panel per view, and prompt tokens over events."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from langgraph_takeover.evals.models import is_llm
from langgraph_takeover.evals.reports.collection import ReportData
from langgraph_takeover.evals.reports.estimates import SEED, quantile
from langgraph_takeover.evals.reports.plots import style
from langgraph_takeover.evals.reports.plots.style import EmptyPlotError
from langgraph_takeover.evals.reports.tables.switch_costs import (
    SwitchCost,
    find_best_successors,
    label_agents,
    measure_switches,
)
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.trace.events import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        rows = sorted(data.select(successor=group[0], view=group[1]), key=lambda row: str(row.trace))
        limit = max(1, MAX_TRACES // len(groups))
        sample = rows if len(rows) <= limit else random.Random(SEED).sample(rows, limit)
        curves = []
        for row in sample:
            trace = results.load_trace(row) if row.trace else None
            sums = _cumulative_tokens(trace.events) if trace else None
            if sums is not None and trace is not None:
                curves.append(sums)
                is_estimated = is_estimated or not is_llm(row.successor) or _has_estimates(trace.events)
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


TITLE = "Extra events of a takeover, median against the predecessor's own continuation (n pairs, % solved; frame: best in its row)"
_COLORS = "PuOr_r"
"""Orange: more events than the continuation; purple: fewer. Distinct for color-blind readers."""


def draw_agents(data: ReportData) -> Figure:
    """Draw the heat map. Raises EmptyPlotError without a pair of a takeover and a continuation."""
    costs = [cost for cost in measure_switches(data) if cost.extra_events is not None]
    if not costs:
        has_continuation = any(row.view == CONTINUATION for row in data.takeovers)
        raise EmptyPlotError(
            "no takeover at a point with a continuation"
            if has_continuation
            else "no continuation (--study agents)"
        )
    predecessors = [name for name in data.predecessors if any(cost.predecessor == name for cost in costs)]
    successors = [name for name in data.successors if any(cost.successor == name for cost in costs)]
    views = [view for view in data.views if any(cost.view == view for cost in costs)]
    labels = {
        name: style.shorten_name(label, 20)
        for name, label in label_agents([*predecessors, *successors]).items()
    }
    width, height = 0.5 + 0.85 * len(successors), 0.6 + 0.6 * len(predecessors)
    figure, (axes,) = style.create_panels([""], views, width=width, height=height)
    limit = max(1.0, *(abs(cost.extra_events or 0.0) for cost in costs))
    best = find_best_successors(costs)
    for axis, view in zip(axes, views, strict=True):
        shown = {(cost.predecessor, cost.successor): cost for cost in costs if cost.view == view}
        _draw_panel(
            axis, [[shown.get((one, other)) for other in successors] for one in predecessors], limit, best
        )
        axis.set_xticks(
            range(len(successors)), [labels[name] for name in successors], rotation=30, ha="right"
        )
        axis.set_xlabel(f"successor, {view}")
    axes[0].set_yticks(range(len(predecessors)), [labels[name] for name in predecessors])
    axes[0].set_ylabel("predecessor")
    return figure


def _draw_panel(
    axis: Axes,
    cells: Sequence[Sequence[SwitchCost | None]],
    limit: float,
    best: set[tuple[str, str, str]],
) -> None:
    from matplotlib.patches import Rectangle

    values = np.array(
        [
            [np.nan if cost is None or cost.extra_events is None else cost.extra_events for cost in line]
            for line in cells
        ]
    )
    axis.imshow(values, cmap=_COLORS, vmin=-limit, vmax=limit, aspect="auto")
    axis.grid(visible=False)
    for row, line in enumerate(cells):
        for column, cost in enumerate(line):
            if cost is None or cost.extra_events is None:
                axis.text(column, row, "–", ha="center", va="center", color=style.GREY)
                continue
            # White text on the dark ends of the color map.
            color = "white" if abs(cost.extra_events) > 0.7 * limit else "black"
            text = f"{cost.extra_events:+g}\nn {cost.pairs}, {100 * (cost.solved_share or 0):.0f} %".replace(
                "-", "−"
            )
            if cost.left_out:
                text += f"\n{cost.left_out} left out"
            axis.text(column, row, text, ha="center", va="center", fontsize=7.5, color=color)
            if (cost.predecessor, cost.successor, cost.view) in best:
                corner = (column - 0.47, row - 0.47)
                axis.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor="black", linewidth=1.6))
