"""The table of the notes' quality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.run.results import load_results

from ...conftest import rewrite_rows

CHANGES: dict[str, dict[str, Any]] = {
    "one__one-1.first_source_edit": {"malformed": True, "retried": "malformed", "truncated": ["structured"]},
    "one__one-1.first_validation": {"contradicted": 2, "retried": "contradicted", "truncated": []},
    "two__two-2.first_source_edit": {"missing_paths": 1, "truncated": ["summary", "structured"]},
    "two__two-2.first_validation": {"detail": "1 of 2 replies had no text", "truncated": []},
    "two__two-2.first_post_failure_edit": {"outcome": "infrastructure_failure"},
    "three__three-3.first_source_edit": {},
}


def quality_rows(out: Path) -> list[dict[str, Any]]:
    (table,) = [table for table in build_tables(load_results([out])) if table.name == "notes"]
    assert table.number == 14
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_the_quality_of_notes_by_model_and_predecessor(published_rows: Path) -> None:
    rewrite_rows(published_rows, lambda row: row | CHANGES[row["record_id"]], "notes")
    first, second = quality_rows(published_rows)
    assert list(first.values())[:2] == ["openai:first", "openai:first"]
    assert (first["written"], first["failed"], first["malformed"], first["retried"]) == (4, 1, 1, 2)
    assert (first["without text"], first["cut off: summary"], first["cut off: structured"]) == (1, 1, 2)
    assert (first["with a contradiction"], first["stated fields"], first["contradicted"]) == (1, 12, 2)
    assert (first["statements"], first["missing paths"]) == (28, 1)
    assert (first["prompt tokens"], first["completion tokens"]) == (12_000, 1200)
    assert first["cost, USD"] is None  # the price is unknown
    assert list(second.values())[:3] == ["openai:second", "openai:second", 1]
    assert second["cut off: summary"] == 0


def test_a_run_without_notes_has_an_empty_table(published_rows: Path) -> None:
    (published_rows / "notes.jsonl").unlink()
    assert quality_rows(published_rows) == []
