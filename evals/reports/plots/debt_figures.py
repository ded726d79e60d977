"""Plots of handoff debt, of over-trust and of agents."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from langgraph_takeover.evals.models import is_llm
from langgraph_takeover.evals.reports.collection import ReportData
from langgraph_takeover.evals.reports.estimates import SEED, quantile, read_paired_values, read_values
from langgraph_takeover.evals.reports.plots import style
from langgraph_takeover.evals.reports.plots.style import EmptyPlotError, row_titles, view_style
from langgraph_takeover.evals.reports.tables.switch_costs import (
    SwitchCost,
    find_best_successors,
    label_agents,
    measure_switches,
)
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import CountedTakeover
from langgraph_takeover.evals.run.settings.config import BASELINE
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.trace.events import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ANSWERS = {"reexamined": "reexamined", "verified_before_finish": "verified\nbefore finish"}


def format_debt_title(data: ReportData) -> str:
    return f"Handoff debt: extra events compared with {data.reference_view or 'the best-informed view'} at the same point"


def draw_debt(data: ReportData) -> Figure:
    data = data.restrict_to_common_points()
    if data.reference_view is None:
        raise EmptyPlotError("no graded takeovers with a view other than repository")
    views = [
        view
        for view in data.views
        if view != data.reference_view and data.pair_with_reference(data.takeovers, view)
    ]
    if not views:
        raise EmptyPlotError(f"no pairs with the {data.reference_view} view")
    return _draw_by_point_and_state(
        data,
        views,
        lambda rows, view: [
            a - b for a, b in read_paired_values(data.pair_with_reference(rows, view), "events")
        ],
    )


def draw_uninterrupted(data: ReportData) -> Figure:
    data = data.restrict_to_common_points()
    views = [view for view in data.views if read_values(data.select(view=view), "debt_vs_uninterrupted")]
    if not views:
        raise EmptyPlotError("no predecessor that ran to its end")
    return _draw_by_point_and_state(
        data,
        views,
        lambda rows, view: read_values([row for row in rows if row.view == view], "debt_vs_uninterrupted"),
    )


def _draw_by_point_and_state(
    data: ReportData,
    views: Sequence[str],
    list_extra: Callable[[tuple[CountedTakeover, ...], str], list[float]],
) -> Figure:
    """Median and quartiles of extra events, for each kind of point and for each handoff state."""
    groups = (("point", data.points), ("handoff_state", data.states))
    figure, axes = style.create_panels(
        row_titles(data), ("by handoff point", "by handoff state"), width=4.2, height=2.4
    )
    for line, successor in zip(axes, data.successors, strict=True):
        for axis, (field, kinds) in zip(line, groups, strict=True):
            for number, kind in enumerate(kinds):
                selected = data.select(**{"successor": successor, field: kind})
                for row, view in enumerate(views):
                    offset = 0.75 * ((row + 0.5) / len(views) - 0.5)
                    _draw_range(axis, list_extra(selected, view), view, number + offset)
            axis.axhline(0, color=style.GREY, linewidth=0.8, zorder=0.5)
            axis.axhspan(-1, 1, alpha=0)  # so that a difference of zero is not magnified
            axis.grid(visible=False, axis="x")
            axis.set_xticks(
                range(len(kinds)),
                [kind.replace("_", "\n", 1).replace("_", " ") for kind in kinds],
                fontsize=8,
            )
            axis.set_xlim(-0.6, len(kinds) - 0.4)
            style.format_integer_axis(axis.yaxis)
        line[0].set_ylabel("extra events\n(median, quartiles)")
    counts = {view: len(list_extra(data.takeovers, view)) for view in views}
    style.add_legend(figure, style.label_views(data, counts))
    return figure


def _draw_range(axis: Axes, extra: Sequence[float], view: str, position: float) -> None:
    if not extra:
        return
    color, marker, _ = view_style(view)
    low, middle, high = np.quantile(extra, (0.25, 0.5, 0.75))
    axis.plot([position, position], [low, high], color=color, linewidth=1.2)
    axis.plot([position], [middle], color=color, marker=marker, markersize=5.5, linestyle="none")


def draw_trust(data: ReportData) -> Figure:
    """Shares of kept lines and of successors that checked; next to them, takeovers broken and repaired."""
    data = data.restrict_to_common_points()
    views = [view for view in data.views if any(row.kept is not None for row in data.select(view=view))]
    if not views:
        raise EmptyPlotError("no predecessor changed a source line")
    figure, axes = style.create_panels(
        row_titles(data),
        ("share of takeovers (kept: median share of lines)", "takeovers against repository"),
        width=4.2,
        height=2.4,
        share_y=False,
    )
    for line, successor in zip(axes, data.successors, strict=True):
        for row, view in enumerate(views):
            rows = data.select(successor=successor, view=view)
            offset = 0.75 * ((row + 0.5) / len(views) - 0.5)
            _draw_shares(line[0], rows, view, offset)
            if view != BASELINE:
                _draw_harm(line[1], rows, view, row)
        line[0].set_xticks(range(3), ["kept", *_ANSWERS.values()], fontsize=8)
        line[0].set_ylim(-4, 104)
        line[0].set_ylabel("%")
        line[1].set_xlim(-0.6, len(views) - 0.4)
        limit = max(1.0, *(abs(bar.get_height()) for bar in line[1].patches), 0.0)  # type: ignore[attr-defined]
        line[1].set_ylim(-1.1 * limit, 1.1 * limit)
        line[1].axhline(0, color=style.GREY, linewidth=0.8)
        line[1].set_xticks(range(len(views)), views, fontsize=8, rotation=30)
        line[1].set_ylabel("harm (down), rescue (up)")
        style.format_integer_axis(line[1].yaxis)
        for axis in line:
            axis.grid(visible=False, axis="x")
    counts = {view: len(data.select(view=view)) for view in views}
    style.add_legend(figure, style.label_views(data, counts))
    return figure


def _draw_shares(axis: Axes, rows: Sequence[CountedTakeover], view: str, offset: float) -> None:
    color, marker, _ = view_style(view)
    kept = read_values(rows, "kept")
    shares = [float(np.median(kept)) if kept else None]
    for name in _ANSWERS:
        answers = [answer for row in rows if (answer := getattr(row, name)) is not None]
        shares.append(sum(answers) / len(answers) if answers else None)
    for place, share in enumerate(shares):
        if share is not None:
            axis.plot([place + offset], [100 * share], color=color, marker=marker, markersize=5.5)


def _draw_harm(axis: Axes, rows: Sequence[CountedTakeover], view: str, position: int) -> None:
    color = view_style(view).color
    pairs = [row for row in rows if row.harm is not None]
    axis.bar([position], [sum(bool(row.rescue) for row in pairs)], width=0.6, color=color)
    axis.bar(
        [position], [-sum(bool(row.harm) for row in pairs)], width=0.6, color=color, hatch="//", alpha=0.6
    )


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
