"""The deadline of a confirmation: enforced by `deliver`, by the ledger, and for a person who comes late."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from langgraph_takeover.errors import IllegalTransitionError
from langgraph_takeover.graph.delivery.offers import hand_over
from langgraph_takeover.graph.delivery.participants import load_record_to_take, take_record
from langgraph_takeover.graph.delivery.recovery import find_fresh_record
from langgraph_takeover.graph.usage_errors import HandoffError
from langgraph_takeover.handoff.ledger import acquire, handoffs
from langgraph_takeover.handoff.ledger.handoffs import list_transitions
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.record import RECORD_FILE
from langgraph_takeover.nodes.deliver import DeliveryPolicy

from ...chat_server import ChatServer
from ..conftest import BOTH_DATABASES, DONE, EDIT, FIX, RunHarness, scripted_model
from .test_delivery import RECORD, UNDERSTOOD, deliver_record, offer_first_record, states

pytestmark = BOTH_DATABASES
CONFIRM_S = 2.0
SLOW_S = 6.0
HURRIED = DeliveryPolicy(attempts=2, rounds=2, confirm_timeout_s=CONFIRM_S, initial_pause_s=0, max_pause_s=0)


@pytest.fixture
def model(chat_server: ChatServer) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=chat_server.url, api_key="none", max_retries=0)  # type: ignore[arg-type]


def answer_after(seconds: Callable[[int], float]) -> Callable[[dict[str, Any]], tuple[int, bytes]]:
    """Confirm after a pause that depends on the number of earlier questions; then fix the fault and finish."""
    asked: list[float] = []

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        if load_prompt("confirm", "nodes").strip()[-40:] in request["messages"][-1]["content"]:
            asked.append(time.time())
            time.sleep(seconds(len(asked) - 1))
            return ChatServer.reply(UNDERSTOOD)
        actions = sum(message["role"] == "assistant" for message in request["messages"]) - 1
        return ChatServer.reply((FIX, DONE)[actions])

    return answer


@pytest.mark.slow
def test_a_slow_endpoint_is_abandoned_at_the_deadline(
    bench: RunHarness, chat_server: ChatServer, model: ChatOpenAI
) -> None:
    found = offer_first_record(bench)
    chat_server.answer = answer_after(lambda _: SLOW_S)
    started = time.monotonic()
    done = deliver_record(bench, found, model, delivery_policy=HURRIED)
    seconds = time.monotonic() - started
    assert done.handoff.state == "timed_out"
    assert done.waiting is not None
    assert "the deadline passed" in done.waiting.problem
    assert states(bench.home, found) == ["prepared", "offered", "timed_out", "offered", "timed_out"]
    assert 2 * CONFIRM_S - 0.5 < seconds < 2 * CONFIRM_S + 3, "each attempt ends at its deadline"
    second_offer, second_end = list_transitions(bench.home.ledger, found.id)[-2:]
    assert second_end.at - second_offer.at == pytest.approx(CONFIRM_S, abs=1.0)
    time.sleep(max(SLOW_S + 1 - (time.monotonic() - started), 0))
    assert handoffs.load(bench.home.ledger, found.id) == done.handoff, "a late answer changes nothing"
    acquire(bench.home.ledger, "thread").release()
    assert bench.resume(scripted_model("", DONE)).stop_reason == "finished", "the source still has its work"


@pytest.mark.slow
def test_the_next_attempt_can_be_fast_enough(
    bench: RunHarness, chat_server: ChatServer, model: ChatOpenAI
) -> None:
    found = offer_first_record(bench)
    chat_server.answer = answer_after(lambda earlier: 0.2 if earlier else SLOW_S)
    done = deliver_record(bench, found, model, delivery_policy=HURRIED)
    assert done.handoff.state == "completed"
    assert done.handoff.successor == f"{found.id}.2"
    assert done.outcome is not None
    assert "n * 2" in done.outcome.patch
    assert states(bench.home, found)[1:] == [
        "offered", "timed_out", "offered", "accepted", "active", "completed",
    ]  # fmt: skip


def test_a_fast_endpoint_confirms_in_time(
    bench: RunHarness, chat_server: ChatServer, model: ChatOpenAI
) -> None:
    found = offer_first_record(bench)
    chat_server.answer = answer_after(lambda _: 0.2)
    done = deliver_record(bench, found, model, delivery_policy=HURRIED)
    assert states(bench.home, found) == ["prepared", "offered", "accepted", "active", "completed"]
    assert done.waiting is None


def test_a_call_that_cannot_be_abandoned_is_refused_by_the_ledger(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = offer_first_record(bench)
    monkeypatch.setattr(handoffs, "compute_remaining_s", lambda *_: 60.0)
    policy = HURRIED.model_copy(update={"confirm_timeout_s": 0.5, "attempts": 1})
    done = deliver_record(bench, found, scripted_model(UNDERSTOOD, DONE, delay_s=1.0), delivery_policy=policy)
    assert states(bench.home, found) == ["prepared", "offered", "timed_out"]
    assert done.waiting is not None
    assert done.handoff.understanding is None


def test_an_expired_offer_is_made_again_before_the_model_is_asked(bench: RunHarness) -> None:
    found = offer_first_record(bench, confirm_timeout_s=0.01)
    time.sleep(0.05)
    with pytest.raises(IllegalTransitionError, match="was confirmed after its deadline"):
        handoffs.change_state(bench.home.ledger, found.id, "accepted", by="tester")
    model = scripted_model(UNDERSTOOD, FIX, DONE)
    done = deliver_record(bench, found, model)
    assert done.handoff.state == "completed"
    history = list_transitions(bench.home.ledger, found.id)
    assert [each.after for each in history][:5] == ["prepared", "offered", "timed_out", "offered", "accepted"]
    assert history[2].reason == "tester did not confirm in time"
    assert len(model.seen) == 3


@pytest.mark.parametrize("state", ["offered", "timed_out"])
def test_a_late_person_gets_the_offer_again(bench: RunHarness, state: str) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    found = hand_over(bench.home, RECORD, target="ann", source="writer", confirm_timeout_s=0.01)
    time.sleep(0.05)
    if state == "timed_out":
        handoffs.change_state(bench.home.ledger, found.id, "timed_out", by="a watcher")
    typed = iter(["double(3) is 6", "look at the file", "that the test fails", "done"])
    record = bench.home.records.load(RECORD)
    taken = take_record(
        bench.home, record, "ann", read=lambda _: next(typed), show=lambda _: None, sandbox=bench.spec
    )
    assert taken.outcome is not None
    assert taken.outcome.stop_reason == "finished"
    assert states(bench.home, found)[1:] == [
        "offered", "timed_out", "offered", "accepted", "active", "completed",
    ]  # fmt: skip


def test_a_person_who_was_too_slow_can_take_the_record_again(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    found = hand_over(bench.home, RECORD, target="ann", source="writer")
    record = bench.home.records.load(RECORD)

    def take(pause_s: float) -> Any:
        typed = iter(["double(3) is 6", "look at the file", "that the test fails", "done"])

        def read(_: str) -> str:
            time.sleep(pause_s)
            return next(typed)

        return take_record(bench.home, record, "ann", read=read, show=lambda _: None, sandbox=bench.spec)

    handoffs.set_deadline(bench.home.ledger, found, 0.5)
    with monkeypatch.context() as patched:
        patched.setattr("langgraph_takeover.graph.delivery.participants._CONFIRM_TIMEOUT_S", 0.5)
        assert take(0.4).outcome.stop_reason == "unconfirmed"
    assert take(0.0).outcome.stop_reason == "finished"
    assert handoffs.load(bench.home.ledger, found.id).state == "completed"


def test_a_current_offer_precedes_an_expired_one(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    expired = hand_over(bench.home, RECORD, target="ann", source="writer")
    handoffs.change_state(bench.home.ledger, expired.id, "timed_out", by="a watcher")
    current = hand_over(bench.home, RECORD, target="ann", source="writer")
    assert take_as_ann(bench, RECORD).stop_reason == "finished"
    assert states(bench.home, expired) == ["prepared", "offered", "timed_out"]
    assert states(bench.home, current)[-1] == "completed"


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_a_person_learns_which_record_was_sent_again(bench: RunHarness, damaged: bool) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",), policy="stop")
    found = hand_over(bench.home, RECORD, target="ann", source="writer")
    rejected = handoffs.change_state(bench.home.ledger, found.id, "rejected", by="ann", reason="snapshot: it")
    file = bench.home.records.directory(RECORD) / RECORD_FILE
    whole = file.read_bytes()
    file.unlink()
    file.write_bytes(whole[:100])
    fresh = find_fresh_record(bench.home, rejected, sandbox=bench.spec)
    assert fresh is not None
    handoffs.change_state(bench.home.ledger, found.id, "offered", by="a watcher", record=fresh)
    if not damaged:
        file.write_bytes(whole)
    place = bench.home.records.directory(fresh.id)
    expected = f"{found.id} offers {fresh.id} in its place (take that: handoff take {place})"
    with pytest.raises(HandoffError, match=re.escape(expected)):
        take_as_ann(bench, RECORD)
    assert take_as_ann(bench, fresh.id).stop_reason == "finished"
    assert states(bench.home, found)[-1] == "completed"


def take_as_ann(bench: RunHarness, record_id: str) -> Any:
    typed = iter(["double(3) is 6", "look at the file", "that the test fails", "done"])
    record = load_record_to_take(bench.home, record_id, "ann")
    return take_record(
        bench.home, record, "ann", read=lambda _: next(typed), show=lambda _: None, sandbox=bench.spec
    ).outcome
