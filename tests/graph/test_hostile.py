"""Records and database rows from others cannot harm this host."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from langgraph_takeover.handoff.ledger.store import leases
from langgraph_takeover.handoff.records.record import RECORD_FILE, RecordError
from langgraph_takeover.sandbox import remove_stale_resources

from .conftest import DONE, EDIT, RunHarness, scripted_model


@pytest.mark.cases(2)
@pytest.mark.parametrize("owner", ["../victim", "{victim}", "", ".", "a/../../victim", "x\n"])
def test_a_lease_that_names_a_path_removes_nothing(bench: RunHarness, tmp_path: Path, owner: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    owner = owner.format(victim=victim)
    bench.run(scripted_model(EDIT, DONE))
    with bench.home.ledger.write_transaction() as connection:
        connection.execute(update(leases).values(place=f"host {owner}", process="", expires_at=1.0))
    assert bench.resume(scripted_model(EDIT, DONE)).stop_reason == "finished"
    assert victim.is_dir()
    with pytest.raises(ValueError, match="not the name of a run"):
        remove_stale_resources("host", owner)


@pytest.mark.cases(1)
@pytest.mark.parametrize("field", ["digest", "base", "location"])
def test_a_record_that_names_a_path_is_refused(bench: RunHarness, tmp_path: Path, field: str) -> None:
    bench.run(scripted_model(EDIT, DONE), points=("first_source_edit",))
    record = bench.store.load("run.first_source_edit")
    evil = record.model_copy(
        update={"snapshot": record.snapshot.model_copy(update={field: f"/../../{tmp_path}/new"})}
    ).seal()
    (bench.store.directory(record.id) / RECORD_FILE).write_text(
        evil.model_dump_json(exclude={"notes", "review"})
    )
    before = set(tmp_path.iterdir())
    with pytest.raises(RecordError, match=rf"snapshot\.{field}"):
        bench.take_over(scripted_model(DONE))
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "command",
    [
        "python " * 3_000 + "pytest",
        "coverage run " * 3_000 + "pytest",
        "true && " * 3_000 + "python3 -m unittest -q",
    ],
    ids=lambda command: str(command)[:12],
)
def test_a_run_survives_a_deeply_nested_command(bench: RunHarness, command: str) -> None:
    state = bench.run(
        scripted_model(EDIT, f"```bash\n{command} # deep\n```", DONE), points=("first_validation",)
    )
    assert state["stop_reason"] == "finished"
