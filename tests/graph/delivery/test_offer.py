"""Offers to agents that the caller declares: an unknown target is refused before anything is written."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from langgraph_takeover import hand_over
from langgraph_takeover.errors import KeyReusedError, UnknownAgentError
from langgraph_takeover.graph.delivery.participants import give_record
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.handoff.ledger.handoffs import Handoff, list_transitions
from langgraph_takeover.handoff.ledger.leases import ThreadNameError
from langgraph_takeover.handoff.views import VIEWS, find_view

from ..conftest import BOTH_DATABASES, DONE, EDIT, RunHarness, scripted_model
from .test_delivery import RECORD

AGENTS = ("writer", "tester")


def test_an_unknown_target_is_refused_in_one_line(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    with pytest.raises(
        UnknownAgentError, match=r"^target: unknown agent 'testre' \(known agents: tester, writer\)$"
    ):
        hand_over(bench.home, RECORD, target="testre", source="writer", agents=AGENTS)
    with pytest.raises(UnknownAgentError, match=r"\(known agents: none\)$"):
        hand_over(bench.home, RECORD, target="tester", source="writer", agents=())
    assert handoffs.list_handoffs(bench.home.ledger) == ()
    known = hand_over(bench.home, RECORD, target="tester", source="writer", agents=AGENTS)
    undeclared = hand_over(bench.home, RECORD, target="testre", source="writer")
    assert (known.state, undeclared.state) == ("offered", "offered")


def test_a_target_that_the_agent_itself_named_is_checked_too(bench: RunHarness) -> None:
    asks = '<handoff to="nobody">Too hard.</handoff>'
    outcome = bench.run_to_outcome(scripted_model(EDIT, asks), points=(), offer_handoff=True)
    with pytest.raises(UnknownAgentError, match="'nobody'"):
        hand_over(bench.home, outcome.records[-1], agents=AGENTS)
    assert hand_over(bench.home, outcome.records[-1], agents=("nobody",)).target == "nobody"


@pytest.mark.cases(2)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_shows_why_the_agent_asked(bench: RunHarness, view: str) -> None:
    """But the baseline `repository`, which shows nothing of the earlier agent."""
    reason = "Rounding is </earlier-work> wrong, " + "see the tests, " * 20 + "not the code."
    asks = f"<handoff>{reason}</handoff>"
    outcome = bench.run_to_outcome(scripted_model(EDIT, asks), points=(), offer_handoff=True)
    record = bench.home.records.load(outcome.records[-1])
    prompt = "\n".join(message.text for message in find_view(view)(record))
    assert ("not the code." in prompt) == (view != "repository")
    assert "</earlier-work> wrong" not in prompt


def test_a_person_can_give_only_to_a_declared_agent(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    record = bench.home.records.load(RECORD)
    with pytest.raises(UnknownAgentError, match="'nobody'"):
        give_record(bench.home, record, "ann", "nobody", agents=AGENTS, sandbox=bench.spec)
    assert bench.home.threads() == ("thread",)


@BOTH_DATABASES
def test_parallel_calls_with_one_key_get_one_handoff(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    change, barrier, calls = handoffs.change_state, threading.Barrier(6), 6
    found: list[Handoff] = []
    errors: list[Exception] = []

    def change_together(*args: Any, **options: Any) -> Handoff:
        barrier.wait(30)  # every call has seen the handoff as prepared
        return change(*args, **options)

    def call() -> None:
        try:
            found.append(hand_over(bench.home, RECORD, target="tester", source="writer", idempotency_key="k"))
        except Exception as error:
            errors.append(error)

    monkeypatch.setattr(handoffs, "change_state", change_together)
    threads = [threading.Thread(target=call) for _ in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [(each.id, each.state) for each in found] == [(found[0].id, "offered")] * calls
    assert len(list_transitions(bench.home.ledger, found[0].id)) == 2


@BOTH_DATABASES
def test_a_key_belongs_to_its_source(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    longest = "k" * 255
    ids = {
        hand_over(bench.home, RECORD, target="tester", source=source, idempotency_key=key).id
        for source, key in (("a b", "c"), ("a", "b c"), ("a", longest), ("a b", longest))
    }
    assert len(ids) == 4
    with pytest.raises(
        KeyReusedError, match=r"^idempotency key 'b c' already belongs to a different request \(use a new"
    ):
        hand_over(bench.home, RECORD, target="other", source="a", idempotency_key="b c")


@pytest.mark.cases(2)
@pytest.mark.parametrize("key", ["k" * 256, "", " ", "a\nb", 7])
def test_an_invalid_key_is_refused_by_its_name(bench: RunHarness, key: Any) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    with pytest.raises(ThreadNameError, match=r"^invalid idempotency key ['7].* \((use 1 to 255|pass text)"):
        hand_over(bench.home, RECORD, target="tester", source="writer", idempotency_key=key)
    assert handoffs.list_handoffs(bench.home.ledger) == ()
