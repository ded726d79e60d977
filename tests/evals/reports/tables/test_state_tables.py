"""Handoff states in both readings, and the failing tests of final patches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.run.results import load_results

from ...conftest import rewrite_rows

Rows = list[dict[str, Any]]
LABELS: dict[str, tuple[int | None, int | None, bool | None]] = {
    "one__one-1.first_source_edit": (2, 0, False),
    "one__one-1.first_validation": (1, 3, True),  # needs_completion, but broken in the second reading
    "two__two-2.first_source_edit": (0, 1, True),
    "two__two-2.first_validation": (0, 0, False),
    "two__two-2.first_post_failure_edit": (None, None, None),
}


def tables(out: Path) -> dict[str, Rows]:
    return {
        table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        for table in build_tables(load_results([out]))
    }


def count_states(rows: Rows, item: str) -> dict[str, int]:
    return {row["category"]: row["count"] for row in rows if row["item"] == item}


def add_failures(row: dict[str, Any]) -> dict[str, Any]:
    if row["outcome"] != "graded":
        return row
    failing, broken = (0, 0) if row["resolved"] else (3, 1 if row["view"] == "repository" else 0)
    return row | {
        "fail_to_pass_failures": failing,
        "pass_to_pass_failures": broken,
        "regressions": broken > 0,
    }


def test_states_in_both_readings(published_rows: Path) -> None:
    names = ("fail_to_pass_failures", "pass_to_pass_failures", "regressions")
    rewrite_rows(
        published_rows,
        lambda row: row | dict(zip(names, LABELS.get(row["record_id"], ()), strict=False)),
        "labels",
    )
    rewrite_rows(published_rows, add_failures)
    found = tables(published_rows)
    authors = {"needs_completion": 3, "behavior_broken": 1, "already_solved": 1}
    assert count_states(found["study"], "handoff states") == authors
    assert count_states(found["study"], "handoff states, any regression is broken") == {
        "needs_completion": 1,
        "behavior_broken": 2,
        "already_solved": 1,
        "unlabelled": 1,
    }
    runs = {
        name: {row["handoff state"]: row["runs"] for row in found[name] if row["successor"] == "openai:beta"}
        for name in ("states", "states_by_regression")
    }
    assert runs["states"] == {
        "needs_completion": 3,
        "already_solved": 1,
        "behavior_broken": 1,
        "unlabelled": 1,
    }
    assert runs["states_by_regression"] == {
        "needs_completion": 1,
        "already_solved": 1,
        "behavior_broken": 2,
        "unlabelled": 2,  # a snapshot without a label, and one whose regressions are unknown
    }
    (row,) = [
        row
        for row in found["states"]
        if list(row.values())[:3] == ["openai:alpha", "behavior_broken", "repository"]
    ]
    assert (row["median failing FAIL_TO_PASS"], row["median failing PASS_TO_PASS"]) == (3, 1)
    assert row["with regressions"] == 1
    assert all("with regressions" not in row for row in found["points"])
