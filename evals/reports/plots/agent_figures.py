"""The heat map of the cost of a switch: predecessors against successors, one panel per view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from langgraph_takeover.evals.reports.collection import ReportData
from langgraph_takeover.evals.reports.plots import style
from langgraph_takeover.evals.reports.plots.style import EmptyPlotError
from langgraph_takeover.evals.reports.tables.switch_costs import (
    SwitchCost,
    find_best_successors,
    label_agents,
    measure_switches,
)
from langgraph_takeover.handoff.views.names import CONTINUATION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Extra events of a takeover, median against the predecessor's own continuation (n pairs, % solved; frame: best in its row)"
_COLORS = "PuOr_r"
"""Orange: more events than the continuation; purple: fewer. Distinct for color-blind readers."""


def draw_agents(data: ReportData) -> Figure:
    """Draw the heat map. Raises EmptyPlotError without a pair of a takeover and a continuation."""
    costs = [cost for cost in measure_switches(data) if cost.extra_events is not None]
    if not costs:
        has_continuation = any(row["view"] == CONTINUATION for row in data.takeovers)
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
