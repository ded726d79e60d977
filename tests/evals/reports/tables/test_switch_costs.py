"""The cost of a switch from rows written by hand: pairs, medians, accounts, tables and the heat map."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.reports.collection import ReportData, collect_report_data
from langgraph_takeover.evals.reports.plots import debt_figures, style
from langgraph_takeover.evals.reports.plots.style import EmptyPlotError
from langgraph_takeover.evals.reports.tables.study_tables import build_tables
from langgraph_takeover.evals.reports.tables.switch_costs import (
    SwitchCost,
    build_agent_tables,
    find_best_successors,
    label_agents,
    measure_switches,
)
from langgraph_takeover.evals.run.results import Results, load_results
from langgraph_takeover.evals.run.settings.config import RunConfig

CODEX, CLAUDE = "codex:builtin:oracle", "claude-code:builtin:oracle"
VIEWS = ("repository", "transcript", "continuation")
MakeResults = Callable[..., Results]


def takeover(
    record: str, predecessor: str, successor: str, view: str, events: int, **fields: Any
) -> dict[str, Any]:
    return {
        "task_id": "one__one-1",
        "record_id": f"{record}.first_source_edit",
        "view": view,
        "successor": successor,
        "repeat": 1,
        "trace": f"{record}.{view}.{successor.partition(':')[0]}",
        "point": "first_source_edit",
        "predecessor": predecessor,
        "digest": record,
        "resolved": True,
        "outcome": "graded",
        "stop_reason": "finished",
        "detail": "",
        "events": events,
        "steps": events // 2,
        "llm_calls": events // 2,
        "prompt_tokens": 100 * events,
        "completion_tokens": events,
        "seconds": 1.0,
        "first_prompt_chars": 400,
        "first_prompt_tokens": 100,
        **dict.fromkeys(("recalls", "recall_events", "recall_tokens"), 0),
        **dict.fromkeys(("rediscovery_events", "verification_events"), 0),
        "rediscovery": {"read": 0, "search": 0, "command": 0},
        "patch": "",
        "agent": successor.partition(":")[0],
        "agent_version": "1.0.0",
    } | fields


ROWS = [
    takeover("a", CODEX, CODEX, "continuation", 10),
    takeover("b", CODEX, CODEX, "continuation", 20),
    takeover("c", CODEX, CODEX, "transcript", 12, session_account={"converted": 8, "dropped: left out": 2}),
    takeover("a", CODEX, CLAUDE, "transcript", 13, session_account={"converted": 6, "shortened: long": 1}),
    takeover("b", CODEX, CLAUDE, "transcript", 21, resolved=False, completion_tokens=None),
    takeover("a", CODEX, CLAUDE, "repository", 30),
    takeover("a", CODEX, CODEX, "transcript", 9),
    takeover("d", CLAUDE, CLAUDE, "continuation", 5, outcome="infrastructure_failure"),
    takeover("d", CLAUDE, CODEX, "transcript", 5),
]


@pytest.fixture
def make_results(tmp_path: Path) -> MakeResults:
    def make(rows: list[dict[str, Any]], views: tuple[str, ...] = VIEWS, **settings: Any) -> Results:
        agents = settings.pop("agents", (CODEX, CLAUDE))
        known = {"run_id": "a", "views": views, "tasks": "t.jsonl", "sandbox": "host"}
        RunConfig(predecessors=agents, successors=agents, **known, **settings).save(tmp_path)
        (tmp_path / "takeovers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_results([tmp_path])

    return make


def find(data: ReportData, *key: str) -> SwitchCost:
    (cost,) = [each for each in measure_switches(data) if each[:3] == key]
    return cost


def test_takeovers_are_paired_with_the_continuation_of_the_same_point(make_results: MakeResults) -> None:
    data = collect_report_data(make_results(ROWS))
    cost = find(data, CODEX, CLAUDE, "transcript")
    assert (cost.takeovers, cost.solved, cost.pairs) == (2, 1, 2)
    assert cost.extra_events == 2.0  # 13 - 10 and 21 - 20
    assert cost.extra_tokens == 303.0  # only point a: the other's tokens were not counted
    assert cost.events == {"converted": 6, "shortened": 1, "dropped": 0}
    # Point c has no continuation.
    own = find(data, CODEX, CODEX, "transcript")
    assert (own.takeovers, own.pairs, own.left_out, own.extra_events) == (2, 1, 2, -1.0)
    assert (own.solved, own.solved_by_continuation) == (1, 1)
    assert own.events == {"converted": 8, "shortened": 0, "dropped": 2}
    assert find(data, CODEX, CLAUDE, "repository").events is None
    # A continuation that failed is no baseline, and a continuation is not compared with itself.
    unpaired = find(data, CLAUDE, CODEX, "transcript")
    assert (unpaired.pairs, unpaired.solved_share, unpaired.extra_events) == (0, None, None)
    assert find(data, CODEX, CODEX, "continuation").extra_events is None


def test_the_best_successor_solves_most_and_then_needs_least(make_results: MakeResults) -> None:
    data = collect_report_data(make_results(ROWS))
    best = find_best_successors(measure_switches(data))
    assert best == {(CODEX, CODEX, "transcript"), (CODEX, CLAUDE, "repository")}
    tied = [*ROWS, takeover("a", CODEX, CODEX, "repository", 30)]
    best = find_best_successors(measure_switches(collect_report_data(make_results(tied))))
    both = {(CODEX, CODEX, "repository"), (CODEX, CLAUDE, "repository")}
    assert {key for key in best if key[2] == "repository"} == both


def test_the_tables(make_results: MakeResults) -> None:
    results = make_results(ROWS)
    agents, points = build_agent_tables(results, collect_report_data(results))
    assert (agents.number, agents.name, points.number, points.name) == (18, "agents", 19, "agent_points")
    cells = {row[:3]: dict(zip(agents.columns, row, strict=True)) for row in agents.rows}
    assert cells[CODEX, CLAUDE, "transcript"] == {
        "predecessor": CODEX,
        "successor": CLAUDE,
        "view": "transcript",
        "takeovers": 2,
        "left out": 0,
        "pairs": 2,
        "solved %": 50.0,
        "continuation solved %": 100.0,
        "Δ events": 2.0,
        "Δ tokens": 303.0,
        "first prompt": 100.0,
        "events converted": 6,
        "events shortened": 1,
        "events dropped": 0,
    }
    assert {row[0] for row in points.rows} == {"first_source_edit"}
    assert [row[1:11] for row in points.rows] == [row[:10] for row in agents.rows]
    written = {table.name: table for table in build_tables(results)}
    assert written["agents"].rows == agents.rows
    assert any(note.startswith("No LLM: ") for note in written["agents"].notes)


def test_runs_without_continuations_have_no_such_table(make_results: MakeResults) -> None:
    rows = [row for row in ROWS if row["view"] != "continuation"]
    results = make_results(rows, views=("repository", "transcript"))
    assert build_agent_tables(results, collect_report_data(results)) == ()


def test_empty_tables_say_why(make_results: MakeResults) -> None:
    nothing = make_results([])
    for table in build_agent_tables(nothing, collect_report_data(nothing)):
        assert table.rows == ()
        assert table.notes[0] == "No graded takeovers yet."
    rows = [row for row in ROWS if row["view"] != "continuation"]
    unpaired = make_results(rows)
    for table in build_agent_tables(unpaired, collect_report_data(unpaired)):
        assert len(table.rows) == 4
        assert table.notes[0] == "No graded continuation yet, so differences are unknown."


def test_the_caption_says_that_llms_ran(make_results: MakeResults) -> None:
    names = {CODEX: "codex:openai:a", CLAUDE: "openai:a"}
    graded = [row for row in ROWS if row["outcome"] == "graded"]
    rows = [row | {name: names[row[name]] for name in ("predecessor", "successor")} for row in graded]
    results = make_results(rows, agents=tuple(names.values()))
    table = {each.name: each for each in build_tables(results)}["agents"]
    assert "Every agent worked with an LLM." in table.notes
    assert not any("No LLM" in note for note in table.notes)


def test_the_heat_map_shows_every_pair(make_results: MakeResults) -> None:
    rows = [row for row in ROWS if row["outcome"] == "graded"]
    data = collect_report_data(make_results(rows))
    with style.plot_style():
        figure = debt_figures.draw_agents(data)
    panels = {axis.get_xlabel(): axis for axis in figure.axes}
    assert list(panels) == ["successor, repository", "successor, transcript"]
    axis = panels["successor, transcript"]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["codex", "claude-code"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["codex"]
    assert [text.get_text() for text in axis.texts] == ["−1\nn 1, 100 %\n2 left out", "+2\nn 2, 50 %"]
    assert len(axis.patches) == 1
    assert axis.patches[0].get_x() == pytest.approx(-0.47)
    missing, known = panels["successor, repository"].texts
    assert (missing.get_text(), known.get_text()) == ("–", "+20\nn 1, 100 %\n1 left out")


def test_a_heat_map_without_pairs_says_why(make_results: MakeResults) -> None:
    without = [row for row in ROWS if row["view"] != "continuation"]
    with pytest.raises(EmptyPlotError, match=r"no continuation \(--study agents\)"):
        debt_figures.draw_agents(collect_report_data(make_results(without)))
    alone = [row for row in ROWS if row["view"] == "continuation"]
    with pytest.raises(EmptyPlotError, match="no takeover at a point with a continuation"):
        debt_figures.draw_agents(collect_report_data(make_results(alone)))


def test_labels_are_short_where_one_model_works_for_all() -> None:
    assert label_agents([CODEX, "builtin:oracle"]) == {CODEX: "codex", "builtin:oracle": "built-in"}
    assert label_agents([CODEX, "openai:a"]) == {CODEX: CODEX, "openai:a": "openai:a"}
