"""A restored sandbox that lacks changes of its run ends the run before its model is asked."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from langgraph_takeover.handoff.ledger.store import snapshots
from langgraph_takeover.handoff.records.record import HandoffRecord
from langgraph_takeover.nodes.model.model_errors import ModelError
from langgraph_takeover.sandbox.interface import SnapshotCorruptError
from langgraph_takeover.sandbox.snapshots.transfer import copy_to_store

from .conftest import DONE, EDIT, NOTE, SHOW, RunHarness, scripted_model

LOST = r"the restored sandbox lacks what the run changed in {} \(take over another record, or resume at"


def use_first_snapshot(bench: RunHarness) -> None:
    """Make every state of the thread refer to the files of its first one, as if each snapshot had missed the changes."""
    with bench.home.ledger.write_transaction() as connection:
        first = connection.execute(select(snapshots.c.snapshot).order_by(snapshots.c.made_at)).first()
        assert first is not None
        connection.execute(update(snapshots).values(snapshot=first.snapshot))


def lose_changes(bench: RunHarness, name: str = "run.first_source_edit") -> HandoffRecord:
    """Seal a record again with a snapshot of the base."""
    record = bench.store.load(name)
    with bench.open_run(scripted_model(), thread="other") as run:
        snapshot = run.session.save_snapshot("base")
        copy_to_store(snapshot, run.session.snapshot_directory(snapshot), bench.store.directory(name))
    return bench.store.create(name, lambda _: record.model_copy(update={"snapshot": snapshot}))


@pytest.mark.parametrize("backend", ["process", "host", pytest.param("docker", marks=pytest.mark.slow)])
def test_a_resumed_run(bench: RunHarness) -> None:
    with pytest.raises(ModelError):
        bench.run(scripted_model(NOTE.format(1), EDIT, ModelError("refused")), model_tries=1)
    use_first_snapshot(bench)
    model = scripted_model(SHOW, DONE)
    with pytest.raises(SnapshotCorruptError, match=LOST.format("notes.txt, pkg/core.py")):
        bench.resume(model)
    assert model.seen == []


def test_the_outcome_of_a_finished_run(bench: RunHarness) -> None:
    bench.run(scripted_model(EDIT, DONE))
    use_first_snapshot(bench)
    with pytest.raises(SnapshotCorruptError, match=LOST.format("pkg/core.py")):
        bench.resume(scripted_model())


@pytest.mark.parametrize("backend", ["process", "host"])
def test_a_takeover(bench: RunHarness) -> None:
    bench.run(scripted_model(NOTE.format(1), EDIT, DONE), points=("first_source_edit",))
    lose_changes(bench)
    model = scripted_model(SHOW, DONE)
    with pytest.raises(SnapshotCorruptError, match=LOST.format("notes.txt, pkg/core.py")):
        bench.take_over(model)
    assert model.seen == []


def test_a_takeover_of_changes_that_only_the_patch_has(bench: RunHarness) -> None:
    """As in records of a container whose volume no snapshot had."""
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))
    record = lose_changes(bench)
    silent = tuple(event.model_copy(update={"changes": ()}) for event in record.trace)
    bench.store.create(record.id, lambda _: record.model_copy(update={"trace": silent}))
    with pytest.raises(SnapshotCorruptError, match=r"lacks what the patch changes in pkg/core\.py"):
        bench.take_over(scripted_model(DONE))


def test_the_successor_of_a_takeover(bench: RunHarness) -> None:
    """What the predecessor changed must be there when the successor resumes, too."""
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))
    with pytest.raises(ModelError):
        bench.take_over(scripted_model(NOTE.format(2), ModelError("refused")), model_tries=1)
    (thread,) = [each for each in bench.home.threads() if each.startswith("taking")]
    use_first_snapshot(bench)
    with pytest.raises(SnapshotCorruptError, match=LOST.format("notes.txt, pkg/core.py")):
        bench.resume(scripted_model("", SHOW, DONE), thread=thread)
