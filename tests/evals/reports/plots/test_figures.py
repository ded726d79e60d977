"""Pictures of results: what they show, that they are legible, and that they are the same each time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from langgraph_takeover.evals.reports.collection import collect_report_data
from langgraph_takeover.evals.reports.plots import figures, style
from langgraph_takeover.evals.reports.plots.figures import draw_plots, draw_plots_with_omissions
from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.handoff.views import VIEWS

from ...conftest import rewrite_rows


def drawn_points(figure: Figure) -> set[tuple[float, float]]:
    """Every marker that stands alone, in all panels."""
    return {
        (round(float(x), 6), round(float(y), 6))
        for axis in figure.axes
        for line in axis.lines
        if len(line.get_xdata()) == 1  # type: ignore[arg-type]
        for x, y in [(line.get_xdata()[0], line.get_ydata()[0])]  # type: ignore[index]
    }


@pytest.mark.slow
def test_every_picture_is_a_vector_and_an_image(undisturbed: Path, tmp_path: Path) -> None:
    pictures = draw_plots(load_results([undisturbed]), tmp_path / "plots")
    assert [picture.name for picture in pictures] == [
        "accuracy_effort",
        "reductions",
        "first_prompts",
        "debt",
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
def test_pictures_are_the_same_each_time(undisturbed: Path, tmp_path: Path) -> None:
    results = load_results([undisturbed])
    first, second = (draw_plots(results, tmp_path / name) for name in ("first", "second"))
    for one, other in zip(first, second, strict=True):
        assert one.svg.read_bytes() == other.svg.read_bytes()
        assert one.png.read_bytes() == other.png.read_bytes()
        assert not re.search(r"<dc:date>|matplotlib\.org/?<|20\d\d-\d\d-\d\dT", one.svg.read_text())


def test_runs_without_an_llm_say_so_in_the_picture(undisturbed: Path, published: Path) -> None:
    with style.plot_style():
        for out, expected in ((undisturbed, True), (published, False)):
            results = load_results([out])
            said = figures.short_caveats(results)
            assert any("No LLM: builtin:oracle" in line for line in said) == expected


def test_reductions_are_those_of_the_table(published: Path) -> None:
    results = load_results([published])
    matched = {table.name: table for table in build_tables(results)}["matched"]
    with style.plot_style():
        figure = figures.draw_reductions(collect_report_data(results))
    views = ["trace", "summary", "structured"]
    expected = {(round(float(row[5] or 0), 6), float(views.index(str(row[1])))) for row in matched.rows}
    assert drawn_points(figure) == expected
    assert [axis.get_title(loc="left") for axis in figure.axes if axis.get_title(loc="left")] == [
        "openai:alpha",
        "openai:beta",
    ]


def test_accuracy_and_effort_are_those_of_the_table(published: Path) -> None:
    results = load_results([published])
    effects = {table.name: table for table in build_tables(results)}["effects"]
    column = {name: place for place, name in enumerate(effects.columns)}
    expected = {
        (round(float(row[column[effort]] or 0), 6), round(float(row[column["solved %"]] or 0), 6))
        for row in effects.rows
        for effort in ("median events", "median prompt tokens")
    }
    with style.plot_style():
        assert drawn_points(figures.draw_accuracy(collect_report_data(results))) == expected


def test_debt_is_against_the_best_informed_view(published: Path) -> None:
    found = collect_report_data(load_results([published]))
    assert found.reference_view == "trace"
    with style.plot_style():
        figure = figures.draw_debt(found)
    heights = {y for _, y in drawn_points(figure)}
    assert 48.0 in heights  # the one point of the second predecessor, whose state nobody could tell
    assert -10.0 in heights  # beta needed less under summary than under trace


def test_tokens_are_summed_up_call_by_call(undisturbed: Path) -> None:
    results = load_results([undisturbed])
    found = collect_report_data(results)
    bands = figures.compute_curves(results, found)
    assert bands.is_estimated
    assert bands.trace_count == len(found.takeovers)
    for view in found.views:
        middle = bands.bands["builtin:oracle", view].middle
        assert middle == sorted(middle)
        totals = sorted(row["prompt_tokens"] for row in found.select(view=view))
        assert middle[-1] == pytest.approx(totals[len(totals) // 2], rel=0.2)


def test_what_would_be_empty_is_left_out_with_its_reason(published: Path, tmp_path: Path) -> None:
    stale = tmp_path / "plots" / "debt.svg"
    stale.parent.mkdir()
    stale.write_text("of an earlier report")
    rewrite_rows(published, lambda row: row if row["view"] == "repository" else None)
    made = draw_plots_with_omissions(load_results([published]), tmp_path / "plots")
    assert [picture.name for picture in made.pictures] == ["accuracy_effort", "first_prompts"]
    assert made.omissions == (
        "reductions: no takeover under another view is matched with one under repository",
        "debt: no takeover under another view than repository was graded",
        "tokens: no trace at hand tells its tokens",
    )
    assert not stale.exists()


def test_nothing_graded_draws_nothing(published: Path, tmp_path: Path) -> None:
    rewrite_rows(published, lambda row: None)
    made = draw_plots_with_omissions(load_results([published]), tmp_path / "plots")
    assert made.pictures == ()
    assert len(made.omissions) == 5


def test_a_single_takeover_can_be_drawn(published: Path, tmp_path: Path) -> None:
    kept = ("two__two-2.first_validation", "openai:alpha")
    rewrite_rows(published, lambda row: row if (row["record_id"], row["successor"]) == kept else None)
    made = draw_plots_with_omissions(load_results([published]), tmp_path / "plots")
    assert [picture.name for picture in made.pictures] == [
        "accuracy_effort",
        "reductions",
        "first_prompts",
        "debt",
    ]


def test_views_differ_in_colour_marker_and_line() -> None:
    looks = [style.view_style(view) for view in (*VIEWS, "another")]
    for part in ("color", "marker"):
        assert len({getattr(look, part) for look in looks}) == len(looks)
    assert len({str(look.line) for look in looks[:7]}) == 7
    # Apart in lightness or in hue also for those who see no red or no green: a blue channel or a brightness of its own.
    for one, other in combinations([look.color for look in looks], 2):
        first, second = ([int(color[place : place + 2], 16) for place in (1, 3, 5)] for color in (one, other))
        light = abs(sum(first) - sum(second)) / 3
        assert max(light, abs(first[2] - second[2])) > 15, (one, other)


@pytest.mark.slow
def test_the_legend_covers_no_panel(published: Path) -> None:
    with style.plot_style():
        for make in (figures.draw_accuracy, figures.draw_debt):
            figure = make(collect_report_data(load_results([published])))
            figure.suptitle("A title", x=0.01, ha="left")
            figure.draw_without_rendering()
            box = figure.legends[0].get_window_extent()
            assert not any(box.overlaps(axis.get_window_extent()) for axis in figure.axes)
            assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1
