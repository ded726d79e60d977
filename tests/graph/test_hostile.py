"""What a record, or a row of the database, that somebody else wrote can do to this host: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from handoff.ledger.store import leases
from handoff.record import RECORD_FILE, RecordRefused
from sandbox import remove_leftovers

from .conftest import DONE, EDIT, Bench, scripted


@pytest.mark.parametrize("owner", ["../victim", "{victim}", "", ".", "a/../../victim", "x\n"])
def test_a_lease_that_names_a_path_removes_nothing(bench: Bench, tmp_path: Path, owner: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    owner = owner.format(victim=victim)
    bench.run(scripted(EDIT, DONE))
    with bench.home.ledger.writing() as connection:
        connection.execute(update(leases).values(place=f"host {owner}", process="", expires_at=1.0))
    assert bench.resume(scripted(EDIT, DONE)).stop_reason == "finished"
    assert victim.is_dir()
    with pytest.raises(ValueError, match="is the name of no run"):
        remove_leftovers("host", owner)


@pytest.mark.parametrize("field", ["digest", "base", "location"])
def test_a_record_that_names_a_path_is_refused(bench: Bench, tmp_path: Path, field: str) -> None:
    bench.run(scripted(EDIT, DONE), points=("first_source_edit",))
    record = bench.store.load("run.first_source_edit")
    evil = record.model_copy(
        update={"snapshot": record.snapshot.model_copy(update={field: f"/../../{tmp_path}/new"})}
    ).sealed()
    (bench.store.directory(record.id) / RECORD_FILE).write_text(
        evil.model_dump_json(exclude={"notes", "review"})
    )
    before = set(tmp_path.iterdir())
    with pytest.raises(RecordRefused, match=rf"snapshot\.{field}"):
        bench.take(scripted(DONE))
    assert set(tmp_path.iterdir()) == before
