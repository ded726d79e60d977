"""What `hand_over`, `deliver` and `roll_back` refuse is an exported error of one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from langgraph_takeover import errors, open_home
from langgraph_takeover.graph.delivery.delivery import deliver
from langgraph_takeover.graph.delivery.offers import hand_over
from langgraph_takeover.graph.delivery.recovery import roll_back
from langgraph_takeover.handoff.ledger.handoffs import Handoff
from langgraph_takeover.handoff.records.envelope import Envelope

from ..conftest import DONE, EDIT, RunHarness, scripted_model

RECORD = "run.first_source_edit"
LONG = "x" * 10_000


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunHarness]:
    """One for all tests, because refused calls change nothing."""
    directory = tmp_path_factory.mktemp("errors")
    with open_home(directory / "home") as home:
        yield RunHarness(directory, home, "process")


@pytest.fixture(scope="module")
def offered(bench: RunHarness) -> Handoff:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    return hand_over(bench.home, RECORD, target="tester", source="writer", idempotency_key="once")


def refuse(call: Callable[[], Any]) -> str:
    """The name of the error that the call raises."""
    with pytest.raises(errors.TakeoverError) as caught:
        call()
    name = type(caught.value).__name__
    assert getattr(errors, name, None) is type(caught.value), f"{name} is not exported"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    return name


@pytest.mark.parametrize(
    ("record", "options", "error"),
    [
        ("unknown", {}, "RecordError"),
        ("../run", {}, "RecordError"),
        (LONG, {}, "RecordError"),
        (RECORD, {"target": None}, "HandoffError"),
        (RECORD, {"target": "writer"}, "HandoffError"),
        (RECORD, {"target": "a\nb"}, "ThreadNameError"),
        (RECORD, {"target": LONG}, "ThreadNameError"),
        (RECORD, {"source": LONG}, "ThreadNameError"),
        (RECORD, {"agents": ("writer",)}, "UnknownAgentError"),
        (RECORD, {"envelope": Envelope(view="all")}, "UnknownViewError"),
        (RECORD, {"idempotency_key": LONG}, "ThreadNameError"),
        (RECORD, {"idempotency_key": "a\nb"}, "ThreadNameError"),
        (RECORD, {"idempotency_key": "once", "target": "other"}, "KeyReusedError"),
        (RECORD, {"confirm_timeout_s": 0}, "SettingsError"),
        (RECORD, {"confirm_timeout_s": float("nan")}, "SettingsError"),
    ],
)
def test_hand_over(
    bench: RunHarness, offered: Handoff, record: str, options: dict[str, Any], error: str
) -> None:
    settings = {"target": "tester", "source": "writer"} | options
    assert refuse(lambda: hand_over(bench.home, record, **settings)) == error


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"handoff_id": "unknown"}, "HandoffNotFoundError"),
        ({"handoff_id": LONG}, "HandoffNotFoundError"),
        ({"answer": {"decision": "retry"}}, "NotWaitingError"),
        ({"max_steps": 0}, "SettingsError"),
        ({"max_stepz": 1}, "SettingsError"),
        ({"model": "gpt-5"}, "SettingsError"),
        ({"sandbox": "host"}, "SettingsError"),
        ({"delivery_policy": {"attempts": 2}}, "SettingsError"),
        ({"supervisor": "gpt-5"}, "SettingsError"),
    ],
)
def test_deliver(bench: RunHarness, offered: Handoff, options: dict[str, Any], error: str) -> None:
    settings = {"agent_name": "tester", "model": scripted_model(DONE), "sandbox": bench.spec} | options
    found = settings.pop("handoff_id", offered.id)
    assert refuse(lambda: deliver(bench.home, found, **settings)) == error


def test_roll_back(bench: RunHarness, offered: Handoff) -> None:
    def roll(handoff_id: str, **options: Any) -> str:
        return refuse(
            lambda: roll_back(bench.home, handoff_id, **{"by": "me", "sandbox": bench.spec, **options})
        )

    assert roll("unknown") == "HandoffNotFoundError"
    assert roll(offered.id, sandbox="host") == "SettingsError"
    record = bench.store.directory(RECORD)
    record.rename(away := record.with_name("away"))
    try:
        assert roll(offered.id) == "RollbackError"
    finally:
        away.rename(record)
