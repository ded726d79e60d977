"""Style of all plots: colors and markers for print and color-blind readers, reproducible files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from langgraph_takeover.evals.reports.collection import ReportData, display_names
from langgraph_takeover.handoff.views.names import CONTINUATION
from langgraph_takeover.sandbox.interface import TakeoverError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DPI = 150
GREY = "#555555"
_OKABE_ITO = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#777777")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_LINE_STYLES = (
    "-",
    (0, (5, 1)),
    (0, (3, 1, 1, 1)),
    (0, (1, 1)),
    (0, (7, 2)),
    (0, (4, 1, 1, 1, 1, 1)),
    (0, (2, 2)),
)
_VIEW_ORDER = ("repository", "trace", "summary", "structured", "payload", "transcript", "cited", CONTINUATION)
_RC_PARAMS: dict[Any, Any] = {
    "svg.hashsalt": "takeover",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.parse_math": False,
    "axes.unicode_minus": True,
}


class Picture(NamedTuple):
    """One plot as SVG and PNG."""

    name: str
    title: str
    svg: Path
    png: Path


class ViewStyle(NamedTuple):
    """Color, marker and line style of a view."""

    color: str
    marker: str
    line: Any


def view_style(view: str) -> ViewStyle:
    """The style of a view, identical in every plot."""
    index = _VIEW_ORDER.index(view) if view in _VIEW_ORDER else -1
    return ViewStyle(_OKABE_ITO[index], _MARKERS[index], _LINE_STYLES[index % len(_LINE_STYLES)])


class EmptyPlotError(TakeoverError):
    """A plot without data."""


def row_titles(data: ReportData) -> list[str]:
    """The display names of the successors, one row of panels each."""
    names = display_names(data.successors)
    return [names[name] for name in data.successors]


@contextmanager
def plot_style() -> Iterator[None]:
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(_RC_PARAMS):
        yield


def create_panels(
    rows: Sequence[str], columns: Sequence[str], *, width: float, height: float, share_y: bool = True
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with one row of panels per successor; several rows have titles."""
    from matplotlib.figure import Figure

    size = (1.5 + width * len(columns), 1.0 + height * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(
        len(rows), len(columns), squeeze=False, sharex="col", sharey="row" if share_y else False
    )
    for place, name in enumerate(columns):
        axes[-1][place].set_xlabel(name)
    if len(rows) > 1:
        for place, name in enumerate(rows):
            axes[place][0].set_title(shorten_name(name), loc="left", color=GREY)
    return figure, [list(row) for row in axes]


def add_legend(
    figure: Figure, views: Sequence[str], *, with_lines: bool = False, is_hollow: bool = False
) -> None:
    """Add one legend for all panels beside them."""
    from matplotlib.lines import Line2D

    handles = []
    for view in views:
        color, marker, line = view_style(view)
        line_style: Any = line if with_lines else "none"
        face = "none" if is_hollow else color
        handles.append(
            Line2D(
                *([], []),
                color=color, marker=marker, linestyle=line_style, label=view, markersize=6, markerfacecolor=face,
                markeredgewidth=1.7 if is_hollow else 1,
            )
        )  # fmt: skip
    figure.legend(
        handles=handles, loc="outside right upper", handlelength=3 if with_lines else 1.5, fontsize=8.5
    )


def format_integer_axis(axis: Axis) -> None:
    """Use few ticks, at integers, with thousands separators."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def save_picture(figure: Figure, directory: Path, name: str, title: str, footnotes: Sequence[str]) -> Picture:
    """Write both files, with the footnotes at the bottom."""
    if footnotes:
        figure.supxlabel("\n".join(footnotes), fontsize=7, color=GREY, x=0.01, ha="left")
    figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    if engine := figure.get_layout_engine():
        # Compute the layout once instead of once per file: it takes most of the time.
        engine.execute(figure)
        figure.set_layout_engine(None)
    svg, png = directory / f"{name}.svg", directory / f"{name}.png"
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Title": title})
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None, "Title": title})
    return Picture(name, title, svg, png)


def shorten_name(name: str, max_length: int = 44) -> str:
    """Shorten a name to fit into a plot."""
    text = " ".join(name.split())
    return text if len(text) <= max_length else f"{text[: max_length - 11]}…{text[-10:]}"
