"""A person's decision on a handoff survives any interruption."""

from __future__ import annotations

from typing import Any

import pytest

from langgraph_takeover.errors import NotWaitingError, WaitingError
from langgraph_takeover.handoff.records.record import RecordStore

from .conftest import DONE, EDIT, RunHarness, scripted_model

SETTINGS: dict[str, Any] = {"policy": "review", "points": ("first_source_edit",)}
NOTED = "Mind the tests."


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_decision_is_requested_once(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    model = scripted_model(EDIT, DONE)
    bench.run(model, **SETTINGS)
    add = RecordStore.add_review

    def kill_run(*args: Any) -> None:
        if moment == "after":
            add(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RecordStore, "add_review", kill_run)
        with pytest.raises(Killed):
            bench.resume(model, {"decision": "approve", "note": NOTED}, **SETTINGS)
    again = bench.resume(model, **SETTINGS)
    assert (again.waiting, again.stop_reason) == (None, "handoff")
    review = bench.store.load("run.first_source_edit").review
    assert review is not None
    assert review.note == NOTED


def test_an_earlier_checkpoint_allows_another_decision(bench: RunHarness) -> None:
    model = scripted_model(EDIT, DONE)
    bench.run(model, **SETTINGS)
    (waiting,) = [each for each in bench.home.history("thread") if each.next == ("interruption",)]
    assert bench.resume(model, {"decision": "approve"}, **SETTINGS).stop_reason == "handoff"
    with pytest.raises(NotWaitingError, match="already has an answer"):
        bench.resume(model, {"decision": "refuse"}, checkpoint=waiting.checkpoint, **SETTINGS)
    outcome = bench.resume(model, checkpoint=waiting.parent, **SETTINGS)
    assert outcome.waiting is not None
    assert bench.resume(model, {"decision": "refuse"}, **SETTINGS).stop_reason == "finished"


def test_a_history_is_not_pruned_before_the_decision(bench: RunHarness) -> None:
    model = scripted_model(EDIT, DONE)
    bench.run(model, **SETTINGS)
    with (
        bench.open_run(model, **SETTINGS) as agent_run,
        pytest.raises(WaitingError, match="waits for a person"),
    ):
        agent_run.prune()
    assert bench.resume(model, {"decision": "approve"}, **SETTINGS).stop_reason == "handoff"
    with bench.open_run(model, **SETTINGS) as agent_run:
        agent_run.prune()
    assert len(bench.home.history("thread")) == 1
