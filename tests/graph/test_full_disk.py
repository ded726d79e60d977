"""A disk that fills up stops a run with a line that says so; once there is room, the run goes on as if nothing was."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graph import open_home, resume, run
from handoff.ledger import LedgerUnusable, handoffs
from sandbox.machine import OutOfDisk

from ..conftest import fill, small_disk
from .conftest import DONE, FIX, NOTE, PROMPT, SHOW, TEST, Bench, scripted, shown
from .test_delivery import QUICK, UNDERSTOOD, brought, offered

NOTES = [NOTE.format(number) for number in (1, 2, 3)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    with small_disk(tmp_path / "disk", "24m") as place:
        yield place


@pytest.mark.parametrize("on_it", ["database", "home"])
@pytest.mark.parametrize("moment", ["thinking", "acting", "observed"])
def test_a_run_goes_on_once_there_is_room(
    bench: Bench, disk: Path, tmp_path: Path, on_it: str, moment: str
) -> None:
    home_at = disk / "home" if on_it == "home" else tmp_path / "roomy"
    database = f"sqlite:///{disk}/ledger.sqlite" if on_it == "database" else None

    def listen(told: dict[str, Any]) -> None:
        if told["moment"] == moment and told["step"] == 2:
            fill(disk)

    model = scripted(*NOTES, SHOW, DONE)
    given: dict[str, Any] = {"model": model, "sandbox": bench.spec, "points": ()}
    said = LedgerUnusable if on_it == "database" else (LedgerUnusable, OutOfDisk)
    with (
        pytest.raises(said, match=r"disk is full|full; make room") as told,
        open_home(home_at, database) as home,
    ):
        run(home, "thread", "t", PROMPT, on_progress=listen, **given)
    assert "\n" not in str(told.value)

    (disk / "filler").unlink()
    with open_home(home_at, database) as home:
        done = resume(home, "thread", **given)
    assert (done.stop_reason, done.steps) == ("finished", 5)
    assert shown(done.state) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("reply", "errors"),
    [
        (
            "```bash\nhead -c 2000000 /dev/urandom > big; echo 2 >> notes.txt\n```",
            (OutOfDisk, LedgerUnusable),
        ),
        ("long " * 200_000 + "\n\n" + NOTE.format(2), LedgerUnusable),
    ],
    ids=["a machine", "a checkpoint"],
)
def test_something_large_that_there_is_no_room_for(
    disk: Path, tmp_path: Path, reply: str, errors: Any
) -> None:
    model = scripted(NOTE.format(1), reply, SHOW, DONE)

    def listen(moment: dict[str, Any]) -> None:
        if (moment["moment"], moment["step"]) == ("thinking", 1):
            fill(disk)

    with open_home(disk / "home") as home:
        bench = Bench(tmp_path, home)
        with pytest.raises(errors, match=r"disk is full|full; make room") as told:
            bench.run(model, on_progress=listen)
        assert "\n" not in str(told.value)
        assert home.history("thread")[0].step >= 1
    (disk / "filler").unlink()
    with open_home(disk / "home") as home:
        bench.home = home
        assert shown(bench.resume(model).state) == ["1", "2"]
        assert not list(home.machines.glob(".freezing-*"))
    connection = sqlite3.connect(disk / "home" / "takeover.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.parametrize("moment", ["started", "confirmed", "acting"])
def test_a_handoff_goes_on_once_there_is_room(disk: Path, tmp_path: Path, moment: str) -> None:
    def listen(told: dict[str, Any]) -> None:
        if told["moment"] == moment:
            fill(disk)

    model = scripted(UNDERSTOOD, FIX, TEST, DONE)
    with open_home(disk / "home") as home:
        bench = Bench(tmp_path, home)
        found = offered(bench)
        with pytest.raises((LedgerUnusable, OutOfDisk), match=r"disk is full|full; make room") as told:
            brought(bench, found, model, on_progress=listen, patience=QUICK.model_copy(update={"rounds": 1}))
        assert "\n" not in str(told.value)
    (disk / "filler").unlink()
    with open_home(disk / "home") as bench.home:
        done = brought(bench, found, model)
        assert done.handoff.state == "completed"
        assert [each.after for each in handoffs.history(bench.home.ledger, found.id)][-2:] == [
            "active",
            "completed",
        ]
        assert done.outcome is not None
        assert "n * 2" in done.outcome.patch
