"""Style of all plots: colors and markers for print and color-blind readers, reproducible files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.evals.reports.collection import ReportData, display_names
from langgraph_takeover.handoff.names import CONTINUATION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

DPI = 150
_TITLE_SIZE, _FOOTNOTE_SIZE = 10.5, 7
_LINE_SPACING = 1.25
_PADDING = 0.06
"""In inches."""
_MAX_EMBEDDED_BYTES = 150_000
"""Maximum size of an embedded SVG; larger plots are embedded as PNG."""
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
VIEW_ORDER = ("repository", "trace", "summary", "structured", "payload", "transcript", "cited", CONTINUATION)
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
    embedded_type: str
    """Image type of `embedded`: `svg+xml`, or `png` for a large plot."""
    embedded: bytes
    """The plot without its title."""


class ViewStyle(NamedTuple):
    """Color, marker and line style of a view."""

    color: str
    marker: str
    line: Any


def view_style(view: str) -> ViewStyle:
    """The style of a view, identical in every plot."""
    # A name that is not in the order is that of another version; it looks like a continuation.
    index = VIEW_ORDER.index(view) if view in VIEW_ORDER else -1
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


def label_views(data: ReportData, counted: Mapping[str, int], **fields: str) -> dict[str, str]:
    """The views with the number of takeovers that a plot shows, where it leaves some out: `trace, 12 of 13`."""
    labels = {}
    for view, shown in counted.items():
        total = len(data.select(view=view, **fields)) + data.count_left_out(view=view, **fields)
        labels[view] = view if shown == total else f"{view}, {shown} of {total}"
    return labels


def add_legend(
    figure: Figure, labels: Mapping[str, str], *, with_lines: bool = False, is_hollow: bool = False
) -> None:
    """Add one legend of views for all panels beside them."""
    from matplotlib.lines import Line2D

    handles = []
    for view, label in labels.items():
        color, marker, line = view_style(view)
        line_style: Any = line if with_lines else "none"
        face = "none" if is_hollow else color
        handles.append(
            Line2D(
                *([], []),
                color=color, marker=marker, linestyle=line_style, label=label, markersize=6, markerfacecolor=face,
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
    """Write both files, with the title above and the footnotes below the panels."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.transforms import Bbox

    width, panels = figure.get_size_inches()
    headline = _wrap(title, _TITLE_SIZE, width)
    notes = [line for note in footnotes for line in _wrap(note, _FOOTNOTE_SIZE, width)]
    top = _measure_lines(headline, _TITLE_SIZE)
    bottom = _measure_lines(notes, _FOOTNOTE_SIZE)
    height = top + panels + bottom
    figure.set_size_inches(width, height)
    heading = figure.text(
        *(_PADDING / width, 1 - _PADDING / height), "\n".join(headline), fontsize=_TITLE_SIZE, va="top"
    )
    figure.text(*(_PADDING / width, _PADDING / height), "\n".join(notes), fontsize=_FOOTNOTE_SIZE, color=GREY)
    rect = (0, bottom / height, 1, panels / height)
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=rect)
        # Compute the layout once instead of once per file: it takes most of the time.
        engine.execute(figure)
        figure.set_layout_engine(None)
        # The layout's solver is exact to about 1e-15, and the identifiers in an SVG are digests of it.
        for axes in figure.axes:
            axes.set_position(Bbox.from_bounds(*(round(part, 9) for part in axes.get_position().bounds)))
    for legend in figure.legends:
        legend.set_bbox_to_anchor(rect, figure.transFigure)
    svg, png = directory / f"{name}.svg", directory / f"{name}.png"
    _save(figure, svg, title)
    _save(figure, png, title)
    # The page has the title as a caption.
    heading.set_visible(False)
    below = Bbox.from_bounds(0, 0, width, height - top)
    kind, content = "svg+xml", _save(figure, io.BytesIO(), title, "svg", bbox_inches=below)
    if len(content) > _MAX_EMBEDDED_BYTES:
        kind, content = "png", _save(figure, io.BytesIO(), title, "png", bbox_inches=below)
    return Picture(name, title, svg, png, kind, content)


def _save(figure: Figure, target: Path | io.BytesIO, title: str, kind: str = "", **options: Any) -> bytes:
    """Save a figure reproducibly; the bytes are those of a buffer."""
    kind = kind or str(target).rpartition(".")[2]
    if kind == "png":
        options |= {"dpi": DPI, "metadata": {"Software": None, "Title": title}}
    else:
        options["metadata"] = {"Date": None, "Creator": None, "Title": title}
    figure.savefig(target, format=kind, **options)
    return target.getvalue() if isinstance(target, io.BytesIO) else b""


def _measure_lines(lines: Sequence[str], size: float) -> float:
    """Height in inches, with padding."""
    return len(lines) * _LINE_SPACING * size / 72 + 2 * _PADDING if lines else 0


def _wrap(text: str, size: float, width: float) -> list[str]:
    """Break a text into lines that fit into a figure of this width in inches."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font, limit = FontProperties(family=_RC_PARAMS["font.family"], size=size), DPI * (width - 3 * _PADDING)
    renderer: Any = cast(Any, RendererAgg)(1, 1, DPI)

    def measure(part: str) -> float:
        return float(renderer.get_text_width_height_descent(part, font, ismath=False)[0])

    space, lines, used = measure("a a") - measure("aa"), [""], 0.0
    for word in text.split():
        for part in _split_word(word, measure(word), limit):
            length = measure(part)
            if lines[-1] and used + space + length > limit:
                lines.append("")
            used = used + space + length if lines[-1] else length
            lines[-1] = f"{lines[-1]} {part}".lstrip()
    return lines if lines[0] else []


def _split_word(word: str, length: float, limit: float) -> list[str]:
    """Parts of a word that each fit into a line."""
    if length <= limit:
        return [word]
    size = max(1, int(0.8 * len(word) * limit / length))
    return [word[start : start + size] for start in range(0, len(word), size)]


def shorten_name(name: str, max_length: int = 44) -> str:
    """Shorten a name to fit into a plot."""
    text = " ".join(name.split())
    return text if len(text) <= max_length else f"{text[: max_length - 11]}…{text[-10:]}"
