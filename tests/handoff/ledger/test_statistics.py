"""Statistics over real transitions: rates, times, retries and refusals, by agent and view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from langgraph_takeover.handoff.ledger import Ledger
from langgraph_takeover.handoff.ledger.handoffs import HandoffState, change_state
from langgraph_takeover.handoff.ledger.statistics import (
    DEFAULT_VIEW,
    Durations,
    compute_statistics,
)
from langgraph_takeover.handoff.records.envelope import Envelope, Refusal

from .test_handoffs import prepare_handoff

REFUSAL = str(Refusal(kind="checksum", what="record r: damaged", resend="send it again"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def ledger(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Ledger]:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_database"))
    found = Ledger(url)
    yield found
    found.close()


class Clock:
    """The ledger's clock, which moves only when told."""

    def __init__(self, ledger: Ledger) -> None:
        self.now = 1e9
        ledger.now = lambda connection: self.now  # type: ignore[method-assign]


def play(
    ledger: Ledger, clock: Clock, name: str, *steps: tuple[float, HandoffState, str], **fields: Any
) -> None:
    """Prepare a handoff, and make each step after its pause, with its reason."""
    prepare_handoff(ledger, name, thread=f"thread-{name}", **fields)
    for pause_s, state, reason in steps:
        clock.now += pause_s
        change_state(ledger, name, state, by="test", reason=reason, successor=f"next-{name}")


def test_an_empty_ledger_has_no_rates(ledger: Ledger) -> None:
    found = compute_statistics(ledger)
    assert (found.handoffs, found.success_rate, found.time_to_acceptance) == (0, None, None)
    assert (found.refusals, found.by_source, found.by_view) == ({}, {}, {})


def test_every_figure(ledger: Ledger) -> None:
    clock = Clock(ledger)
    working: tuple[tuple[float, HandoffState, str], ...] = ((1, "active", ""), (1, "completed", ""))
    play(ledger, clock, "quick", (5, "offered", ""), (1, "accepted", ""), *working)
    play(
        ledger,
        clock,
        "retried",
        (0, "offered", ""),
        (2, "timed_out", ""),
        (3, "offered", ""),
        (4, "accepted", ""),
        *working,
    )
    play(
        ledger, clock, "refused", (0, "offered", ""), (1, "rejected", REFUSAL), (1, "rejected", f"{REFUSAL}; it cannot"),
        (1, "offered", ""), (1, "rejected", "for no known reason"), (1, "blocked", "no one can"),
        target="reviewer", envelope=Envelope(view="trace"),
    )  # fmt: skip
    play(ledger, clock, "open", (0, "offered", ""), (5, "accepted", ""), source="planner", target="writer")
    found = compute_statistics(ledger)
    assert (found.handoffs, found.open, found.accepted, found.completed, found.retries) == (4, 1, 3, 2, 2)
    assert found.success_rate == pytest.approx(2 / 3)
    assert found.time_to_acceptance == Durations(median_s=5.0, p90_s=8.2, max_s=9.0)
    assert found.refusals == {"checksum": 1, "unknown": 1}, "an attempt to send again is no refusal"
    assert list(found.by_source) == ["writer", "planner"]
    assert list(found.by_target) == ["tester", "reviewer", "writer"]
    assert found.by_source["planner"].success_rate is None
    assert found.by_target["tester"].time_to_acceptance == Durations(median_s=5.0, p90_s=8.2, max_s=9.0)
    reviewer = found.by_target["reviewer"]
    assert (reviewer.success_rate, reviewer.time_to_acceptance, reviewer.retries) == (0.0, None, 1)
    assert {name: each.handoffs for name, each in found.by_view.items()} == {DEFAULT_VIEW: 3, "trace": 1}


def test_one_acceptance_and_a_clock_that_was_set_back(ledger: Ledger) -> None:
    clock = Clock(ledger)
    play(ledger, clock, "h1", (0, "offered", ""), (-100, "accepted", ""))
    assert compute_statistics(ledger).time_to_acceptance == Durations(median_s=0.0, p90_s=0.0, max_s=0.0)
