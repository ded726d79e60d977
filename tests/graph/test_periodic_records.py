"""Records every few steps: the run continues, and nothing takes them for handoff points."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from langgraph_takeover import Agent, deliver, hand_over, run_team
from langgraph_takeover.errors import SettingsError
from langgraph_takeover.evals.run.settings.config import POINTS, RunConfig
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore
from langgraph_takeover.handoff.records.verification import verify_record
from langgraph_takeover.handoff.trace.events import PointKind
from langgraph_takeover.nodes.context.settings import ALL_POINTS

from .conftest import DONE, EDIT, FIX, NOTE, PROMPT, SHOW, TEST, RunHarness, get_shown_lines, scripted_model
from .delivery.test_delivery import UNDERSTOOD

POLICIES = ("record", "stop", "review", "takeover")
NOTES = [NOTE.format(number) for number in range(1, 6)]


def choose(policy: str) -> dict[str, Any]:
    """The settings of a policy."""
    return {"policy": policy, "successor": scripted_model(DONE) if policy == "takeover" else None}


@pytest.mark.cases(2)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_record_every_two_steps_under_every_policy(bench: RunHarness, policy: str) -> None:
    seen: list[dict[str, Any]] = []
    outcome = bench.run_to_outcome(
        scripted_model(*NOTES, DONE), **choose(policy), record_every_steps=2, on_progress=seen.append
    )
    assert outcome.predecessor is None
    assert (outcome.stop_reason, outcome.steps, outcome.waiting) == ("finished", 6, None)
    assert outcome.records == ()
    assert outcome.periodic_records == ("run.periodic-3", "run.periodic-7")
    assert [each["event"] for each in seen].count("record") == 2
    assert "point" not in {each["event"] for each in seen}
    for record_id, steps in zip(outcome.periodic_records, (2, 4), strict=True):
        record = bench.store.load(record_id)
        assert (record.point.kind, record.point.detail) == ("periodic", f"after {steps} steps")
        assert record.point.event_index == len(record.trace) - 1 == 2 * steps - 1
        assert not verify_record(bench.store.directory(record_id)).problems


def test_a_successor_continues_from_a_periodic_record(bench: RunHarness) -> None:
    bench.run(scripted_model(*NOTES, DONE), record_every_steps=2)
    state = bench.take_over(scripted_model(SHOW, NOTES[0], SHOW, DONE), "trace", "run.periodic-3",
                            record_every_steps=2, run_id="after")  # fmt: skip
    assert get_shown_lines(state) == ["1", "2", "1"]
    (name,) = state["periodic_records"]
    assert name == "after.periodic-7"  # its trace begins with that of the record
    assert len(bench.store.load(name).trace) == 8


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"record_every_steps": 3}, {"points": ("first_source_edit",)}])
def test_a_record_loads_that_of_the_predecessor_once(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    bench.run(scripted_model(*NOTES[:2], DONE), record_every_steps=2)
    loaded, load = list[str](), RecordStore.load

    def count(store: RecordStore, record_id: str) -> HandoffRecord:
        loaded.append(record_id)
        return load(store, record_id)

    monkeypatch.setattr(RecordStore, "load", count)
    counts = []
    for run_id, chosen in (("without", {}), ("with", settings)):
        loaded.clear()
        options = {"points": (), "policy": "record", "run_id": run_id, **chosen}
        state = bench.take_over(
            scripted_model(NOTES[0], EDIT, SHOW, DONE), "trace", "run.periodic-3", **options
        )
        counts.append(loaded.count("run.periodic-3"))
    assert len([*state.get("records", []), *state.get("periodic_records", [])]) == 1
    assert counts[1] - counts[0] == 1


def test_a_periodic_record_can_be_handed_over(bench: RunHarness) -> None:
    bench.run(scripted_model(*NOTES), record_every_steps=2, max_steps=2, agent_name="writer")
    handoff = hand_over(bench.home, "run.periodic-3", target="tester", source="writer")
    delivery = deliver(
        bench.home,
        handoff.id,
        agent_name="tester",
        model=scripted_model(UNDERSTOOD, SHOW, DONE),
        sandbox=bench.spec,
    )
    assert delivery.handoff.state == "completed"
    assert delivery.outcome is not None
    assert get_shown_lines(delivery.outcome.state) == ["1", "2"]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("policy", "stop_reason"),
    [("record", "finished"), ("stop", "point"), ("review", None), ("takeover", "handoff")],
)
def test_a_point_of_the_same_step_keeps_its_policy(
    bench: RunHarness, policy: str, stop_reason: str | None
) -> None:
    settings: Any = {"points": ("first_source_edit",), "record_every_steps": 1}
    model = scripted_model(EDIT, DONE)
    outcome = bench.run_to_outcome(model, **settings, **choose(policy))
    outcome = outcome.predecessor or outcome
    assert outcome.stop_reason == stop_reason
    if policy == "review":
        assert outcome.waiting is not None
        assert (outcome.waiting.point, outcome.waiting.record) == (
            "first_source_edit",
            "run.first_source_edit",
        )
        outcome = bench.resume(model, {"decision": "approve"}, policy="review", **settings)
        assert outcome.stop_reason == "handoff"
    assert outcome.records == ("run.first_source_edit",)
    assert outcome.periodic_records == ("run.periodic-1",)


def test_every_reply_with_a_result_is_a_step(bench: RunHarness) -> None:
    outcome = bench.run_to_outcome(
        scripted_model("no action", "<handoff>Yours.</handoff>"), record_every_steps=1, offer_handoff=True
    )
    assert outcome.stop_reason == "handoff"
    assert outcome.records == ("run.requested",)
    assert outcome.periodic_records == ("run.periodic-1", "run.periodic-3")


@pytest.mark.slow
def test_the_detectors_points_are_the_same(bench: RunHarness) -> None:
    replies = (EDIT, TEST, FIX, TEST, DONE)
    without = bench.run_to_outcome(scripted_model(*replies), points=ALL_POINTS)
    with_ = bench.run_to_outcome(
        scripted_model(*replies), points=ALL_POINTS, record_every_steps=1, thread="other", run_id="other"
    )
    kinds = [[bench.store.load(name).point.kind for name in each.records] for each in (without, with_)]
    assert kinds[0] == kinds[1] == list(POINTS)
    assert len(with_.periodic_records) == 4
    changes = [[event.changes for event in each.events] for each in (without, with_)]
    assert changes[0] == changes[1]


def test_a_repeated_node_makes_its_record_once(bench: RunHarness) -> None:
    model = scripted_model(*NOTES, DONE)

    def fail(update: dict[str, Any]) -> None:
        if update["event"] == "record":
            raise KeyboardInterrupt("the listener is gone")

    with pytest.raises(KeyboardInterrupt, match="the listener is gone"):
        bench.run(model, record_every_steps=2, on_progress=fail)
    assert bench.store.list_ids() == ("run.periodic-3",)
    outcome = bench.resume(model, record_every_steps=2)
    assert outcome.periodic_records == bench.store.list_ids() == ("run.periodic-3", "run.periodic-7")


def test_a_fork_has_records_of_its_own(bench: RunHarness) -> None:
    model = scripted_model(*NOTES, DONE)
    bench.run(model, record_every_steps=2)
    early = next(each for each in reversed(bench.home.history("thread")) if each.step == 3)
    forked = bench.resume(model, record_every_steps=2, checkpoint=early.checkpoint)
    first, second = forked.periodic_records
    assert first == "run.periodic-3"
    assert second.startswith("run.periodic-7.")
    assert len(bench.store.list_ids()) == 3


def test_a_team_passes_its_turns_as_without(bench: RunHarness) -> None:
    first = Agent(name="first", model=scripted_model(NOTES[0], NOTES[1], DONE), max_consecutive_turns=2)
    second = Agent(name="second", model=scripted_model('<handoff to="first">Yours.</handoff>'))
    outcome = run_team(
        bench.home, "thread", task_id="t", prompt=PROMPT, agents=[first, second], sandbox=bench.spec,
        points=(), run_id="run", record_every_steps=1, enable_handoff_tool=True,
    )  # fmt: skip
    assert outcome.stop_reason == "finished"
    assert [each["how"] for each in outcome.state["passes"]] == ["rotation", "handoff"]
    assert outcome.periodic_records == ("run.periodic-1", "run.periodic-3", "run.periodic-5")
    assert [bench.store.load(name).point.kind for name in outcome.records] == ["requested"] * 2


@pytest.mark.parametrize("every", [0, -1, "often"])
def test_an_invalid_interval(bench: RunHarness, every: Any) -> None:
    with pytest.raises(SettingsError, match=r"^record_every_steps: "):
        bench.run(scripted_model(DONE), record_every_steps=every)
    assert bench.home.threads() == ()


def test_periodic_is_no_kind_of_handoff_point(bench: RunHarness) -> None:
    assert "periodic" not in (*get_args(PointKind), *ALL_POINTS, *POINTS)
    with pytest.raises(SettingsError, match=r"^points"):
        bench.run(scripted_model(DONE), points=("periodic",))
    assert "record_every_steps" not in RunConfig.model_fields
