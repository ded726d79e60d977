"""Tables of re-shown text, over-trust and debt against the uninterrupted run, compared with values computed by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.reports.collection import collect_report_data
from langgraph_takeover.evals.reports.summary import summarize
from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.reports.tables.table_files import write_takeovers
from langgraph_takeover.evals.run.results import load_results

from ...conftest import rewrite_rows

Row = dict[str, Any]
POINT = "two__two-2.first_validation"
"""Already solved."""
REMAINDER = {"events": 8, "prompt_tokens": 9_000, "completion_tokens": 100}


@pytest.fixture
def measured_rows(published_rows: Path) -> Path:
    """Alpha kept everything under `trace` and half under `repository`; it checked only under `repository`."""

    def add_measures(row: Row) -> Row:
        if row["outcome"] != "graded" or row["successor"] != "openai:alpha":
            return row
        is_trace = row["view"] == "trace"
        return row | {
            "shown_chars": 4_000, "reshown_chars": 1_000 if is_trace else 3_000, "verification_chars": 400,
            "kept": 1.0 if is_trace else 0.5, "reexamined": not is_trace, "verified_before_finish": not is_trace,
        }  # fmt: skip

    rewrite_rows(published_rows, add_measures)
    rewrite_rows(
        published_rows,
        lambda row: (
            row
            | (
                {"remainders": {POINT: REMAINDER}, "resolved": True}
                if POINT in row.get("records", ())
                else {}
            )
        ),
        "predecessors",
    )
    return published_rows


def find_rows(out: Path, name: str) -> list[Row]:
    table = next(table for table in build_tables(load_results([out])) if table.name == name)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def find_row(out: Path, name: str, **cells: str) -> Row:
    (match,) = [row for row in find_rows(out, name) if row | cells == row]
    return match


def test_reshown_text_is_the_first_measure_of_debt(measured_rows: Path) -> None:
    row = find_row(measured_rows, "debt", successor="openai:alpha", view="repository")
    assert (row["runs"], row["left out"]) == (5, 2)
    assert (row["shown tokens"], row["re-shown tokens"], row["re-shown %"]) == (5_000, 3_750, 75)
    assert row["verification tokens"] == 500
    unknown = find_row(measured_rows, "debt", successor="openai:beta", view="repository")
    assert unknown["re-shown tokens"] is None


def test_over_trust_and_harm(measured_rows: Path) -> None:
    row = find_row(measured_rows, "trust", successor="openai:alpha", view="trace")
    assert (row["runs"], row["with a change"], row["median kept %"], row["kept all %"]) == (5, 5, 100, 100)
    assert (row["reexamined %"], row["verified before finish %"]) == (0, 0)
    assert (row["pairs"], row["harm"], row["rescue"]) == (5, 0, 2)
    assert (row["already solved"], row["preserved"]) == (1, 1)
    baseline = find_row(measured_rows, "trust", successor="openai:alpha", view="repository")
    assert (baseline["harm"], baseline["kept all %"], baseline["verified before finish %"]) == (None, 0, 100)


def test_predecessor_right_or_wrong_by_kept_or_changed(measured_rows: Path) -> None:
    found = {
        (row["view"], row["predecessor"], row["successor's action"]): (
            row["runs"],
            row["not reexamined"],
            row["solved"],
        )
        for row in find_rows(measured_rows, "belief")
        if row["view"] in ("repository", "trace")
    }
    # At common points; the one without a label is none of them.
    assert found == {
        ("repository", "right", "changed"): (1, 0, 1),
        ("repository", "wrong", "changed"): (4, 0, 1),
        ("trace", "right", "kept"): (1, 1, 1),
        ("trace", "wrong", "kept"): (4, 4, 3),
    }


def test_debt_against_the_uninterrupted_run(measured_rows: Path) -> None:
    row = find_row(measured_rows, "uninterrupted", successor="openai:alpha", view="trace")
    assert (row["runs"], row["median events"], row["median uninterrupted events"]) == (1, 10, 8)
    assert (row["median debt in events"], row["median debt in prompt tokens"]) == (2, -1_000)
    assert (row["solved"], row["solved without handoff"]) == (1, 1)


def test_the_summary_has_the_same_figures(measured_rows: Path) -> None:
    view = summarize(load_results([measured_rows]))["views"]["trace"]
    assert (view["reshown_share"], view["reshown_tokens"], view["median_kept"]) == (0.25, 1_250, 1.0)
    assert view["verified_before_finish"] == {"true": 0, "of": 5}
    assert view["preserved"] == {"true": 2, "of": 2}


def test_takeovers_as_one_csv(measured_rows: Path, tmp_path: Path) -> None:
    write_takeovers(tmp_path / "takeovers.csv", collect_report_data(load_results([measured_rows])).takeovers)
    with (tmp_path / "takeovers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 49
    row = next(
        r for r in rows if (r["record_id"], r["view"], r["successor"]) == (POINT, "trace", "openai:alpha")
    )
    assert (row["kept"], row["harm"], row["preserved"], row["debt_vs_uninterrupted"]) == (
        "1.0",
        "0",
        "1",
        "2",
    )
    assert "patch" not in row
