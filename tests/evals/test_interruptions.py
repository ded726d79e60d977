"""Runs that are killed, interrupted, told to end or out of room go on as if nothing had been."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from graph import open_home
from sandbox import depot
from sandbox.machine import SandboxSpec

from ..chat_server import ChatServer
from ..conftest import missing
from .conftest import (
    ONE_POINT,
    Run,
    comparable,
    isolated,
    killed,
    refused,
    rows,
    rows_so_far,
    start_takeover,
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


def test_terminate_and_resume(small: Path, called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_takeover(*SMALL, "--out", out, "--workers", "2")
    wait_for(lambda: len(rows_so_far(out, "takeovers")) >= 2, process)
    process.terminate()
    _terminated(process)
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(small)
    assert list((out / "machines").iterdir()) == []


def test_a_torn_last_line_does_not_count(called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert called(*ONE_POINT, "--view", "trace", "--out", out).returncode == 0
    (first, last), whole = rows(out), comparable(out)
    journal = out / "takeovers.jsonl"
    journal.write_bytes(journal.read_bytes()[:-40])
    assert called("--resume", "--out", out).returncode == 0
    assert rows(out)[0] == first
    assert rows(out)[1] != last
    assert comparable(out) == whole


def test_one_run_at_a_time_in_a_directory(called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start_takeover(*SMALL, "--out", out)
    wait_for((out / "takeover.sqlite").exists, first)
    refused(called("--resume", "--out", out), "another run is at work")
    killed(first)


def _terminated(process: subprocess.Popen[str]) -> None:
    """It ends as one that SIGTERM ends, in one line, and says how to go on."""
    _, err = process.communicate(timeout=300)
    assert process.returncode == 143, err
    assert len(err.splitlines()) == 1, err
    assert "--resume" in err


class NoteTaker:
    """A model that writes a line a step, and stops at the door of one step until somebody has acted."""

    STEPS = 6

    def __init__(self, server: ChatServer, stop_at: int | None = None) -> None:
        self.asked: Counter[tuple[str, int]] = Counter()
        """How often each step of each conversation was asked for."""
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._stop_at = stop_at
        server.answer = self.answer

    def answer(self, request: dict[str, Any]) -> tuple[int, bytes]:
        messages = request["messages"]
        step = sum(message["role"] == "assistant" for message in messages)
        told = takewhile(lambda message: message["role"] != "assistant", messages)
        self.asked["".join(message["content"] for message in told), step] += 1
        if step == self._stop_at and not self.reached.is_set():
            self.reached.set()
            self.go_on.wait(300)
        if step == self.STEPS:
            return ChatServer.reply("<finish>It is written down.</finish>")
        return ChatServer.reply(f"I note it.\n\n```bash\necho {step} >> notes.txt\n```")


def _noting(server: ChatServer, out: Path, *more: str) -> tuple[str | Path, ...]:
    asked = ("--successor", "openai:m", "--base-url", server.url, "--view", "trace", "--out", out)
    return (*asked, *ONE_POINT, *isolated(), *more)


@pytest.fixture(scope="module")
def noted(called: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the note taker that nothing disturbed."""
    server, out = ChatServer(), tmp_path_factory.mktemp("noted") / "out"
    taker = NoteTaker(server)
    done = called(*_noting(server, out))
    server.close()
    assert done.returncode == 0, done.stderr
    assert len(taker.asked) == 2 * (taker.STEPS + 1)
    return out


def _at_step_four(
    server: ChatServer, out: Path, workers: str = "1"
) -> tuple[subprocess.Popen[str], NoteTaker]:
    """A run of the note taker that waits for its fourth reply."""
    taker = NoteTaker(server, stop_at=4)
    process = start_takeover(*_noting(server, out, "--workers", workers))
    assert taker.reached.wait(300), process.communicate()
    return process, taker


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_takeover_that_is_killed_goes_on_where_it_stood(
    called: Run, chat_server: ChatServer, noted: Path, tmp_path: Path, workers: str
) -> None:
    out = tmp_path / "out"
    process, taker = _at_step_four(chat_server, out, workers)
    killed(process)
    taker.go_on.set()
    assert len(rows(out)) < 2
    machines_of_run = depot.runs() / json.loads((out / "config.json").read_text())["run_id"]
    assert any(machines_of_run.iterdir())
    with open_home(out) as home:
        begun = {thread: len(home.history(thread)) for thread in home.threads()}
    done = called("--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    assert comparable(out) == comparable(noted)
    notes = [f"+{step}" for step in range(taker.STEPS)]
    assert all([line for line in row["patch"].splitlines() if line in notes] == notes for row in rows(out))
    # Only what was being asked for when it died is asked for again.
    again = [key for key, times in taker.asked.items() if times > 1]
    assert all(times <= 2 for times in taker.asked.values())
    assert len(again) == len({conversation for conversation, _ in again}) <= int(workers)
    assert 4 in {step for _, step in again}
    with open_home(out) as home:
        assert all(len(home.history(thread)) >= count for thread, count in begun.items())
        assert len(home.threads()) == 3
    assert list((out / "machines").iterdir()) == []
    assert not machines_of_run.exists()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_takeover_that_is_told_to_end_keeps_the_reply_that_it_waits_for(
    called: Run, chat_server: ChatServer, noted: Path, tmp_path: Path, workers: str
) -> None:
    out = tmp_path / "out"
    process, taker = _at_step_four(chat_server, out, workers)
    process.terminate()
    time.sleep(2)  # so that its workers are told, too, before the reply comes
    taker.go_on.set()
    _terminated(process)
    assert len(rows(out)) < 2
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(noted)
    assert set(taker.asked.values()) == {1}


def test_a_takeover_whose_machine_is_lost_fails_once_and_then_begins_anew(
    called: Run, chat_server: ChatServer, noted: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process, taker = _at_step_four(chat_server, out)
    killed(process)
    taker.go_on.set()
    for archive in (out / "machines").glob("*/*"):
        archive.unlink()
    done = called("--resume", "--out", out)
    assert done.returncode == 3, (done.stdout, done.stderr)
    (lost,) = [row for row in rows(out) if row["outcome"] == "infrastructure_failure"]
    assert "cannot go on where it stood" in lost["detail"]
    assert "begins anew" in lost["detail"]
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(noted)


def test_a_thread_that_somebody_else_holds_fails_until_it_is_free(
    takeover: Run, called: Run, tmp_path: Path
) -> None:
    out, thread = tmp_path / "out", "takeover.galley__galley-31.first_source_edit.repository.1"
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
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode != 0:
        missing("nothing can be mounted here, which takes root")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_a_full_disk_stops_the_run_and_loses_nothing(called: Run, small: Path, disk: Path) -> None:
    out, filler = disk / "out", disk / "filler"
    process = start_takeover(*SMALL, "--out", out)
    wait_for(lambda: len(rows_so_far(out, "takeovers")) >= 1, process)
    _fill(filler)
    told, err = process.communicate(timeout=300)
    assert process.returncode == 4, (told, err)
    assert len(err.splitlines()) == 1
    assert "no space left" in err
    filler.unlink()
    done = rows_so_far(out, "takeovers")
    assert 1 <= len(done) < ITS_ROWS
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(small)


def _fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


def test_a_tampered_record_fails_its_takeovers_and_nothing_else(called: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert called("--task-ids", "galley__galley-31", "--view", "repository", "--out", out).returncode == 0
    whole = comparable(out)
    path = out / "records" / "galley__galley-31.first_validation" / "record.json"
    good = path.read_text()
    path.write_text(good.replace("reproduce_issue.py", "reproduce_it.py", 1))
    (out / "takeovers.jsonl").unlink()
    done = called("--resume", "--out", out)
    assert done.returncode == 3, (done.stdout, done.stderr)
    failed = [row for row in rows(out) if row["outcome"] == "infrastructure_failure"]
    assert {row["record_id"] for row in failed} == {"galley__galley-31.first_validation"}
    assert all("does not match its digest" in row["detail"] for row in failed)
    path.write_text(good)
    assert called("--resume", "--out", out).returncode == 0
    assert comparable(out) == whole
