"""A damaged or missing record: the source sends it again, or a supervisor is asked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import Home, hand_over
from langgraph_takeover.graph.delivery.recovery import find_fresh_record, roll_back
from langgraph_takeover.graph.usage_errors import HandoffError
from langgraph_takeover.handoff.ledger import acquire, handoffs
from langgraph_takeover.handoff.ledger.handoffs import Handoff, list_transitions
from langgraph_takeover.handoff.records.record import RECORD_FILE
from langgraph_takeover.handoff.records.verification import verify_record

from ..conftest import BOTH_DATABASES, DONE, EDIT, FIX, RunHarness, scripted_model
from .test_delivery import QUICK, RECORD, UNDERSTOOD, deliver_record, offer_first_record, states

COMPLETED = ["accepted", "active", "completed"]


pytestmark = BOTH_DATABASES


def truncate(path: Path) -> None:
    """Replace a file by its beginning; other links to it stay whole."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])


def truncate_record(home: Home) -> None:
    truncate(home.records.directory(RECORD) / RECORD_FILE)


def reasons(home: Home, found: Handoff) -> list[str]:
    return [each.reason for each in list_transitions(home.ledger, found.id)]


def test_a_truncated_record_is_made_again_from_the_checkpoint(bench: RunHarness) -> None:
    found = offer_first_record(bench)
    original = bench.home.records.load(RECORD)
    truncate_record(bench.home)
    done = deliver_record(bench, found, scripted_model(UNDERSTOOD, FIX, DONE))
    assert states(bench.home, found) == ["prepared", "offered", "rejected", "offered", *COMPLETED]
    history = list_transitions(bench.home.ledger, found.id)
    assert history[2].reason.startswith("checksum: ")
    assert history[3].reason == f"writer sent it again as {done.handoff.record}"
    assert all(before.at <= after.at for before, after in itertools.pairwise(history))
    assert done.outcome is not None
    assert "n * 2" in done.outcome.patch
    fresh = bench.home.records.load(done.handoff.record)
    assert done.handoff.digest == fresh.digest
    assert verify_record(bench.home.records.directory(fresh.id)).problems == ()
    changed = {"id": "", "digest": "", "predecessor": "", "created_at": ""}
    assert fresh.model_copy(update=changed) == original.model_copy(update=changed)
    roll_back(bench.home, found.id, by="a person", sandbox=bench.spec)
    assert bench.resume(scripted_model("", DONE)).stop_reason == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("spoil", ["missing", "archive"])
def test_other_damage_is_cured_too(bench: RunHarness, spoil: str) -> None:
    found = offer_first_record(bench)
    directory = bench.home.records.directory(RECORD)
    if spoil == "missing":
        (directory / RECORD_FILE).unlink()
    else:
        truncate(directory / bench.home.records.load(RECORD).required_snapshot.location)
    done = deliver_record(bench, found, scripted_model(UNDERSTOOD, FIX, DONE))
    assert states(bench.home, found)[2:] == ["rejected", "offered", *COMPLETED]
    kind = {"missing": "no_record", "archive": "snapshot"}[spoil]
    assert reasons(bench.home, found)[2].startswith(f"{kind}: ")
    assert done.handoff.record == f"{RECORD}.{found.id}.1"


@pytest.mark.slow
@pytest.mark.parametrize("lacks", ["checkpoints", "lease", "snapshot"])
def test_a_supervisor_is_asked_if_the_source_cannot(bench: RunHarness, lacks: str) -> None:
    found = offer_first_record(bench)
    archive = (
        bench.home.records.directory(RECORD) / bench.home.records.load(RECORD).required_snapshot.location
    )
    lease = acquire(bench.home.ledger, "thread") if lacks == "lease" else None
    if lacks == "checkpoints":
        with bench.home.ledger.write_transaction() as connection:
            on_sqlite = ("checkpoints", "writes", "takeover_checksums")
            for table in on_sqlite if bench.home.ledger.is_sqlite else ("checkpoints",):
                connection.exec_driver_sql(f"DELETE FROM {table} WHERE thread_id = 'thread'")
    if lacks == "snapshot":
        archive.write_bytes(archive.read_bytes()[:-20])  # the thread's own copy is a link to the same file
    truncate_record(bench.home)
    model = scripted_model(UNDERSTOOD, FIX, DONE)
    done = deliver_record(bench, found, model)
    assert states(bench.home, found) == ["prepared", "offered", "rejected", "rejected"]
    assert done.waiting is not None
    assert done.waiting.problem.startswith("checksum: ")
    assert "writer cannot send it again: " in done.waiting.problem
    cure = "(restore the record's directory from a copy, or offer another record)"
    lost = f"thread 'thread' no longer has the checkpoint of record {RECORD} {cure}"
    expected = {"checkpoints": lost, "lease": "is held by", "snapshot": "snapshot"}
    assert expected[lacks] in done.waiting.problem
    assert not model.seen
    assert bench.home.records.list_ids() == (RECORD,)
    if lease:
        lease.release()


@pytest.mark.slow
def test_an_application_sends_the_record_again(bench: RunHarness) -> None:
    found, asked = offer_first_record(bench), list[Handoff]()
    whole = (bench.home.records.directory(RECORD) / RECORD_FILE).read_bytes()
    truncate_record(bench.home)

    def resend(refused: Handoff) -> str:
        asked.append(refused)
        (bench.home.records.directory(RECORD) / RECORD_FILE).write_bytes(whole)
        return RECORD

    done = deliver_record(bench, found, scripted_model(UNDERSTOOD, FIX, DONE), resend=resend)
    assert (done.handoff.state, done.handoff.record) == ("completed", RECORD)
    assert [(each.state, each.reason.partition(":")[0]) for each in asked] == [("rejected", "checksum")]


@pytest.mark.slow
def test_a_record_that_is_whole_by_now_is_offered_again(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = offer_first_record(bench)
    file = bench.home.records.directory(RECORD) / RECORD_FILE
    whole = file.read_bytes()
    truncate_record(bench.home)
    change = handoffs.change_state

    def restore_after_refusal(*args: Any, **options: Any) -> Handoff:
        result = change(*args, **options)
        if result.state == "rejected":
            file.write_bytes(whole)
        return result

    monkeypatch.setattr(handoffs, "change_state", restore_after_refusal)
    done = deliver_record(bench, found, scripted_model(UNDERSTOOD, FIX, DONE))
    assert (done.handoff.state, done.handoff.record) == ("completed", RECORD)


@pytest.mark.slow
def test_an_application_without_a_whole_record(bench: RunHarness) -> None:
    found = offer_first_record(bench)
    bench.run(
        scripted_model(EDIT, DONE),
        thread="other",
        run_id="other",
        points=("first_source_edit",),
        policy="stop",
    )
    truncate_record(bench.home)
    for resend, problem in (
        (lambda _: None, "it has no other record"),
        (lambda _: "lost", "record not found"),
        (lambda _: "other.first_source_edit", "it belongs to task t on thread 'other'"),
    ):
        second = handoffs.load(bench.home.ledger, found.id)
        done = deliver_record(
            bench,
            second,
            scripted_model(DONE),
            resend=resend,
            delivery_policy=QUICK.model_copy(update={"resends": 9}),
        )
        assert done.waiting is not None
        assert problem in done.waiting.problem
        assert done.handoff.record == RECORD
        handoffs.change_state(bench.home.ledger, found.id, "offered", by="a person")


def test_the_source_is_asked_a_bounded_number_of_times(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked = offer_first_record(bench), list[str]()
    file = bench.home.records.directory(RECORD) / RECORD_FILE
    whole, change = file.read_bytes(), handoffs.change_state
    truncate_record(bench.home)

    def damage_after_offer(*args: Any, **options: Any) -> Handoff:
        result = change(*args, **options)
        if result.state == "offered":
            truncate_record(bench.home)
        return result

    def resend(refused: Handoff) -> str:
        asked.append(refused.id)
        file.write_bytes(whole)
        return RECORD

    monkeypatch.setattr(handoffs, "change_state", damage_after_offer)
    policy = QUICK.model_copy(update={"resends": 2})
    done = deliver_record(bench, found, scripted_model(DONE), resend=resend, delivery_policy=policy)
    assert len(asked) == 2
    assert states(bench.home, found)[2:] == ["rejected", "offered"] * 2 + ["rejected"]
    assert done.waiting is not None
    deliver_record(bench, found, scripted_model(DONE), {"decision": "retry"}, resend=resend)
    assert len(asked) == 2, "not again in another round"


def test_a_refusal_that_no_record_cures_goes_to_the_supervisor(bench: RunHarness) -> None:
    found, asked = offer_first_record(bench), []
    done = deliver_record(
        bench, found, scripted_model(DONE), agent_name="another", resend=lambda each: asked.append(each)
    )
    assert states(bench.home, found)[2:] == ["rejected"]
    assert done.handoff.reason.startswith("target: ")
    assert done.waiting is not None
    assert asked == []


def test_a_repeated_refusal_is_blocked_after_the_last_round(bench: RunHarness) -> None:
    found = offer_first_record(bench)
    always = scripted_model('{"decision": "retry", "reason": "again"}')
    done = deliver_record(
        bench, found, scripted_model(DONE), agent_name="another", supervisor=always, on_blocked=lambda _: None
    )
    assert done.handoff.state == "blocked"
    assert len(always.seen) == QUICK.rounds - 1


@pytest.mark.slow
def test_a_repeated_offer_finds_the_handoff_after_another_record_was_sent(bench: RunHarness) -> None:
    found = offer_first_record(bench, idempotency_key="k")
    truncate(
        bench.home.records.directory(RECORD) / bench.home.records.load(RECORD).required_snapshot.location
    )
    done = deliver_record(bench, found, scripted_model(UNDERSTOOD, FIX, DONE))
    assert done.handoff.record != RECORD
    again = hand_over(bench.home, RECORD, target="tester", source="writer", idempotency_key="k")
    assert again == done.handoff


@pytest.mark.slow
def test_a_successor_sends_its_record_again(bench: RunHarness) -> None:
    first = offer_first_record(bench)
    passing = scripted_model(UNDERSTOOD, '<handoff to="writer">Too hard.</handoff>')
    passed = deliver_record(bench, first, passing, offer_handoff=True)
    assert passed.outcome is not None
    sent = bench.home.records.load(passed.outcome.records[-1])
    second = hand_over(bench.home, sent.id, source="tester")
    truncate(bench.home.records.directory(sent.id) / RECORD_FILE)
    done = deliver_record(bench, second, scripted_model(UNDERSTOOD, FIX, DONE), agent_name="writer")
    assert states(bench.home, second)[2:] == ["rejected", "offered", *COMPLETED]
    fresh = bench.home.records.load(done.handoff.record)
    assert (fresh.trace, fresh.point, fresh.patch) == (sent.trace, sent.point, sent.patch)


@pytest.mark.slow
@pytest.mark.parametrize("record_id", ["run.requested", "run.periodic-3"])
def test_a_step_with_two_records_sends_the_right_one_again(bench: RunHarness, record_id: str) -> None:
    asks = "<handoff>Too hard.</handoff>"
    outcome = bench.run_to_outcome(
        scripted_model(EDIT, asks), points=(), offer_handoff=True, record_every_steps=1
    )
    assert (outcome.records, outcome.periodic_records[-1]) == (("run.requested",), "run.periodic-3")
    sent = bench.home.records.load(record_id)
    found = hand_over(bench.home, record_id, target="tester", source="writer")
    truncate(bench.home.records.directory(record_id) / RECORD_FILE)
    done = deliver_record(bench, found, scripted_model(UNDERSTOOD, FIX, DONE))
    assert states(bench.home, found)[2:] == ["rejected", "offered", *COMPLETED]
    fresh = bench.home.records.load(done.handoff.record)
    assert (fresh.id, fresh.point) == (f"{record_id}.{found.id}.1", sent.point)


def test_a_name_that_is_too_long_for_another_record(bench: RunHarness) -> None:
    found = offer_first_record(bench)
    truncate_record(bench.home)
    with pytest.raises(
        HandoffError,
        match=r"valid id for the replacement record: .* \(restore the record's directory from a copy, or",
    ):
        find_fresh_record(bench.home, found.model_copy(update={"record": "r" * 250}), sandbox=bench.spec)
