"""Offers to agents that the caller declares: an unknown target is refused before anything is written."""

from __future__ import annotations

import pytest

from langgraph_takeover import hand_over
from langgraph_takeover.errors import UnknownAgentError
from langgraph_takeover.graph.delivery.human_handoff import give_record
from langgraph_takeover.handoff.ledger import handoffs

from ..conftest import DONE, EDIT, RunHarness, scripted_model
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


def test_a_person_can_give_only_to_a_declared_agent(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    record = bench.home.records.load(RECORD)
    with pytest.raises(UnknownAgentError, match="'nobody'"):
        give_record(bench.home, record, "ann", "nobody", agents=AGENTS, sandbox=bench.spec)
    assert bench.home.threads() == ("thread",)
