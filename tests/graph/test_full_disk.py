"""A disk that fills up stops a run with a line that says so; once there is room, the run goes on as if nothing was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graph import open_home, resume, run
from handoff.ledger import LedgerUnusable
from sandbox.machine import OutOfDisk

from ..conftest import missing
from .conftest import DONE, PROMPT, Bench, scripted

NOTES = [f"```bash\necho {number} >>notes.txt\n```" for number in (1, 2, 3)]
SHOW = "```bash\ncat notes.txt\n```"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode != 0:
        missing("nothing can be mounted here, which takes root")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while filler.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


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
    assert done.state["events"][7]["text"] == "[exit code 0]\n1\n2\n3\n"
