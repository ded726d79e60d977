"""Resume after a crash, a stop, a wait or a signal, from any checkpoint, in the sandbox that belongs to it."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from langgraph_takeover import build_agent, open_run, run
from langgraph_takeover.errors import (
    InputError,
    NotWaitingError,
    ThreadExistsError,
    ThreadNotFoundError,
    ThreadNotHeldError,
)
from langgraph_takeover.handoff.ledger import LedgerUnavailableError, ThreadHeldError
from langgraph_takeover.nodes.model.model_errors import ModelError
from langgraph_takeover.nodes.session.state_store import SnapshotNotFoundError

from ..conftest import (
    BOTH_DATABASES,
    DONE,
    EDIT,
    FIX,
    NOTE,
    PROMPT,
    SHOW,
    TEST,
    RunHarness,
    get_note_text,
    scripted_model,
)

pytestmark = BOTH_DATABASES


def test_a_failed_model_call_is_repeated(bench: RunHarness) -> None:
    broken = scripted_model(NOTE.format(1), NOTE.format(2), ModelError("gone"))
    with pytest.raises(ModelError):
        bench.run(broken, model_tries=1)
    done = bench.resume(scripted_model("", "", NOTE.format(3), SHOW, DONE))
    assert done.stop_reason == "finished"
    assert get_note_text(done.state) == "1\n2\n3"
    assert done.steps == 5


@pytest.mark.parametrize("kept_at", ["step", "point", "never"])
def test_a_node_whose_checkpoint_was_never_written_is_not_lost(bench: RunHarness, kept_at: Any) -> None:
    away = False

    def listen(moment: dict[str, Any]) -> None:
        nonlocal away
        away = away or (moment["event"] == "observed")

    model = scripted_model(NOTE.format(1), NOTE.format(2), NOTE.format(3), SHOW, DONE)
    options: Any = {"model": model, "sandbox": bench.spec, "points": (), "snapshot_every": kept_at}
    with open_run(bench.home, "thread", on_progress=listen, **options) as first_run:
        saver: Any = first_run.agent.checkpointer
        put = saver.put

        def put_or_fail(*args: Any) -> Any:
            if away:
                raise LedgerUnavailableError("the database is away")
            return put(*args)

        saver.put = put_or_fail
        with pytest.raises(LedgerUnavailableError):
            first_run.start("t", PROMPT)
    found = bench.home.saver.get_tuple({"configurable": {"thread_id": "thread"}})
    assert found is not None
    assert "sandbox_state" in [channel for _, channel, _ in found.pending_writes or ()]
    if kept_at != "step":
        with pytest.raises(SnapshotNotFoundError, match="resumes from step 1"):
            bench.resume(model, snapshot_every=kept_at)
    done = bench.resume(model, snapshot_every=kept_at, go_back=True)
    assert (done.stop_reason, done.steps) == ("finished", 5)
    assert get_note_text(done.state) == "1\n2\n3"
    assert len(model.seen) == 5


def test_a_replayed_step_runs_again_in_its_own_sandbox(bench: RunHarness) -> None:
    bench.run(scripted_model(NOTE.format(1), NOTE.format(2), DONE))
    before = [m for m in bench.home.history("thread") if m.next == ("shell",) and m.step == 2]
    done = bench.resume(scripted_model("", "", SHOW, DONE), checkpoint=before[0].checkpoint)
    assert get_note_text(done.state) == "1\n2"


def test_snapshots_at_points_only(bench: RunHarness) -> None:
    broken = scripted_model(NOTE.format(1), EDIT, NOTE.format(2), ModelError("gone"))
    settings: Any = {"snapshot_every": "point", "points": ("first_source_edit",)}
    with pytest.raises(ModelError):
        bench.run(broken, model_tries=1, **settings)
    moments = bench.home.history("thread")
    assert not moments[0].is_restorable
    assert {moment.step for moment in moments if moment.is_restorable and moment.next == ("think",)} == {0, 2}
    with pytest.raises(SnapshotNotFoundError, match="resumes from step 3"):
        bench.resume(scripted_model("", "", SHOW, DONE), **settings)
    done = bench.resume(scripted_model("", "", "", SHOW, DONE), go_back=True, **settings)
    assert get_note_text(done.state) == "1\n2"


def test_snapshots_of_records_only(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format(1), EDIT, NOTE.format(2), SHOW, DONE)
    settings: Any = {"snapshot_every": "never", "points": ("first_source_edit",)}
    state = bench.run(model, max_steps=3, **settings)
    assert state["stop_reason"] == "max_steps"
    with pytest.raises(SnapshotNotFoundError, match="resumes from step 3"):
        bench.resume(model, **settings)
    done = bench.resume(scripted_model("", "", "", SHOW, DONE), go_back=True, **settings)
    assert get_note_text(done.state) == "1\n2"


@pytest.mark.slow
def test_a_run_stopped_by_its_budget_resumes_with_more(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format(1), NOTE.format(2), NOTE.format(3), SHOW, DONE)
    state = bench.run(model, max_steps=2)
    assert state["stop_reason"] == "max_steps"
    same = bench.resume(model, max_steps=2)
    assert (same.stop_reason, same.steps) == ("max_steps", 2)
    done = bench.resume(model, max_steps=9)
    assert done.stop_reason == "finished"
    assert get_note_text(done.state) == "1\n2\n3"
    assert bench.resume(model).steps == 5


def test_a_person_reviews(bench: RunHarness) -> None:
    model = scripted_model(NOTE.format(1), EDIT, NOTE.format(2), DONE)
    state = bench.run(model, policy="review", points=("first_source_edit",))
    assert state.get("stop_reason") is None
    waiting = bench.resume(model, policy="review", points=("first_source_edit",))
    assert waiting.waiting is not None
    assert waiting.waiting.record == "run.first_source_edit"
    assert "pkg/core.py" in waiting.waiting.note
    with pytest.raises(InputError, match="decision"):
        bench.resume(model, {"decision": "perhaps"}, policy="review")
    refused = bench.resume(model, {"decision": "refuse"}, policy="review")
    assert refused.stop_reason == "finished"
    with pytest.raises(NotWaitingError, match="does not wait for an answer"):
        bench.resume(model, {"decision": "approve"}, policy="review")


@pytest.mark.slow
def test_a_reviewed_handoff_shows_the_persons_note(bench: RunHarness) -> None:
    model = scripted_model(EDIT, DONE)
    bench.run(model, policy="review", points=("first_source_edit",))
    answer = {"decision": "approve", "view": "structured", "successor": "other", "note": "Mind the tests."}
    done = bench.resume(model, answer, policy="review")
    assert done.stop_reason == "handoff"
    successor = scripted_model(DONE)
    review = bench.store.load("run.first_source_edit").review
    assert review is not None
    assert review.model_dump(exclude={"digest"}) == answer
    bench.take_over(successor, None, "run.first_source_edit")
    assert "Mind the tests." in "".join(message.text for message in successor.seen[0])


def test_a_handoff_requested_from_outside(bench: RunHarness) -> None:
    with pytest.raises(ThreadNotFoundError):
        bench.home.request_handoff("thread", "lunch")
    events: list[Any] = []

    def listen(moment: dict[str, Any]) -> None:
        events.append(moment)
        if moment["event"] == "observed" and moment["step"] == 1:
            bench.home.request_handoff("thread", "lunch")

    model = scripted_model(NOTE.format(1), NOTE.format(2), NOTE.format(3), DONE)
    state = bench.run(model, points=("requested",), on_progress=listen)
    assert state["stop_reason"] == "handoff"
    record = bench.store.load("run.requested")
    assert record.point.detail == "lunch"
    assert state["steps"] <= 2
    again = bench.resume(model)
    assert again.stop_reason == "finished"


def test_the_policy_takeover_lets_the_successor_continue(bench: RunHarness) -> None:
    done = run(
        bench.home,
        "thread",
        task_id="t",
        prompt=PROMPT,
        model=scripted_model(EDIT, DONE),
        successor=scripted_model(TEST, FIX, DONE),
        sandbox=bench.spec,
        policy="takeover",
        points=("first_source_edit",),
    )
    assert done.predecessor is not None
    assert done.predecessor.stop_reason == "handoff"
    assert done.thread == "thread.successor"
    assert done.stop_reason == "finished"
    assert "n * 2" in done.patch


def test_a_thread_holds_one_run(bench: RunHarness) -> None:
    bench.run(scripted_model(DONE))
    with pytest.raises(ThreadExistsError, match="already holds t"):
        bench.run(scripted_model(DONE))
    with pytest.raises(ThreadNotFoundError, match=r"known threads: thread"):
        bench.resume(scripted_model(DONE), thread="other")
    with pytest.raises(ThreadNotFoundError, match="has no checkpoint"):
        bench.resume(scripted_model(DONE), checkpoint="1f0")


def test_a_second_writer_learns_the_holder(bench: RunHarness) -> None:
    with open_run(bench.home, "thread", model=scripted_model(DONE), sandbox=bench.spec) as first:
        with pytest.raises(ThreadHeldError, match="held by process"):
            bench.run(scripted_model(DONE))
        assert first.start("t", PROMPT).stop_reason == "finished"
    assert bench.resume(scripted_model(DONE)).stop_reason == "finished"


def test_a_saver_without_a_lease_refuses_to_write(bench: RunHarness) -> None:
    bench.run(scripted_model(DONE))
    with pytest.raises(ThreadNotHeldError, match="this saver only reads"):
        build_agent(bench.home.saver).update_state({"configurable": {"thread_id": "thread"}}, {"steps": 9})


@pytest.mark.parametrize("kept_at", ["step", "point"])
def test_sigterm_ends_the_run_after_its_step(bench: RunHarness, kept_at: Any) -> None:
    def listen(moment: dict[str, Any]) -> None:
        if moment["event"] == "acting" and moment["step"] == 2:
            signal.raise_signal(signal.SIGTERM)

    model = scripted_model(NOTE.format(1), NOTE.format(2), NOTE.format(3), SHOW, DONE)
    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(SystemExit) as ended:
        bench.run(model, on_progress=listen, snapshot_every=kept_at)
    assert ended.value.code == 143
    newest = bench.home.history("thread")[0]
    assert (newest.step, newest.is_restorable) == (2, True)
    done = bench.resume(model, snapshot_every=kept_at)
    assert get_note_text(done.state) == "1\n2\n3"


@pytest.mark.slow
def test_a_pruned_thread_resumes(bench: RunHarness) -> None:
    broken = scripted_model(NOTE.format(1), EDIT, ModelError("gone"))
    with pytest.raises(ModelError):
        bench.run(broken)
    with bench.open_run(broken) as run:
        run.prune()
    assert bench.load_state().next == ("think",)
    done = bench.resume(scripted_model("", "", SHOW, DONE))
    assert get_note_text(done.state) == "1"


def test_a_failed_pruning_removes_nothing(bench: RunHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scripted_model(NOTE.format(1), SHOW, DONE)
    bench.run(model, max_steps=1)
    before = bench.home.history("thread")
    with bench.open_run(model) as run:
        monkeypatch.setattr(type(run.agent), "update_state", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.prune()
        monkeypatch.undo()
    assert bench.home.history("thread") == before
    assert bench.resume(model).stop_reason == "finished"


def test_a_run_keeps_its_base_when_the_directory_changes(bench: RunHarness) -> None:
    look = "```bash\ncat pkg/core.py; cat notes.txt\n```"
    bench.run(scripted_model(NOTE.format(1), look, DONE))
    assert bench.spec.directory is not None
    (bench.spec.directory / "pkg" / "core.py").write_text("later\n")
    first = [moment for moment in bench.home.history("thread") if moment.next == ("think",)][-1]
    done = bench.resume(scripted_model(look, DONE), checkpoint=first.checkpoint)
    shown = [event.text for event in done.events if event.kind == "observation"]
    assert "return n + 1" in shown[0]
    assert "notes.txt: No such file" in shown[0]
