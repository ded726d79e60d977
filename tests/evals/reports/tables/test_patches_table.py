"""The table of final patches, and the caveat about verdicts that depend on scratch files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.reports.caveats import list_result_caveats
from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.run.results import load_results

from ...conftest import RunCommand, rewrite_rows

CLEAN: dict[str, Any] = {"scratch_files": [], "test_files": [], "cleaned_resolved": None}
SCRATCH = CLEAN | {"scratch_files": ["reproduce.py"]}
PATCHES = {
    "one__one-1.first_source_edit": SCRATCH | {"cleaned_resolved": True, "test_files": ["tests/test_a.py"]},
    "one__one-1.first_validation": SCRATCH | {"cleaned_resolved": False},
    "two__two-2.first_source_edit": SCRATCH,  # not graded again
    "two__two-2.first_post_failure_edit": SCRATCH | {"cleaned_resolved": True},
}


def patch_rows(out: Path) -> list[dict[str, Any]]:
    (table,) = [table for table in build_tables(load_results([out])) if table.name == "patches"]
    assert table.number == 16
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def caveats(out: Path) -> list[str]:
    return [line for line in list_result_caveats(load_results([out])) if "scratch" in line]


def add_patches(row: dict[str, Any]) -> dict[str, Any]:
    if row["outcome"] != "graded":
        return row
    is_traced = (row["successor"], row["view"], row["repeat"]) == ("openai:alpha", "trace", 1)
    clean = CLEAN | {"cleaned_resolved": row["resolved"]}
    own = PATCHES.get(row["record_id"], clean) if is_traced else clean
    return row | {"patch_files": 2, "patch_lines": row["events"]} | own


@pytest.mark.slow
def test_final_patches_with_both_verdicts(published_rows: Path, run_report: RunCommand) -> None:
    rewrite_rows(published_rows, add_patches)
    rows = {(row["successor"], row["view"]): row for row in patch_rows(published_rows)}
    assert len(rows) == 8
    trace = rows["openai:alpha", "trace"]
    # At the common points: another view failed at `three__three-3`, and only two views have a second repeat.
    assert (trace["runs"], trace["median patch lines"], trace["median patch files"]) == (5, 15, 2)
    assert (trace["with scratch files"], trace["with changed tests"], trace["solved"]) == (4, 1, 4)
    assert (trace["cleaned verdicts"], trace["solved cleaned"], trace["verdicts differ"]) == (4, 3, 2)
    assert (trace["solved only as submitted"], trace["solved only cleaned"]) == (1, 1)
    assert rows["openai:beta", "trace"]["verdicts differ"] == 0
    (caveat,) = caveats(published_rows)
    assert "verdict depends on scratch or build files: 2 (table 16)" in caveat
    assert "one__one-1.first_validation trace openai:alpha 1 (solved only as submitted)" in caveat
    assert "two__two-2.first_post_failure_edit trace openai:alpha 1 (solved only cleaned)" in caveat
    assert "verdict depends on scratch or build files: 2" in " ".join(
        run_report(published_rows).stdout.split()
    )


def test_equal_verdicts_need_no_caveat(published_rows: Path) -> None:
    rewrite_rows(
        published_rows,
        lambda row: (
            row | SCRATCH | {"cleaned_resolved": row["resolved"]} if row["outcome"] == "graded" else row
        ),
    )
    assert caveats(published_rows) == []
    assert {row["verdicts differ"] for row in patch_rows(published_rows)} == {0}


def test_rows_of_earlier_versions_have_no_cleaned_verdict(published_rows: Path) -> None:
    assert caveats(published_rows) == []
    trace = patch_rows(published_rows)[1]
    assert (trace["runs"], trace["left out"], trace["solved"]) == (5, 2, 4)
    assert set(list(trace.values())[4:8] + list(trace.values())[9:]) == {None}
