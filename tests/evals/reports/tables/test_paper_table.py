"""The comparison of a study's run with the paper's published numbers."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.reports.caveats import list_result_caveats
from langgraph_takeover.evals.reports.estimates import Pair, mcnemar
from langgraph_takeover.evals.reports.published_tables import load_published_tables
from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.evals.run.rows import Takeover
from langgraph_takeover.evals.run.settings.study import load_studies

from ...conftest import RunCommand, rewrite_rows

Rows = list[dict[str, Any]]


def make_study(out: Path, study: str | None, successor: str = "openai:alpha", **models: str) -> Path:
    """Turn published rows into those of a study, with other names of the models."""
    models = {"openai:alpha": successor} | models
    for name in ("config.json", "takeovers.jsonl", "predecessors.jsonl", "notes.jsonl"):
        text = (out / name).read_text()
        for old, new in models.items():
            text = text.replace(json.dumps(old), json.dumps(new))
        (out / name).write_text(text)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"study": study}))
    return out


def paper_rows(out: Path) -> Rows:
    (table,) = [table for table in build_tables(load_results([out])) if table.name == "paper"]
    assert table.number == 17
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def find_row(rows: Rows, *cells: object) -> dict[str, Any]:
    (found,) = [row for row in rows if tuple(row.values())[: len(cells)] == cells]
    return found


def test_the_published_numbers_are_consistent() -> None:
    published = load_published_tables()
    assert [table.table for table in published] == list(range(1, 10))
    assert {table.study for table in published} == {
        name for name, study in load_studies().items() if study.paper
    }
    for table in published:
        for by_category in table.rows.values():
            for by_view in by_category.values():
                assert {len(numbers) for numbers in by_view.values()} == {len(table.columns)}
    by_number = {table.table: table for table in published}
    # Rounded percentages are those of the published medians, and p values those of the published pairs.
    for number in (2, 4, 5):
        table = by_number[number]
        for pair in table.rows:
            base = table.find_numbers((pair,), "all", "repository", "median events")[0]
            for view in ("trace", "summary", "structured"):
                own = table.find_numbers((pair,), "all", view, "median events")[0]
                change = table.find_numbers((pair,), "all", view, "Δ median events %")[0]
                assert 100 * (own / base - 1) == pytest.approx(change, abs=0.7)
    for pair, by_category in by_number[6].rows.items():
        for _, delta, low, high, gained, lost, p in by_category["all"].values():
            assert None not in (delta, low, high, gained, lost, p), pair
            outcomes = [(True, False)] * int(gained or 0) + [(False, True)] * int(lost or 0)
            test = mcnemar([Pair(make_takeover(a), make_takeover(b)) for a, b in outcomes])
            assert test.p == pytest.approx(p, abs=0.0011)
            assert 100 * ((gained or 0) - (lost or 0)) / 181 == pytest.approx(delta, abs=0.06)
    for number, groups in ((8, "first_source_edit"), (9, "needs_completion")):
        for by_category in by_number[number].rows.values():
            assert sum(each["trace"][0] or 0 for each in by_category.values()) == 181
            assert groups in by_category


def make_takeover(resolved: bool) -> Takeover:
    return Takeover(record_id="r", view="v", successor="s", repeat=1, outcome="graded", resolved=resolved)


def test_a_run_without_a_study_is_not_compared(published_rows: Path) -> None:
    assert "paper" not in {table.name for table in build_tables(load_results([published_rows]))}


def test_ours_are_compared_with_the_range_of_all_pairs(published_rows: Path) -> None:
    rows = paper_rows(make_study(published_rows, "main"))
    assert {row["paper's table"] for row in rows} == {1, 2, 3, 6, 7, 8, 9}
    events = find_row(rows, 2, "openai:alpha", "", "trace", "Δ median events %")
    assert (events["paper's combination"], events["paper, lowest"], events["paper, highest"]) == (
        "all",
        -59,
        -57,
    )
    assert (events["ours"], events["difference"]) == (pytest.approx(-60), pytest.approx(-1))
    inside = find_row(rows, 2, "openai:alpha", "", "repository", "solved %")
    assert (inside["ours"], inside["difference"]) == (
        pytest.approx(100 * 2 / 7),
        pytest.approx(28.571429 - 34.3),
    )
    interval = find_row(rows, 3, "openai:alpha", "", "trace", "events, mean change %: 95 % low")
    assert (interval["paper, lowest"], interval["paper, highest"]) == (-50, -45)
    assert interval["ours"] < -45
    assert find_row(rows, 6, "openai:alpha", "", "summary", "solved, Δ pp: p")["ours"] == pytest.approx(0.625)
    prompts = find_row(rows, 7, "openai:beta", "", "trace", "median characters")
    assert (prompts["paper, lowest"], prompts["paper, highest"]) == (87000, 87000)
    by_point = find_row(rows, 8, "openai:alpha", "first_validation", "repository", "median events")
    assert (by_point["paper, lowest"], by_point["paper, highest"], by_point["ours"]) == (43, 171, 20)
    assert by_point["difference"] == -23
    by_state = find_row(rows, 9, "openai:alpha", "behavior_broken", "trace", "solved %")
    assert (by_state["paper, lowest"], by_state["paper, highest"], by_state["ours"]) == (40, 80, 100)
    points = find_row(rows, 1, "", "handoff points", "all", "count")
    assert (points["paper, lowest"], points["ours"], points["difference"]) == (181, 6, -175)


@pytest.mark.parametrize(
    ("name", "pair", "events"),
    [
        ("openai:Qwen/Qwen3-8B", "Qwen to Qwen", -59),
        ("openai:google/GEMMA-4", "Qwen to Gemma", -57),
        ("local-devstral", "Qwen to Devstral", -58),
    ],
)
def test_the_name_of_a_model_chooses_its_pair(
    published_rows: Path, name: str, pair: str, events: int
) -> None:
    rows = paper_rows(make_study(published_rows, "main", name))
    row = find_row(rows, 2, name, "", "trace", "Δ median events %")
    assert (row["paper's combination"], row["paper, lowest"], row["paper, highest"]) == (pair, events, events)
    assert find_row(rows, 2, "openai:beta", "", "trace", "runs")["paper's combination"] == "all"


def test_the_study_of_predecessors_is_compared_by_predecessor(published_rows: Path) -> None:
    make_study(published_rows, "predecessors", **{"openai:first": "openai:gemma-4"})
    rows = paper_rows(published_rows)
    assert {row["paper's table"] for row in rows} == {5}
    named = find_row(rows, 5, "openai:beta", "openai:gemma-4", "summary", "Δ median events %")
    assert (named["paper's combination"], named["paper, lowest"], named["ours"]) == (
        "Gemma to Devstral",
        -23,
        -50,
    )
    other = find_row(rows, 5, "openai:beta", "openai:second", "summary", "Δ median events %")
    assert (other["paper, lowest"], other["paper, highest"]) == (-35, -22)


def test_the_study_of_repeats_has_one_pair(published_rows: Path) -> None:
    rows = paper_rows(make_study(published_rows, "repeats"))
    row = find_row(rows, 4, "openai:alpha", "", "summary", "median events")
    assert (row["paper's combination"], row["paper, lowest"], row["ours"]) == ("Qwen to Qwen", 52, 30)


def test_runs_of_different_studies_are_not_compared(published_rows: Path, tmp_path: Path) -> None:
    other = make_study(Path(shutil.copytree(published_rows, tmp_path / "other")), "repeats", "openai:gamma")
    rewrite_rows(other, lambda row: row if row["successor"] == "openai:gamma" else None)
    results = load_results([make_study(published_rows, "main"), other])
    assert "paper" not in {table.name for table in build_tables(results)}
    assert any("different studies (main, repeats)" in line for line in list_result_caveats(results))


@pytest.mark.slow
def test_the_comparison_is_in_files_page_and_console(published_rows: Path, run_report: RunCommand) -> None:
    done = run_report(make_study(published_rows, "main"))
    text = " ".join(done.stdout.split())
    assert "The paper's study main and ours" in text
    assert re.search(r"openai:alpha │ trace +│ +-59 to -57 │ -60\.0", done.stdout)
    tables = published_rows / "tables"
    (row,) = [
        row
        for row in csv.DictReader((tables / "table17_paper.csv").open())
        if (row["successor"], row["view"], row["measure"]) == ("openai:alpha", "trace", "Δ solved pp")
        and row["paper's table"] == "2"
    ]
    assert (float(row["paper, lowest"]), float(row["paper, highest"])) == (6.1, 14.9)
    assert "| 0.625 |" in (tables / "table17_paper.md").read_text()
    assert "table-paper" in (published_rows / "report.html").read_text()


@pytest.mark.slow
def test_a_model_s_name_is_no_markup(published_rows: Path, run_report: RunCommand) -> None:
    out = make_study(published_rows, "main", **{"openai:alpha": "openai:qwen[/b][bold]"})
    done = run_report(out)
    assert done.returncode == 3, done.stderr  # the rows have infrastructure failures
    assert "qwen[/b][bold]" in done.stdout
