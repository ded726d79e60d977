"""Handoff points that count: those with a record, and with notes if a view shows them."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.reports.caveats import list_result_caveats
from langgraph_takeover.evals.reports.collection import collect_report_data
from langgraph_takeover.evals.reports.comparison import compare
from langgraph_takeover.evals.reports.html.overview import build_key_figures
from langgraph_takeover.evals.reports.summary import summarize
from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.run.results import Results, load_results
from langgraph_takeover.evals.run.rows import STAGES

from ..conftest import rewrite_rows

POINT = "two__two-2.first_validation"
FAILURE = {"outcome": "infrastructure_failure", "resolved": None, "detail": "503"}


def fail_notes(row: dict[str, Any]) -> dict[str, Any]:
    return (
        {name: row[name] for name in ("record_id", "model")} | FAILURE if row["record_id"] == POINT else row
    )


def fail_views_with_notes(row: dict[str, Any]) -> dict[str, Any]:
    """The takeovers of a point as they are without its notes."""
    if row["record_id"] != POINT or row["view"] not in ("summary", "structured"):
        return row
    return {name: row[name] for name in ("task_id", "record_id", "view", "successor", "repeat")} | FAILURE


def study_counts(results: Results) -> dict[tuple[Any, Any], Any]:
    return {(item, category): count for item, category, count in build_tables(results)[0].rows}


def points(results: Results) -> set[str]:
    return {row.record_id for row in collect_report_data(results).takeovers}


def test_a_point_without_notes_is_excluded_under_every_view(published_rows: Path) -> None:
    rewrite_rows(published_rows, fail_views_with_notes)
    rewrite_rows(published_rows, fail_notes, "notes")
    results = load_results([published_rows])
    data = collect_report_data(results)
    assert len(data.takeovers) == 49 - 8  # under four views, by two successors
    assert POINT not in points(results)
    counts = study_counts(results)
    assert counts["handoff points", "all"] == 6
    assert counts["handoff points", "excluded: notes missing"] == 1
    assert counts["takeovers", "graded"] == 41
    summary = summarize(results)
    trace = summary["views"]["trace"]
    # Structured failed at one point of alpha, which has a second repeat of another under two of the four views.
    assert (trace["graded"], trace["runs"], trace["infrastructure_failures"]) == (11, 9, 0)
    assert trace["left_out"] == {"unmatched": 2, "excluded": 2}
    assert summary["views"]["summary"]["infrastructure_failures"] == 2
    assert summary["excluded_points"] == {"notes missing": [POINT], "record missing": []}
    assert build_key_figures(results, summary)[0].value == "41"
    (caveat,) = [line for line in list_result_caveats(results) if "Excluded" in line]
    assert caveat.startswith("Excluded handoff points without notes, with all their takeovers: 1;")
    assert f"({POINT})" in caveat
    whole = compare(results, results)
    assert sum(view.pairs for view in whole.views) == 41


def test_a_missing_row_of_notes_excludes_unless_a_view_showed_them(published_rows: Path) -> None:
    rewrite_rows(published_rows, lambda row: None if row["record_id"] == POINT else row, "notes")
    assert POINT in points(load_results([published_rows]))
    rewrite_rows(published_rows, fail_views_with_notes)
    assert POINT not in points(load_results([published_rows]))


def test_an_export_of_takeovers_alone_cannot_be_checked(published_rows: Path) -> None:
    for name in ("notes", "predecessors", "labels"):
        (published_rows / f"{name}.jsonl").unlink()
    rewrite_rows(published_rows, fail_views_with_notes)
    results = load_results([published_rows])
    assert POINT in points(results)
    assert ("handoff points", "excluded: notes missing") not in study_counts(results)
    assert any("points without notes could not be excluded" in line for line in list_result_caveats(results))


def test_points_that_wait_for_their_notes_are_not_excluded(published_rows: Path) -> None:
    """A run under way: the predecessors are done, notes and takeovers are not."""
    rewrite_rows(published_rows, lambda row: None if row["record_id"] == POINT else row, "notes")
    rewrite_rows(published_rows, lambda row: None if row["record_id"] == POINT else row)
    results = load_results([published_rows])
    assert study_counts(results)["handoff points", "excluded: notes missing"] == 0
    assert not any("Excluded" in line for line in list_result_caveats(results))


def test_a_report_during_a_run_names_the_points_without_a_takeover(published_rows: Path) -> None:
    rewrite_rows(published_rows, lambda row: None if row["record_id"] == POINT else row)
    results = load_results([published_rows])
    assert summarize(results)["waiting_points"] == [POINT]
    assert f"Handoff points without a takeover yet: 1 ({POINT})." in list_result_caveats(results)
    # A run of selected points takes over no others.
    config = json.loads((published_rows / "config.json").read_text())
    (published_rows / "config.json").write_text(json.dumps(config | {"max_points": 5}))
    assert summarize(load_results([published_rows]))["waiting_points"] == []


def test_a_view_without_takeovers_leaves_the_levels_of_others(published_rows: Path) -> None:
    rewrite_rows(published_rows, lambda row: None if row["view"] == "structured" else row)
    views = summarize(load_results([published_rows]))["views"]
    assert (views["trace"]["runs"], views["trace"]["left_out"]) == (12, {"unmatched": 1})
    assert (views["structured"]["runs"], views["structured"]["left_out"]) == (0, {"not run": 13})


def test_levels_of_successors_with_other_views_are_not_pooled(published_rows: Path) -> None:
    """Pooled, the one that solves nothing would count against the views that it has."""

    def fail_view_of_beta(row: dict[str, Any]) -> dict[str, Any]:
        if row["successor"] == "openai:beta" and row["view"] == "structured":
            return {
                name: row[name] for name in ("task_id", "record_id", "view", "successor", "repeat")
            } | FAILURE
        return row | {"resolved": row["successor"] == "openai:alpha"} if row["outcome"] == "graded" else row

    rewrite_rows(published_rows, fail_view_of_beta)
    results = load_results([published_rows])
    summary = summarize(results)
    assert {(view["runs"], view["solved"]) for view in summary["views"].values()} == {(5, 5)}
    trace = summary["views"]["trace"]
    assert (trace["left_out"]["unpooled"], trace["matched"], trace["solved_delta"]) == (6, 5 + 6, 0)
    effects, left_out = (
        next(table for table in build_tables(results) if table.name == name)
        for name in ("effects", "left_out")
    )
    assert [row[2] for row in effects.rows if row[0] == "openai:beta" and row[1] != "structured"] == [6] * 3
    assert sum(row[-1] == "unpooled" for row in left_out.rows) == 6 * 3
    assert len(summary["left_out"]) == len(left_out.rows)


@pytest.mark.slow
def test_the_order_of_rows_changes_nothing(published_rows: Path, tmp_path: Path) -> None:
    rewrite_rows(published_rows, add_troubles)
    rewrite_rows(published_rows, lambda row: row | {"left_out_count": 1}, "labels")
    results = load_results([published_rows])
    expected = summarize(results), build_tables(results)
    assert sum("lack changes" in note or "depends on scratch" in note for note in expected[1][0].notes) == 2
    for number, stage in itertools.product(range(3), STAGES):
        path = published_rows / f"{stage}.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        random.Random(number).shuffle(lines)
        path.write_text("".join(lines))
        results = load_results([published_rows])
        assert (summarize(results), build_tables(results)) == expected


def test_caveats_are_the_same_in_any_order_of_runs(published_rows: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(published_rows, tmp_path / "other"))
    for out, steps in ((published_rows, 100), (other, 200)):
        rewrite_rows(out, lambda row, steps=steps: row if (row["repeat"] == 1) == (steps == 100) else None)
        config = json.loads((out / "config.json").read_text())
        config |= {"run_id": f"{steps}", "predecessor_limits": {"max_steps": steps}}
        (out / "config.json").write_text(json.dumps(config))
    orders = itertools.permutations((published_rows, other))
    forward, backward = (list_result_caveats(load_results(runs)) for runs in orders)
    assert forward == backward
    assert sum("other limits: --max-steps" in line for line in forward) == 2


def add_troubles(row: dict[str, Any]) -> dict[str, Any]:
    """Rows that notes name."""
    if row["outcome"] != "graded":
        return row
    return row | {"cleaned_resolved": not row["resolved"], "left_out_count": 2, "trace": _name_trace(row)}


def _name_trace(row: dict[str, Any]) -> str:
    return f"{row['record_id']}.{row['view']}.{row['successor'].partition(':')[2]}.{row['repeat']}"


def test_a_run_whose_views_show_no_notes_needs_none(published_rows: Path) -> None:
    (published_rows / "notes.jsonl").unlink()
    rewrite_rows(published_rows, lambda row: row if row["view"] in ("repository", "trace") else None)
    config = json.loads((published_rows / "config.json").read_text())
    (published_rows / "config.json").write_text(json.dumps(config | {"views": ["repository", "trace"]}))
    results = load_results([published_rows])
    assert POINT in points(results)
    assert not any("notes" in line for line in list_result_caveats(results))


def test_notes_that_another_run_wrote_later_count(published_rows: Path, tmp_path: Path) -> None:
    later = Path(shutil.copytree(published_rows, tmp_path / "later"))
    rewrite_rows(later, lambda row: row | {"successor": f"{row['successor']}-2"})
    rewrite_rows(published_rows, fail_views_with_notes)
    rewrite_rows(published_rows, fail_notes, "notes")
    assert POINT in points(load_results([published_rows, later]))


def test_a_point_whose_record_the_predecessor_does_not_list_is_excluded(published_rows: Path) -> None:
    rewrite_rows(
        published_rows,
        lambda row: row | {"records": [name for name in row.get("records", ()) if name != POINT]},
        "predecessors",
    )
    results = load_results([published_rows])
    assert POINT not in points(results)
    assert study_counts(results)["handoff points", "excluded: record missing"] == 1
    assert any("Excluded handoff points without record" in line for line in list_result_caveats(results))
