"""Plots of results: accuracy against effort, changes, first prompts, and tokens per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from langgraph_takeover.evals.reports.caveats import list_result_caveats
from langgraph_takeover.evals.reports.collection import ReportData, collect_report_data
from langgraph_takeover.evals.reports.estimates import (
    estimate_change,
    estimate_solved_delta,
    pair_with_baseline,
    quantile,
    read_values,
)
from langgraph_takeover.evals.reports.plots import debt_figures, style
from langgraph_takeover.evals.reports.plots.debt_figures import TokenCurves, compute_curves
from langgraph_takeover.evals.reports.plots.style import EmptyPlotError, Picture, row_titles, view_style
from langgraph_takeover.evals.reports.tables.switch_costs import is_agent_study
from langgraph_takeover.evals.run.results import Results
from langgraph_takeover.evals.run.rows import CountedTakeover
from langgraph_takeover.evals.run.settings.config import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class DrawnPlots(NamedTuple):
    """The plots with data, and the reasons why the others were omitted."""

    pictures: tuple[Picture, ...]
    omissions: tuple[str, ...]


def draw_plots(results: Results, directory: Path) -> DrawnPlots:
    """Write the plots as SVG and PNG, except those without data."""
    directory.mkdir(exist_ok=True)
    data = collect_report_data(results)
    common = data.restrict_to_common_points()
    basis = {"changes": data, "agents": data, "first_prompts": common.restrict_to_pooled_successors()}
    caveats = short_caveats(results)
    plots: dict[str, tuple[str, Callable[[], Figure]]] = {
        "accuracy_effort": (
            "Solved takeovers against their effort, at common points",
            lambda: draw_accuracy(data),
        ),
        "changes": (
            "Mean changes against repository over pairs, with 95 % intervals; reductions are negative",
            lambda: draw_changes(data),
        ),
        "first_prompts": ("Size of the first prompt, at common points", lambda: draw_first_prompts(data)),
        "debt": (debt_figures.format_debt_title(data), lambda: debt_figures.draw_debt(data)),
        "uninterrupted": (
            "Extra events compared with the uninterrupted predecessor after the same point",
            lambda: debt_figures.draw_uninterrupted(data),
        ),
        "trust": (
            "Over-trust: what successors kept and checked, and what they broke or repaired",
            lambda: debt_figures.draw_trust(data),
        ),
        "tokens": (
            "Cumulative prompt tokens by step, at common points",
            lambda: draw_tokens(data, compute_curves(results, common)),
        ),
    }
    if is_agent_study(results):
        plots["agents"] = (debt_figures.TITLE, lambda: debt_figures.draw_agents(data))
    pictures, omissions = [], []
    with style.plot_style():
        for name, (title, make) in plots.items():
            footnotes = [*basis.get(name, common).describe_left_out(), *caveats]
            try:
                pictures.append(style.save_picture(make(), directory, name, title, footnotes))
            except EmptyPlotError as reason:
                omissions.append(f"{name.replace('_', ' ')}: {reason}")
            except OSError:
                raise
            except Exception as error:  # tables and page must not be lost with a figure
                omissions.append(
                    f"{name.replace('_', ' ')}: cannot be drawn: {type(error).__name__}: {error}"
                )
            else:
                continue
            for suffix in ("svg", "png"):  # of an earlier report
                (directory / f"{name}.{suffix}").unlink(missing_ok=True)
    return DrawnPlots(tuple(pictures), tuple(omissions))


def short_caveats(results: Results) -> list[str]:
    """The caveats, short enough for the footnote of a plot."""
    firsts = (line.partition(";")[0].rstrip(".") for line in list_result_caveats(results))
    return [line if line.endswith("…") else f"{line}." for line in firsts]


def draw_accuracy(data: ReportData) -> Figure:
    data = data.restrict_to_common_points()
    if not data.takeovers:
        raise EmptyPlotError("no graded takeovers")
    labels = {"events": "median events", "prompt_tokens": "median prompt tokens"}
    measures = {name: label for name, label in labels.items() if read_values(data.takeovers, name)}
    figure, axes = style.create_panels(row_titles(data), list(measures.values()), width=3.2, height=2.3)
    by_view = [
        [(view, data.select(successor=successor, view=view)) for view in data.views]
        for successor in data.successors
    ]
    shares = [100 * _solved_share(rows) for line in by_view for _, rows in line if rows]
    bottom = max(0, 10 * ((min(shares) - 10) // 10))
    for line, views in zip(axes, by_view, strict=True):
        for axis, measure in zip(line, measures, strict=True):
            _draw_points(axis, views, measure, min_distance=0.02 * (105 - bottom))
            axis.set_ylim(bottom - 0.04 * (105 - bottom), 105)
            axis.set_yticks([share for share in range(0, 101, 10 if bottom >= 50 else 20) if share >= bottom])
        line[0].set_ylabel("solved, %")
    for axis in axes[-1]:
        style.format_integer_axis(axis.xaxis)
    counts = {view: len(data.select(view=view)) for view in data.views}
    style.add_legend(figure, style.label_views(data, counts), is_hollow=True)
    return figure


def _solved_share(rows: Sequence[CountedTakeover]) -> float:
    return sum(row.is_solved for row in rows) / len(rows)


def _draw_points(
    axis: Axes, by_view: Sequence[tuple[str, Sequence[CountedTakeover]]], measure: str, min_distance: float
) -> None:
    values = {view: read_values(rows, measure) for view, rows in by_view}
    points = [
        (view, median(values[view]), 100 * _solved_share(rows)) for view, rows in by_view if values[view]
    ]
    near = 0.015 * (max((effort for _, effort, _ in points), default=0) or 1)
    for view, effort, height in points:
        # Coinciding markers are drawn around each other at their true position.
        same = [name for name, x, y in points if abs(x - effort) <= near and abs(y - height) < min_distance]
        color, marker, _ = view_style(view)
        axis.plot(
            *([effort], [height]),
            color=color, marker=marker, linestyle="none", markersize=6 + 4.5 * same.index(view),
            markerfacecolor="none", markeredgewidth=1.7, clip_on=False,
        )  # fmt: skip
    axis.margins(x=0.12)


def draw_changes(data: ReportData) -> Figure:
    views = [view for view in data.views if view != BASELINE and pair_with_baseline(data.takeovers, view)]
    if not views:
        raise EmptyPlotError("no pairs with the repository view")
    columns = ("events, %", "prompt tokens, %", "solved, percentage points")
    figure, axes = style.create_panels(row_titles(data), columns, width=2.8, height=0.5 + 0.27 * len(views))
    for line, successor in zip(axes, data.successors, strict=True):
        selected = data.select(successor=successor)
        counts = {view: len(pair_with_baseline(selected, view)) for view in views}
        labels = style.label_views(data, counts, successor=successor)
        for row, view in enumerate(views):
            pairs = pair_with_baseline(selected, view)
            estimates = (
                estimate_change(pairs, "events", np.mean),
                estimate_change(pairs, "prompt_tokens", np.mean),
                estimate_solved_delta(pairs),
            )
            color, marker, _ = view_style(view)
            for axis, estimate in zip(line, estimates, strict=True):
                if estimate.value is None:
                    continue
                if estimate.interval is not None:
                    axis.plot(
                        [100 * bound for bound in estimate.interval],
                        [row, row],
                        color=color,
                        linewidth=1.6,
                    )
                axis.plot([100 * estimate.value], [row], color=color, marker=marker, markersize=6)
                if estimate.excluded:
                    axis.annotate(
                        f"n {estimate.pairs}", (1, row), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                        fontsize=6.5, color=style.GREY,
                    )  # fmt: skip
        for axis, least in zip(line, (1, 1, 10), strict=True):
            axis.axvspan(-least, least, alpha=0)  # so that a difference of zero is not magnified
            axis.axvline(0, color=style.GREY, linewidth=0.8, zorder=0.5)
            axis.set_yticks(range(len(views)), list(labels.values()))
            axis.set_ylim(len(views) - 0.5, -0.5)
    return figure


def draw_first_prompts(data: ReportData) -> Figure:
    data = data.restrict_to_common_points().restrict_to_pooled_successors()
    sizes = {view: read_values(data.select(view=view), "first_prompt_tokens") for view in data.views}
    sizes = {view: [size for size in sample if size > 0] for view, sample in sizes.items()}
    sizes = {view: sample for view, sample in sizes.items() if sample}
    if not sizes:
        raise EmptyPlotError("sizes are missing, or no successor has every view")
    label = "tokens, estimated at four characters each (box: quartiles; whiskers: minimum and P90)"
    figure, axes = style.create_panels([""], [label], width=6.4, height=0.6 + 0.32 * len(sizes))
    axis = axes[0][0]
    for row, (view, sample) in enumerate(sizes.items()):
        color, marker, _ = view_style(view)
        low, first, middle, third, high = (quantile(sample, share) for share in (0, 0.25, 0.5, 0.75, 0.9))
        axis.bxp(
            # Whiskers of `boxplot` end at a value of the sample, not at the quantile.
            [{"whislo": low, "q1": first, "med": middle, "q3": third, "whishi": high}],
            positions=[row],
            orientation="horizontal",
            widths=0.5,
            showfliers=False,
            manage_ticks=False,
            boxprops={"color": style.GREY},
            whiskerprops={"color": style.GREY},
            medianprops={"color": "black", "linewidth": 1.6},
        )
        # Jitter derived from the rank of the size, so that the plot is reproducible.
        jitter = [row + 0.3 * ((number * 0.618) % 1 - 0.5) for number in range(len(sample))]
        axis.plot(
            sorted(sample), jitter, color=color, marker=marker, markersize=3, linestyle="none", alpha=0.6
        )
    axis.set_xscale("log")
    all_sizes = [size for sample in sizes.values() for size in sample]
    axis.set_xlim(min(all_sizes) / 1.4, max(all_sizes) * 1.4)
    labels = style.label_views(data, {view: len(sample) for view, sample in sizes.items()})
    axis.set_yticks(range(len(sizes)), list(labels.values()))
    axis.set_ylim(len(sizes) - 0.5, -0.5)
    _format_log_axis(axis)
    return figure


def _format_log_axis(axis: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def draw_tokens(data: ReportData, token_bands: TokenCurves) -> Figure:
    data = data.restrict_to_common_points()
    if not token_bands.bands:
        raise EmptyPlotError("no trace has token counts")
    traces = sum(token_bands.counts.values())
    label = f"model calls (median and quartiles of {traces} runs; finished runs keep their total)"
    figure, axes = style.create_panels(row_titles(data), [label], width=6.6, height=3.0)
    for line, successor in zip(axes, data.successors, strict=True):
        axis = line[0]
        for view in data.views:
            band = token_bands.bands.get((successor, view))
            if band is None:
                continue
            color, marker, dashes = view_style(view)
            steps = range(1, len(band.middle) + 1)
            axis.fill_between(steps, band.low, band.high, color=color, alpha=0.07, linewidth=0)
            axis.plot(
                *(steps, band.middle), color=color, linestyle=dashes, linewidth=1.5, marker=marker, markersize=4.5,
                markevery=(0, max(1, len(steps) // 8)),
            )  # fmt: skip
        axis.set_ylabel("cumulative prompt tokens" + (" (estimated)" if token_bands.is_estimated else ""))
        axis.set_ylim(bottom=0)
        style.format_integer_axis(axis.yaxis)
    style.format_integer_axis(axes[-1][0].xaxis)
    counts = {view: token_bands.counts[view] for view in data.views if view in token_bands.counts}
    style.add_legend(figure, style.label_views(data, counts), with_lines=True)
    return figure
