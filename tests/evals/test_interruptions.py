"""Killed, interrupted and terminated runs and runs on a full disk resume with the same results."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from langgraph_takeover import open_home
from langgraph_takeover.graph.runs.stop_requests import WAITING
from langgraph_takeover.sandbox.interface import SandboxSpec

from ..chat_server import ChatServer
from ..conftest import fill_disk, mount_small_disk
from ..random_examples import draw
from .conftest import (
    ONE_POINT,
    RunCommand,
    assert_refused,
    assert_terminated,
    comparable_rows,
    delete_stage_rows,
    isolated_sandbox_options,
    kill_process,
    read_journal_rows,
    read_rows,
    start_takeover,
    wait_for,
)

SMALL = ("--task-ids", "ledger__ledger-12", "--view", "trace")
ITS_ROWS = 6  # three points under two views


@pytest.fixture(scope="module")
def small(run_main: RunCommand, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small uninterrupted run."""
    out = tmp_path_factory.mktemp("small") / "out"
    assert run_main(*SMALL, "--out", out).returncode == 0
    assert len(read_rows(out)) == ITS_ROWS
    return out


@pytest.mark.slow
def test_kill_and_resume(small: Path, takeover: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_takeover(*SMALL, "--out", out, "--workers", "2")
    wait_for(lambda: len(read_journal_rows(out, "takeovers")) >= 3, process)
    kill_process(process)
    assert len(read_journal_rows(out, "takeovers")) < ITS_ROWS
    done = takeover("--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    assert comparable_rows(out) == comparable_rows(small)
    assert list((out / "snapshots").iterdir()) == []


@pytest.mark.slow
def test_interrupt_and_resume(small: Path, run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_takeover(*SMALL, "--out", out, "--workers", "2")
    wait_for(lambda: len(read_journal_rows(out, "takeovers")) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
    assert run_main("--resume", "--out", out).returncode == 0
    assert comparable_rows(out) == comparable_rows(small)


@pytest.mark.slow
def test_starting_workers_leave_an_interrupt_to_their_parent(tmp_path: Path) -> None:
    all_views = ("--task-ids", "ledger__ledger-12", "--view", "all")  # the run must outlast the signals
    process = start_takeover(*all_views, "--out", tmp_path / "out", "--workers", "2")
    workers: list[psutil.Process] = []

    def begun() -> bool:
        workers.clear()
        for each in psutil.Process(process.pid).children():
            with suppress(psutil.Error):  # the process has ended
                workers.extend([each] if "spawn_main" in " ".join(each.cmdline()) else [])
        return len(workers) == 2

    wait_for(begun, process)
    for _ in range(20):  # a terminal signals all processes, whatever they import at that moment
        for each in workers:
            each.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert all(each.status() != psutil.STATUS_ZOMBIE for each in workers)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert [line for line in err.splitlines() if line and line != WAITING] == [err.splitlines()[-1]], err


@pytest.mark.slow
def test_terminate_and_resume(small: Path, run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_takeover(*SMALL, "--out", out, "--workers", "2")
    wait_for(lambda: len(read_journal_rows(out, "takeovers")) >= 2, process)
    process.terminate()
    assert_terminated(process)
    assert run_main("--resume", "--out", out).returncode == 0
    assert comparable_rows(out) == comparable_rows(small)
    assert list((out / "snapshots").iterdir()) == []


@contextmanager
def start_in_call(
    server: ChatServer, out: Path, workers: str, ignored: tuple[signal.Signals, ...] = ()
) -> Iterator[tuple[subprocess.Popen[str], threading.Event]]:
    """A run whose successor waits for a reply until the event, started by a parent that ignores signals."""
    release = threading.Event()

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        release.wait(300)
        return server.reply("<finish>It is done.</finish>")

    server.answer = answer
    options = ("--successor", "openai:m", "--notes-model", "builtin:oracle", "--view", "repository")
    address = ("--base-url", server.url, *isolated_sandbox_options())
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        process = start_takeover(*ONE_POINT, *options, *address, "--out", out, "--workers", workers)
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
    try:
        wait_for(lambda: bool(server.requests), process)
        yield process, release
    finally:
        release.set()
        kill_process(process)


BACKGROUND = (signal.SIGINT, signal.SIGHUP)
"""The signals that `nohup COMMAND &` ignores."""


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("workers", draw(["1", "2"], 1))
@pytest.mark.parametrize(
    ("number", "ignored", "code"),
    [(signal.SIGTERM, (), 143), (signal.SIGINT, (), 130), (signal.SIGINT, BACKGROUND, 130)],
    ids=["SIGTERM", "SIGINT", "SIGINT-background"],
)
def test_a_signal_waits_for_the_call_in_flight_and_a_second_one_does_not(
    chat_server: ChatServer,
    tmp_path: Path,
    number: signal.Signals,
    ignored: tuple[signal.Signals, ...],
    code: int,
    workers: str,
) -> None:
    with start_in_call(chat_server, tmp_path / "out", workers, ignored) as (process, _):
        assert process.stderr is not None
        process.send_signal(number)
        assert next(line for line in process.stderr if line.strip()) == f"{WAITING}\n"
        process.send_signal(number)
        # The endpoint has not answered yet.
        _, err = process.communicate(timeout=60)
        assert (process.returncode, "Traceback" in err) == (code, False), err
        assert "--resume" in err.splitlines()[-1]


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_reply_in_flight_is_kept(
    chat_server: ChatServer, run_main: RunCommand, tmp_path: Path, workers: str
) -> None:
    out = tmp_path / "out"
    with start_in_call(chat_server, out, workers) as (process, release):
        assert process.stderr is not None
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline() == f"{WAITING}\n"
        release.set()
        _, err = process.communicate(timeout=120)
        assert (process.returncode, len(err.splitlines())) == (143, 1), err
    assert run_main("--resume", "--out", out).returncode == 0
    assert [row["stop_reason"] for row in read_rows(out)] == ["finished"]
    assert len(chat_server.requests) == 1


@pytest.mark.slow
def test_row_files_are_exported_from_the_journal(run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_main(*ONE_POINT, "--view", "trace", "--out", out).returncode == 0
    exported = out / "takeovers.jsonl"
    whole = exported.read_bytes()
    exported.write_bytes(whole[:-40])
    assert run_main("--resume", "--out", out).returncode == 0
    assert exported.read_bytes() == whole
    assert [json.loads(line) for line in whole.splitlines()] == read_rows(out)


@pytest.mark.slow
def test_one_run_at_a_time_in_a_directory(run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start_takeover(*SMALL, "--out", out)
    wait_for((out / ".repositories").exists, first)
    assert_refused(run_main("--resume", "--out", out), "another run uses this directory")
    kill_process(first)


@pytest.mark.slow
def test_a_held_thread_fails_until_it_is_free(
    takeover: RunCommand, run_main: RunCommand, tmp_path: Path
) -> None:
    out, thread = tmp_path / "out", "takeover.galley__galley-31.first_source_edit.repository.oracle.1"
    spec = SandboxSpec(backend="process", directory=tmp_path)
    with open_home(out) as home, home.open_session(thread, spec):
        assert takeover(*ONE_POINT, "--view", "repository", "--out", out).returncode == 3
    (row,) = read_rows(out)
    assert row["outcome"] == "infrastructure_failure"
    assert f"thread '{thread}' is held by process {os.getpid()}" in row["detail"]
    assert run_main("--resume", "--out", out).returncode == 0
    assert [row["outcome"] for row in read_rows(out)] == ["graded"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate disk, far larger than a small run needs."""
    with mount_small_disk(tmp_path / "disk", "100m") as directory:
        yield directory


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_loses_nothing(run_main: RunCommand, small: Path, disk: Path) -> None:
    out = disk / "out"
    process = start_takeover(*SMALL, "--out", out)
    wait_for(lambda: len(read_journal_rows(out, "takeovers")) >= 1, process)
    filler = fill_disk(disk)
    output, err = process.communicate(timeout=300)
    assert process.returncode == 4, (output, err)
    assert len(err.splitlines()) == 1
    assert "no space left" in err
    filler.unlink()
    done = read_journal_rows(out, "takeovers")
    assert 1 <= len(done) < ITS_ROWS
    assert run_main("--resume", "--out", out).returncode == 0
    assert comparable_rows(out) == comparable_rows(small)


@pytest.mark.slow
def test_a_lost_database_is_no_usage_error(run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_main(*ONE_POINT, "--view", "repository", "--out", out).returncode == 0
    done = read_rows(out)
    for part in out.glob("takeover.sqlite*"):
        part.unlink()
    (out / "takeover.sqlite").write_text("This is a letter. " * 100)
    lost = run_main("--resume", "--out", out)
    assert lost.returncode == 3
    (line,) = lost.stderr.splitlines()
    assert "it is no SQLite database" in line
    assert line.endswith(f"Resume with: takeover --resume --out {out}")
    assert read_rows(out) == done


@pytest.mark.slow
def test_a_damaged_checkpoint_fails_its_takeover_once_and_never_silently(
    run_main: RunCommand, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run_main(*ONE_POINT, "--view", "repository", "--out", out).returncode == 0
    whole = comparable_rows(out)
    with closing(sqlite3.connect(out / "takeover.sqlite")) as database:
        thread = "thread_id LIKE 'takeover.%'"
        newest = f"(SELECT max(checkpoint_id) FROM checkpoints WHERE {thread})"
        database.execute(f"DELETE FROM checkpoints WHERE {thread} AND checkpoint_id = {newest}")
        database.commit()
    delete_stage_rows(out, "takeovers")
    assert run_main("--resume", "--out", out).returncode == 3
    (failed,) = read_rows(out)
    assert failed["outcome"] == "infrastructure_failure"
    assert re.search(
        "checkpoint .* is damaged: it is missing .* the resumed run starts the thread again", failed["detail"]
    )
    assert run_main("--resume", "--out", out).returncode == 0
    assert comparable_rows(out) == whole


@pytest.mark.slow
def test_a_tampered_record_fails_its_takeovers_and_nothing_else(run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_main("--task-ids", "galley__galley-31", "--view", "repository", "--out", out).returncode == 0
    whole = comparable_rows(out)
    path = out / "records" / "galley__galley-31.first_validation" / "record.json"
    good = path.read_text()
    path.write_text(good.replace("reproduce_issue.py", "reproduce_it.py", 1))
    delete_stage_rows(out, "takeovers")
    done = run_main("--resume", "--out", out)
    assert done.returncode == 3, (done.stdout, done.stderr)
    failed = [row for row in read_rows(out) if row["outcome"] == "infrastructure_failure"]
    assert {row["record_id"] for row in failed} == {"galley__galley-31.first_validation"}
    assert all("does not match its digest" in row["detail"] for row in failed)
    path.write_text(good)
    assert run_main("--resume", "--out", out).returncode == 0
    assert comparable_rows(out) == whole
