"""Plots of results: their content, legibility and reproducibility."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from langgraph_takeover.evals.reports.collection import BEST_INFORMED_VIEWS, collect_report_data
from langgraph_takeover.evals.reports.plots import debt_figures, figures, style
from langgraph_takeover.evals.reports.plots.figures import draw_plots
from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.views import VIEWS

from ...conftest import rewrite_rows


def single_markers(figure: Figure) -> set[tuple[float, float]]:
    """The positions of all single markers, in all panels."""
    return {
        (round(float(x), 6), round(float(y), 6))
        for axis in figure.axes
        for line in axis.lines
        if len(line.get_xdata()) == 1  # type: ignore[arg-type]
        for x, y in [(line.get_xdata()[0], line.get_ydata()[0])]  # type: ignore[index]
    }


@pytest.mark.slow
def test_every_plot_is_written_as_svg_and_png(complete_run: Path, tmp_path: Path) -> None:
    pictures = draw_plots(load_results([complete_run]), tmp_path / "plots").pictures
    assert [picture.name for picture in pictures] == [
        "accuracy_effort",
        "changes",
        "first_prompts",
        "debt",
        "uninterrupted",
        "trust",
        "tokens",
    ]
    for picture in pictures:
        assert picture.title
        root = ElementTree.parse(picture.svg).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        pixels = imread(picture.png)
        assert min(pixels.shape[:2]) > 300
        assert len({tuple(color) for line in pixels[::3, ::3] for color in line}) > 20
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        path.name for picture in pictures for path in (picture.svg, picture.png)
    }


@pytest.mark.slow
def test_plots_are_reproducible(complete_run: Path, tmp_path: Path) -> None:
    results = load_results([complete_run])
    first, second = (draw_plots(results, tmp_path / name).pictures for name in ("first", "second"))
    for one, other in zip(first, second, strict=True):
        assert one.svg.read_bytes() == other.svg.read_bytes()
        assert one.png.read_bytes() == other.png.read_bytes()
        assert not re.search(r"<dc:date>|matplotlib\.org/?<|20\d\d-\d\d-\d\dT", one.svg.read_text())


@pytest.mark.slow
def test_plots_without_an_llm_are_labelled(complete_run: Path, published_rows: Path) -> None:
    with style.plot_style():
        for out, expected in ((complete_run, True), (published_rows, False)):
            results = load_results([out])
            caveats = figures.short_caveats(results)
            assert any("No LLM: builtin:oracle" in line for line in caveats) == expected


def test_changes_equal_the_table(published_rows: Path) -> None:
    results = load_results([published_rows])
    matched = {table.name: table for table in build_tables(results)}["matched"]
    with style.plot_style():
        figure = figures.draw_changes(collect_report_data(results))
    views = ["trace", "summary", "structured"]
    column = matched.columns.index("estimate")
    expected = {
        (round(float(row[column] or 0), 6), float(views.index(str(row[1]))))
        for row in matched.rows
        if "mean change" in str(row[2]) or row[2] == "solved, Δ pp"
    }
    assert single_markers(figure) == expected
    assert [axis.get_title(loc="left") for axis in figure.axes if axis.get_title(loc="left")] == [
        "openai:alpha",
        "openai:beta",
    ]


def test_accuracy_and_effort_equal_the_table(published_rows: Path) -> None:
    results = load_results([published_rows])
    effects = {table.name: table for table in build_tables(results)}["effects"]
    column = {name: index for index, name in enumerate(effects.columns)}
    expected = {
        (round(float(row[column[effort]] or 0), 6), round(float(row[column["solved %"]] or 0), 6))
        for row in effects.rows
        for effort in ("median events", "median prompt tokens")
    }
    with style.plot_style():
        assert single_markers(figures.draw_accuracy(collect_report_data(results))) == expected


def test_levels_of_plots_are_at_common_points(published_rows: Path) -> None:
    data = collect_report_data(load_results([published_rows]))
    with style.plot_style():
        legend = figures.draw_accuracy(data).legends[0]
        prompts, changes = figures.draw_first_prompts(data).axes[0], figures.draw_changes(data).axes[0]
    assert [text.get_text() for text in legend.get_texts()][-1] == "structured, 11 of 13"
    assert [text.get_text() for text in prompts.get_yticklabels()][-1] == "structured, 11 of 13"
    # Pairs need no other view than the two that they compare.
    labels = [text.get_text() for text in changes.get_yticklabels()]
    assert labels == ["trace", "summary, 6 of 7", "structured, 5 of 7"]


def test_the_whisker_is_the_quantile_itself(published_rows: Path) -> None:
    results = load_results([published_rows])
    data = collect_report_data(results).restrict_to_common_points()
    with style.plot_style():
        axis = figures.draw_first_prompts(data).axes[0]
    sizes = [row.first_prompt_tokens for row in data.select(view="trace")]
    ends = {round(float(x), 3) for line in axis.lines for x in line.get_xdata()}  # type: ignore[union-attr]
    assert round(float(np.quantile(sizes, 0.9)), 3) in ends


LONG = "Excluded handoff points: " + ", ".join(f"package__package-{n}.first_source_edit" for n in range(40))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1.5, 8.0])
def test_titles_and_footnotes_are_wrapped(tmp_path: Path, width: float) -> None:
    words = [LONG, "x" * 300, "WWW " * 80, "short"]
    with style.plot_style():
        figure, _ = style.create_panels([""], ["a"], width=width, height=1)
        before = figure.get_figheight()
        style.save_picture(figure, tmp_path, "long", LONG, words)
        texts = [text for text in figure.texts if text.get_text()]
        assert len(texts) == 2
        figure.draw_without_rendering()
        for text in texts:
            text.set_visible(True)
            box = text.get_window_extent()
            assert min(box.x0, box.y0) >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y1 <= figure.bbox.y1
    shown = "".join(texts[1].get_text().split())
    assert shown == "".join("".join(words).split())
    assert figure.get_figheight() > before


@pytest.mark.slow
def test_embedded_plots_have_no_title(published_rows: Path, tmp_path: Path) -> None:
    for picture in draw_plots(load_results([published_rows]), tmp_path).pictures:
        assert picture.embedded_type == "svg+xml"
        sources = (picture.svg.read_bytes(), picture.embedded)
        whole, embedded = map(ElementTree.fromstring, sources)
        # The file has the text of each group of glyphs as a comment.
        first, second = (" ".join(re.findall(r"<!-- (.*?) -->", each.decode())) for each in sources)
        assert picture.title in first
        assert picture.title not in second
        assert float(embedded.attrib["height"][:-2]) < float(whole.attrib["height"][:-2])
        assert embedded.attrib["width"] == whole.attrib["width"]


def test_debt_is_relative_to_the_best_informed_view(published_rows: Path) -> None:
    data = collect_report_data(load_results([published_rows]))
    assert data.reference_view == "trace"
    with style.plot_style():
        figure = debt_figures.draw_debt(data)
    heights = {y for _, y in single_markers(figure)}
    assert 25.0 in heights  # alpha's only point after a failure
    assert 48.0 not in heights  # structured failed at the second predecessor's only point
    assert -10.0 in heights  # beta needed fewer events under summary than under trace


@pytest.mark.slow
def test_tokens_accumulate_per_call(complete_run: Path) -> None:
    results = load_results([complete_run])
    data = collect_report_data(results)
    bands = figures.compute_curves(results, data)
    assert bands.is_estimated
    assert sum(bands.counts.values()) == len(data.takeovers)
    for view in data.views:
        middle = bands.bands["builtin:oracle", view].middle
        assert middle == sorted(middle)
        totals = sorted(row.prompt_tokens or 0 for row in data.select(view=view))
        assert middle[-1] == pytest.approx(totals[len(totals) // 2], rel=0.2)


def test_empty_plots_are_omitted_with_a_reason(published_rows: Path, tmp_path: Path) -> None:
    stale = tmp_path / "plots" / "debt.svg"
    stale.parent.mkdir()
    stale.write_text("stale")
    rewrite_rows(published_rows, lambda row: row if row["view"] == "repository" else None)
    plots = draw_plots(load_results([published_rows]), tmp_path / "plots")
    assert [picture.name for picture in plots.pictures] == ["accuracy_effort", "first_prompts"]
    assert plots.omissions == (
        "changes: no pairs with the repository view",
        "debt: no graded takeovers with a view other than repository",
        "uninterrupted: no predecessor that ran to its end",
        "trust: no predecessor changed a source line",
        "tokens: no trace has token counts",
    )
    assert not stale.exists()


def test_no_plot_without_graded_takeovers(published_rows: Path, tmp_path: Path) -> None:
    rewrite_rows(published_rows, lambda row: None)
    plots = draw_plots(load_results([published_rows]), tmp_path / "plots")
    assert plots.pictures == ()
    assert len(plots.omissions) == 7


def test_a_single_takeover_is_plotted(published_rows: Path, tmp_path: Path) -> None:
    key = ("two__two-2.first_validation", "openai:alpha")
    rewrite_rows(published_rows, lambda row: row if (row["record_id"], row["successor"]) == key else None)
    plots = draw_plots(load_results([published_rows]), tmp_path / "plots")
    assert [picture.name for picture in plots.pictures] == [
        "accuracy_effort",
        "changes",
        "first_prompts",
        "debt",
    ]


def test_every_view_has_its_place_in_the_reports() -> None:
    assert {*style.VIEW_ORDER} == {*VIEWS, CONTINUATION}
    # The baseline informs of nothing.
    assert {*BEST_INFORMED_VIEWS} == {*VIEWS} - {"repository"}


def test_views_differ_in_color_marker_and_line() -> None:
    styles = [style.view_style(view) for view in (*VIEWS, "another")]
    for part in ("color", "marker"):
        assert len({getattr(view_style, part) for view_style in styles}) == len(styles)
    assert len({str(view_style.line) for view_style in styles[:7]}) == 7
    # Colors must differ in brightness or in their blue channel, for readers who cannot distinguish red and green.
    for one, other in combinations([view_style.color for view_style in styles], 2):
        first, second = (
            [int(color[offset : offset + 2], 16) for offset in (1, 3, 5)] for color in (one, other)
        )
        brightness = abs(sum(first) - sum(second)) / 3
        assert max(brightness, abs(first[2] - second[2])) > 15, (one, other)


@pytest.mark.slow
def test_the_legend_overlaps_no_panel(published_rows: Path) -> None:
    with style.plot_style():
        for make in (figures.draw_accuracy, debt_figures.draw_debt):
            figure = make(collect_report_data(load_results([published_rows])))
            figure.suptitle("A title", x=0.01, ha="left")
            figure.draw_without_rendering()
            box = figure.legends[0].get_window_extent()
            assert not any(box.overlaps(axis.get_window_extent()) for axis in figure.axes)
            assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1
