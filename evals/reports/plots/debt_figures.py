"""Plots of handoff debt and over-trust."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from langgraph_takeover.evals.reports.collection import ReportData
from langgraph_takeover.evals.reports.estimates import read_paired_values, read_values
from langgraph_takeover.evals.reports.plots import style
from langgraph_takeover.evals.reports.plots.style import EmptyPlotError, row_titles, view_style
from langgraph_takeover.evals.run.journal import Row
from langgraph_takeover.evals.run.settings.config import BASELINE

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
        lambda rows, view: read_values([row for row in rows if row["view"] == view], "debt_vs_uninterrupted"),
    )


def _draw_by_point_and_state(
    data: ReportData, views: Sequence[str], list_extra: Callable[[tuple[Row, ...], str], list[float]]
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
    views = [
        view for view in data.views if any(row.get("kept") is not None for row in data.select(view=view))
    ]
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


def _draw_shares(axis: Axes, rows: Sequence[Row], view: str, offset: float) -> None:
    color, marker, _ = view_style(view)
    kept = read_values(rows, "kept")
    shares = [float(np.median(kept)) if kept else None]
    for name in _ANSWERS:
        answers = [row[name] for row in rows if row.get(name) is not None]
        shares.append(sum(answers) / len(answers) if answers else None)
    for place, share in enumerate(shares):
        if share is not None:
            axis.plot([place + offset], [100 * share], color=color, marker=marker, markersize=5.5)


def _draw_harm(axis: Axes, rows: Sequence[Row], view: str, position: int) -> None:
    color = view_style(view).color
    pairs = [row for row in rows if row["harm"] is not None]
    axis.bar([position], [sum(row["rescue"] for row in pairs)], width=0.6, color=color)
    axis.bar([position], [-sum(row["harm"] for row in pairs)], width=0.6, color=color, hatch="//", alpha=0.6)
