"""Runs that are killed, interrupted, told to end or out of room go on as if nothing had been."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from graph import open_home
from sandbox.machine import SandboxSpec

from ..conftest import fill, small_disk
from .conftest import (
    ONE_POINT,
    Run,
    comparable,
    forgotten,
    killed,
    refused,
    rows,
    rows_so_far,
    start_takeover,
    terminated,
    wait_for,
)

SMALL = ("--task-ids", "ledger__ledger-12", "--view", "trace")
ITS_ROWS = 6  # three points under two views


@pytest.fixture(scope="module")
def small(called: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that nothing disturbed."""
    out = tmp_path_factory.mktemp("small") / "out"
    assert called(*SMALL, "--out", out).returncode == 0
    assert len(rows(out)) == ITS_ROWS
    return out


def test_kill_and_resume(small: Path, takeover: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_takeover(*SMALL, "--out", out, "--workers", "2")
    wait_for(lambda: len(rows_so_far(out, "takeovers")) >= 3, process)
    killed(process)
    assert len(rows_so_far(out, "takeovers")) < ITS_ROWS
    done = takeover("--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    assert comparable(out) == comparable(small)
    assert list((out / "machines").iterdir()) == []


@pytest.mark.slow
def test_interrupt_and_resume(small: Path, called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_takeover(*SMALL, "--out", out, "--workers", "2")
    wait_for(lambda: len(rows_so_far(out, "takeovers")) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(small)


@pytest.mark.slow
def test_workers_that_begin_leave_an_interrupt_to_their_parent(tmp_path: Path) -> None:
    process = start_takeover(*SMALL, "--out", tmp_path / "out", "--workers", "2")
    workers: list[psutil.Process] = []

    def begun() -> bool:
        workers.clear()
        for each in psutil.Process(process.pid).children():
            with suppress(psutil.Error):  # it is over already
                workers.extend([each] if "spawn_main" in " ".join(each.cmdline()) else [])
        return len(workers) == 2

    wait_for(begun, process)
    for _ in range(20):  # a terminal tells them all, whatever they import at that moment
        for each in workers:
            each.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert all(each.status() != psutil.STATUS_ZOMBIE for each in workers)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert len(err.strip().splitlines()) == 1, err


@pytest.mark.slow
def test_terminate_and_resume(small: Path, called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_takeover(*SMALL, "--out", out, "--workers", "2")
    wait_for(lambda: len(rows_so_far(out, "takeovers")) >= 2, process)
    process.terminate()
    terminated(process)
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(small)
    assert list((out / "machines").iterdir()) == []


def test_the_files_of_rows_are_made_of_the_journal(called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert called(*ONE_POINT, "--view", "trace", "--out", out).returncode == 0
    exported = out / "takeovers.jsonl"
    whole = exported.read_bytes()
    exported.write_bytes(whole[:-40])
    assert called("--resume", "--out", out).returncode == 0
    assert exported.read_bytes() == whole
    assert [json.loads(line) for line in whole.splitlines()] == rows(out)


def test_one_run_at_a_time_in_a_directory(called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start_takeover(*SMALL, "--out", out)
    wait_for((out / ".repositories").exists, first)
    refused(called("--resume", "--out", out), "another run is at work")
    killed(first)


@pytest.mark.slow
def test_a_thread_that_somebody_else_holds_fails_until_it_is_free(
    takeover: Run, called: Run, tmp_path: Path
) -> None:
    out, thread = tmp_path / "out", "takeover.galley__galley-31.first_source_edit.repository.oracle.1"
    spec = SandboxSpec(backend="process", directory=tmp_path)
    with open_home(out) as home, home.session(thread, spec):
        assert takeover(*ONE_POINT, "--view", "repository", "--out", out).returncode == 3
    (row,) = rows(out)
    assert row["outcome"] == "infrastructure_failure"
    assert f"thread '{thread}' is held by process {os.getpid()}" in row["detail"]
    assert called("--resume", "--out", out).returncode == 0
    assert [row["outcome"] for row in rows(out)] == ["graded"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, far larger than a small run needs."""
    with small_disk(tmp_path / "disk", "100m") as place:
        yield place


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_loses_nothing(called: Run, small: Path, disk: Path) -> None:
    out = disk / "out"
    process = start_takeover(*SMALL, "--out", out)
    wait_for(lambda: len(rows_so_far(out, "takeovers")) >= 1, process)
    filler = fill(disk)
    told, err = process.communicate(timeout=300)
    assert process.returncode == 4, (told, err)
    assert len(err.splitlines()) == 1
    assert "no space left" in err
    filler.unlink()
    done = rows_so_far(out, "takeovers")
    assert 1 <= len(done) < ITS_ROWS
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(small)


def test_a_database_that_is_lost_is_no_usage_error(called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert called(*ONE_POINT, "--view", "repository", "--out", out).returncode == 0
    done = rows(out)
    for part in out.glob("takeover.sqlite*"):
        part.unlink()
    (out / "takeover.sqlite").write_text("This is a letter. " * 100)
    lost = called("--resume", "--out", out)
    assert lost.returncode == 3
    (line,) = lost.stderr.splitlines()
    assert "it is no SQLite database" in line
    assert line.endswith(f"Go on with: python -m evals.takeover --resume --out {out}")
    assert rows(out) == done


def test_a_damaged_checkpoint_fails_its_takeover_once_and_never_silently(called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert called(*ONE_POINT, "--view", "repository", "--out", out).returncode == 0
    whole = comparable(out)
    with closing(sqlite3.connect(out / "takeover.sqlite")) as database:
        thread = "thread_id LIKE 'takeover.%'"
        newest = f"(SELECT max(checkpoint_id) FROM checkpoints WHERE {thread})"
        database.execute(f"DELETE FROM checkpoints WHERE {thread} AND checkpoint_id = {newest}")
        database.commit()
    forgotten(out, "takeovers")
    assert called("--resume", "--out", out).returncode == 3
    (failed,) = rows(out)
    assert failed["outcome"] == "infrastructure_failure"
    assert re.search("checkpoint .* is damaged: it has vanished; .* begins anew", failed["detail"])
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == whole


def test_a_tampered_record_fails_its_takeovers_and_nothing_else(called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert called("--task-ids", "galley__galley-31", "--view", "repository", "--out", out).returncode == 0
    whole = comparable(out)
    path = out / "records" / "galley__galley-31.first_validation" / "record.json"
    good = path.read_text()
    path.write_text(good.replace("reproduce_issue.py", "reproduce_it.py", 1))
    forgotten(out, "takeovers")
    done = called("--resume", "--out", out)
    assert done.returncode == 3, (done.stdout, done.stderr)
    failed = [row for row in rows(out) if row["outcome"] == "infrastructure_failure"]
    assert {row["record_id"] for row in failed} == {"galley__galley-31.first_validation"}
    assert all("does not match its digest" in row["detail"] for row in failed)
    path.write_text(good)
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == whole
