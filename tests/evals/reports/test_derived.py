"""Measures that need other rows, on rows with known truth."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.evals.reports.collection import add_derived_measures
from langgraph_takeover.evals.run.rows import CountedTakeover, PredecessorRow


def row(view: str, resolved: bool, **fields: Any) -> CountedTakeover:
    values = {
        "record_id": "t.first_validation", "view": view, "successor": "m", "repeat": 1, "outcome": "graded",
        "resolved": resolved, "events": 10, "prompt_tokens": 900, "handoff_state": "needs_completion",
    }  # fmt: skip
    return CountedTakeover.model_validate(values | fields)


def make_predecessor(**fields: Any) -> PredecessorRow:
    return PredecessorRow(task_id="t", predecessor="m", outcome="run", **fields)


def derive(
    *rows: CountedTakeover, predecessors: tuple[PredecessorRow, ...] = ()
) -> dict[str, CountedTakeover]:
    return {each.view: each for each in add_derived_measures(rows, predecessors)}


@pytest.mark.parametrize(
    ("baseline", "own", "harm", "rescue"),
    [
        (True, False, True, False),
        (False, True, False, True),
        (True, True, False, False),
        (False, False, False, False),
    ],
)
def test_harm_and_rescue(baseline: bool, own: bool, harm: bool, rescue: bool) -> None:
    found = derive(row("repository", baseline), row("trace", own))
    assert (found["trace"].harm, found["trace"].rescue) == (harm, rescue)
    assert (found["repository"].harm, found["repository"].rescue) == (None, None)


@pytest.mark.parametrize("other", [{"repeat": 2}, {"successor": "n"}, {"record_id": "u.first_validation"}])
def test_harm_needs_the_baseline_of_the_same_point_successor_and_repeat(other: dict[str, Any]) -> None:
    assert derive(row("repository", True, **other), row("trace", False))["trace"].harm is None


def test_a_failed_baseline_is_no_baseline() -> None:
    failed = row("repository", False, outcome="infrastructure_failure")
    assert derive(failed, row("trace", True))["trace"].rescue is None


@pytest.mark.parametrize(
    ("state", "resolved", "preserved"),
    [("already_solved", True, True), ("already_solved", False, False), ("needs_completion", True, None)],
)
def test_preserved(state: str, resolved: bool, preserved: bool | None) -> None:
    assert derive(row("trace", resolved, handoff_state=state))["trace"].preserved is preserved


def test_debt_against_the_uninterrupted_run() -> None:
    remainder = {"events": 6, "prompt_tokens": 1000, "completion_tokens": 50}
    predecessor = make_predecessor(
        remainders={"t.first_validation": remainder, "t.first_source_edit": None}, resolved=True
    )
    found = derive(row("trace", True), predecessors=(predecessor,))["trace"]
    assert (found.debt_vs_uninterrupted, found.token_debt_vs_uninterrupted) == (4, -100)
    assert (found.uninterrupted_events, found.uninterrupted_resolved) == (6, True)


def test_unknown_tokens_leave_the_debt_in_tokens_unknown() -> None:
    predecessor = make_predecessor(
        remainders={"t.first_validation": {"events": 6, "prompt_tokens": None}}, resolved=None
    )
    found = derive(row("trace", True), predecessors=(predecessor,))["trace"]
    assert (found.debt_vs_uninterrupted, found.token_debt_vs_uninterrupted) == (4, None)


def test_a_stopped_predecessor_has_no_remainder() -> None:
    for predecessor in (make_predecessor(remainders={"t.first_validation": None}), make_predecessor()):
        assert derive(row("trace", True), predecessors=(predecessor,))["trace"].debt_vs_uninterrupted is None


def test_reshown_text() -> None:
    found = derive(row("trace", True, shown_chars=400, reshown_chars=101), row("cited", True))
    assert (found["trace"].reshown_share, found["trace"].reshown_tokens) == (101 / 400, 26)
    assert (found["cited"].reshown_share, found["cited"].reshown_tokens) == (None, None)
    assert derive(row("trace", True, shown_chars=0, reshown_chars=0))["trace"].reshown_share is None
