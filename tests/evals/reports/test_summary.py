"""The summary at the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_takeover.evals.reports.summary import summarize
from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.run.results import load_results

from ..conftest import RunCommand, rewrite_rows


def test_deltas_are_those_of_table_2(published_rows: Path) -> None:
    rewrite_rows(published_rows, lambda row: row if row["successor"] == "openai:alpha" else None)
    results = load_results([published_rows])
    effects = build_tables(results)[1]
    views = summarize(results)["views"]
    for cells in effects.rows:
        row = dict(zip(effects.columns, cells, strict=True))
        for field, column in (
            ("median_event_delta", "Δ median events %"),
            ("median_prompt_token_delta", "Δ median prompt tokens %"),
        ):
            delta = views[row["view"]][field]
            assert row[column] == (None if delta is None else pytest.approx(100 * delta))


@pytest.mark.slow
def test_deltas_of_several_successors_are_over_all_pairs(
    published_rows: Path, run_report: RunCommand
) -> None:
    view = summarize(load_results([published_rows]))["views"]["trace"]
    # Medians of the 11 pairs at common points: 30 events and 40.
    assert (view["matched"], view["median_event_delta"]) == (11, pytest.approx(-0.25))
    done = " ".join(run_report(published_rows).stdout.split())
    assert "Δ events: change of medians over all pairs of all 2 successors, as in table 2" in done


def test_without_pairs_there_is_no_delta(published_rows: Path, run_report: RunCommand) -> None:
    rewrite_rows(published_rows, lambda row: row if row["view"] == "trace" else None)
    view = summarize(load_results([published_rows]))["views"]["trace"]
    assert (view["solved_delta"], view["median_event_delta"], view["matched"]) == (None, None, 0)
    done = run_report(published_rows)
    (line,) = [line for line in done.stdout.splitlines() if line.strip("│ ").startswith("trace")]
    assert [cell.strip() for cell in line.strip("│").split("│")][-2:] == ["–", "–"]
