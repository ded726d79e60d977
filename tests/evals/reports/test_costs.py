"""Costs of a study from hand-made rows: sums, and unknown parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.reports.caveats import list_result_caveats
from langgraph_takeover.evals.reports.collection import format_usd, list_cost_groups, sum_costs
from langgraph_takeover.evals.reports.html.overview import (
    build_key_figures,
    build_view_table,
    describe_settings,
)
from langgraph_takeover.evals.reports.summary import summarize
from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.reports.tables.table_files import to_csv
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.evals.run.rows import CostRow

from ..conftest import RunCommand, rewrite_rows


def row(**fields: Any) -> CostRow:
    values = {
        "outcome": "graded", "llm_calls": 2, "prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 10,
        "uncounted_calls": 0, "cost_usd": 0.25,
    }  # fmt: skip
    return CostRow.model_validate(values | fields)


def test_known_costs_add_up() -> None:
    assert sum_costs([row(), row(), row(outcome="infrastructure_failure", cost_usd=None)]) == (
        *(2, 4, 200, 80, 20, 0, 0.5),
    )
    assert sum_costs([]) == (0, 0, 0, None, 0, 0, 0)


def test_one_unknown_part_makes_a_sum_unknown() -> None:
    silent = row(
        prompt_tokens=None, cached_tokens=None, completion_tokens=None, uncounted_calls=3, cost_usd=None
    )
    assert sum_costs([row(), silent]) == (2, 4, None, None, None, 3, None)
    unpriced = sum_costs([row(), row(cost_usd=None)])
    assert (unpriced.prompt_tokens, unpriced.cost_usd) == (200, None)


def test_a_run_without_a_call_adds_nothing() -> None:
    overflow = row(llm_calls=0, prompt_tokens=None, cached_tokens=None, completion_tokens=None, cost_usd=0.0)
    assert sum_costs([row(), overflow]) == (2, 2, 100, 40, 10, 0, 0.25)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0.0000"), (0.00123, "0.0012"), (12.5, "12.5000"), (1234.5, "1,234.50")],
)
def test_amounts_are_readable(value: float | None, text: str) -> None:
    assert format_usd(value) == text


@pytest.fixture
def priced_rows(published_rows: Path) -> Path:
    """The published rows with costs: every call counted, every price known."""
    for name in ("takeovers", "predecessors", "notes"):
        rewrite_rows(
            published_rows,
            lambda each: (
                each
                | {
                    "prompt_tokens": 1000,
                    "completion_tokens": 10,
                    "llm_calls": 3,
                    "cost_usd": 0.5,
                    "uncounted_calls": 0,
                }
            ),
            name,
        )
    return published_rows


def change_one(out: Path, **fields: Any) -> None:
    """Change the first graded takeover of `openai:alpha` under `trace`."""
    changed: list[int] = []

    def change(each: dict[str, Any]) -> dict[str, Any]:
        wanted = (each["successor"], each["view"], each["outcome"]) == ("openai:alpha", "trace", "graded")
        if not wanted or changed:
            return each
        changed.append(1)
        return each | fields

    rewrite_rows(out, change)


def test_groups_of_a_study(priced_rows: Path) -> None:
    results = load_results([priced_rows])
    groups = list_cost_groups(results, ("repository", "trace"))
    found = {(group.role, group.model, group.view): group.cost for group in groups}
    left_out = {(group.role, group.view): group.left_out for group in groups if group.left_out}
    assert left_out == {("predecessor", ""): 1, ("all", ""): 2}
    (failed,) = [each for each in list_cost_groups(results, ("structured",)) if each.view and each.left_out]
    assert (failed.model, failed.view, failed.left_out) == ("openai:alpha", "structured", 1)
    graded = sum(each.outcome == "graded" for each in results.takeovers)
    written = sum(each.outcome == "written" for each in results.notes)
    runs = sum(each.outcome == "run" for each in results.predecessors)
    assert found["successor", "openai:alpha", "trace"].cost_usd == 0.5 * 7
    assert found["all", "", ""].cost_usd == 0.5 * (graded + written + runs)
    assert found["notes", "openai:first", ""].llm_calls > 0


def test_unknown_costs_and_overflows_are_visible_everywhere(priced_rows: Path) -> None:
    change_one(
        priced_rows,
        **dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd")),
        stop_reason="context_overflow", uncounted_calls=2, condensed=4,
    )  # fmt: skip
    results = load_results([priced_rows])
    summary = summarize(results)
    trace, repository = (summary["views"][view] for view in ("trace", "repository"))
    assert (trace["context_overflows"], trace["uncounted_calls"], trace["cost_usd"]) == (1, 2, None)
    assert (trace["prompt_tokens"], trace["condensed"]) == (None, 1)
    assert repository["cost_usd"] > 0
    assert summary["costs"]["all"]["uncounted_calls"] == 2
    assert summary["costs"]["takeovers"]["cost_usd"] is None
    assert summary["costs"]["predecessors"]["cost_usd"] > 0
    assert (
        summary["infrastructure_failures"]
        == summarize(load_results([priced_rows]))["infrastructure_failures"]
    )
    tables = {table.name: table for table in build_tables(results)}
    columns, rows = tables["effects"].columns, tables["effects"].rows
    cells = [dict(zip(columns, each, strict=True)) for each in rows]
    (changed,) = [each for each in cells if each["context overflow"]]
    assert (changed["successor"], changed["view"], changed["uncounted calls"]) == ("openai:alpha", "trace", 2)
    assert changed["cost, USD"] is None
    assert any("1 takeovers ended with context_overflow" in note for note in tables["effects"].notes)
    assert to_csv(tables["costs"]).splitlines()[-1].startswith('"all"')
    names, page_rows = build_view_table(summary)
    (page_row,) = [dict(zip(names, each, strict=True)) for each in page_rows if each[0] == "trace"]
    assert (page_row["context overflow"], page_row["uncounted calls"], page_row["US dollars"]) == (1, 2, "–")
    (money,) = [figure for figure in build_key_figures(results, summary) if figure.name == "US dollars"]
    assert (money.value, money.basis) == ("–", "2 calls without usage")


@pytest.mark.slow
def test_the_printed_summary_has_columns_for_what_happened(
    priced_rows: Path, tmp_path: Path, run_report: RunCommand
) -> None:
    plain = run_report(priced_rows, "--out", tmp_path / "plain")
    assert "US $" in plain.stdout
    assert "overflow" not in plain.stdout
    assert "US dollars: predecessors 2.0000" in plain.stdout
    change_one(
        priced_rows, stop_reason="context_overflow", uncounted_calls=1, prompt_tokens=None, cost_usd=None
    )
    shown = run_report(priced_rows, "--out", tmp_path / "changed").stdout
    assert "overflow" in shown
    assert "Uncounted calls: 1." in shown


def test_notes_with_an_uncounted_call_have_no_partial_sum(published_rows: Path) -> None:
    def change(each: dict[str, Any]) -> dict[str, Any]:
        if each["record_id"] != "one__one-1.first_validation":
            return each
        return each | {
            "usage": each["usage"] | {"summary": {"prompt_tokens": None, "completion_tokens": None}}
        }

    rewrite_rows(published_rows, change, "notes")
    results = load_results([published_rows])
    notes = summarize(results)["notes"]
    assert notes["summary_prompt_tokens"] is None
    assert notes["structured_prompt_tokens"] > 0
    (debt,) = [table for table in build_tables(results) if table.name == "debt"]
    by_view = {each[1]: dict(zip(debt.columns, each, strict=True)) for each in debt.rows}
    assert by_view["notes: summary"]["prompt tokens of notes"] is None
    assert by_view["notes: structured"]["prompt tokens of notes"] > 0
    assert by_view["summary"]["takeovers to break even"] is None


def test_caveats_of_models(published_rows: Path) -> None:
    config = json.loads((published_rows / "config.json").read_text())
    entry = {"model": "m", "base_url": "http://127.0.0.1:1/v1", "temperature": 0.2}
    (published_rows / "config.json").write_text(json.dumps(config | {"models": {"mine": entry}}))
    cure = "(raise max_output_tokens of x in --models)"
    rewrite_rows(
        published_rows, lambda each: each | {"empty_replies": 2, "detail": f"4 of 4; cut off {cure}"}
    )
    rewrite_rows(published_rows, lambda each: each | {"detail": "1 of 2 replies had no text"}, "notes")
    results = load_results([published_rows])
    caveats = list_result_caveats(results)
    assert any(
        f"replies of openai:alpha as successor had neither text nor action {cure}." in line
        for line in caveats
    )
    assert any("notes lack text: 1 of 2 replies had no text." in line for line in caveats)
    shown = dict(describe_settings(results.sources[0].config))
    assert shown["model mine"] == "model: m, base_url: http://127.0.0.1:1/v1, temperature: 0.2"
