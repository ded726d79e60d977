"""Takeovers that are interrupted while they wait for a reply resume at exactly that step."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover import open_home
from langgraph_takeover.errors import ThreadNotFoundError
from langgraph_takeover.sandbox import ownership

from ..chat_server import ChatServer
from .conftest import (
    ONE_POINT,
    RunCommand,
    assert_terminated,
    comparable_rows,
    isolated_sandbox_options,
    kill_process,
    read_rows,
    start_takeover,
)


class NoteTaker:
    """A model that appends a line per step, and blocks at one step until the test releases it."""

    STEPS = 6

    def __init__(self, server: ChatServer, stop_at: int | None = None) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """How often the endpoint received each step of each conversation."""
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._stop_at = stop_at
        server.answer = self.answer

    def answer(self, request: dict[str, Any]) -> tuple[int, bytes]:
        messages = request["messages"]
        step = sum(message["role"] == "assistant" for message in messages)
        prompt = takewhile(lambda message: message["role"] != "assistant", messages)
        self.requests["".join(message["content"] for message in prompt), step] += 1
        if step == self._stop_at and not self.reached.is_set():
            self.reached.set()
            self.go_on.wait(300)
        if step == self.STEPS:
            return ChatServer.reply("<finish>It is written down.</finish>")
        return ChatServer.reply(f"I note it.\n\n```bash\necho {step} >> notes.txt\n```")


def _noting(server: ChatServer, out: Path, *more: str) -> tuple[str | Path, ...]:
    arguments = ("--successor", "openai:m", "--base-url", server.url, "--view", "trace", "--out", out)
    return (*arguments, *ONE_POINT, *isolated_sandbox_options(), *more)


@pytest.fixture(scope="module")
def note_taker_run(run_main: RunCommand, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of the note taker."""
    server, out = ChatServer(), tmp_path_factory.mktemp("noted") / "out"
    taker = NoteTaker(server)
    done = run_main(*_noting(server, out))
    server.close()
    assert done.returncode == 0, done.stderr
    assert len(taker.requests) == 2 * (taker.STEPS + 1)
    return out


def _start_stopped_run(
    server: ChatServer, out: Path, workers: str = "1"
) -> tuple[subprocess.Popen[str], NoteTaker]:
    """A run of the note taker that waits for the reply of step 4."""
    taker = NoteTaker(server, stop_at=4)
    process = start_takeover(*_noting(server, out, "--workers", workers))
    assert taker.reached.wait(300), process.communicate()
    return process, taker


def _drop_usage(rows: dict[tuple[Any, ...], dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows without what a call of unknown tokens changes."""
    usage = ("prompt_tokens", "completion_tokens", "uncounted_calls")
    return {
        key: {name: value for name, value in row.items() if name not in usage} for key, row in rows.items()
    }


def _list_named(output: str, before: str) -> set[str]:
    """What a command names, each in a line of its own."""
    return {line.removeprefix(before) for line in output.splitlines() if line.startswith(before)}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_killed_takeover_resumes_at_its_step(
    run_main: RunCommand, chat_server: ChatServer, note_taker_run: Path, tmp_path: Path, workers: str
) -> None:
    out = tmp_path / "out"
    process, taker = _start_stopped_run(chat_server, out, workers)
    kill_process(process)
    taker.go_on.set()
    assert len(read_rows(out)) < 2
    sandboxes_of_run = ownership.runs_directory() / json.loads((out / "config.json").read_text())["run_id"]
    assert any(sandboxes_of_run.iterdir())
    with open_home(out) as home:
        begun = {}
        for thread in home.threads():
            with contextlib.suppress(ThreadNotFoundError):  # one of two workers may have no checkpoint yet
                begun[thread] = len(home.history(thread))
    assert len(begun) >= 2
    left = _list_named(run_main("--resume", "--dry-run", "--out", out).stdout, "--resume removes: ")
    assert left
    owned = json.loads((out / "config.json").read_text())["run_id"]
    command = [sys.executable, "-m", "sandbox", "gc", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    removable = {
        f"{each['kind']} {each['name']} ({each['reason']})"
        for each in found["resources"]
        if each["status"] == "removable" and (each["owner"] or "").startswith(owned)
    }
    assert left <= removable
    assert any(sandboxes_of_run.iterdir()), "naming removes nothing"
    done = run_main("--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    assert _list_named(done.stdout, "removed from the interrupted run: ") == left
    assert _drop_usage(comparable_rows(out)) == _drop_usage(comparable_rows(note_taker_run))
    notes = [f"+{step}" for step in range(taker.STEPS)]
    assert all(
        [line for line in row["patch"].splitlines() if line in notes] == notes for row in read_rows(out)
    )
    # Only the interrupted call is repeated.
    again = [key for key, times in taker.requests.items() if times > 1]
    assert all(times <= 2 for times in taker.requests.values())
    assert len(again) == len({conversation for conversation, _ in again}) <= int(workers)
    assert 4 in {step for _, step in again}
    # The endpoint may bill what the kill cut off, also a call that it had just begun to send.
    assert len(again) <= sum(row["uncounted_calls"] for row in read_rows(out)) <= int(workers)
    with open_home(out) as home:
        assert all(len(home.history(thread)) >= count for thread, count in begun.items())
        assert len(home.threads()) == 3
    assert list((out / "snapshots").iterdir()) == []
    assert not sandboxes_of_run.exists()


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_terminated_takeover_keeps_the_pending_reply(
    run_main: RunCommand, chat_server: ChatServer, note_taker_run: Path, tmp_path: Path, workers: str
) -> None:
    out = tmp_path / "out"
    process, taker = _start_stopped_run(chat_server, out, workers)
    process.terminate()
    time.sleep(2)  # so that its workers get the signal too, before the reply arrives
    taker.go_on.set()
    assert_terminated(process)
    assert len(read_rows(out)) < 2
    assert run_main("--resume", "--out", out).returncode == 0
    assert comparable_rows(out) == comparable_rows(note_taker_run)
    assert set(taker.requests.values()) == {1}


@pytest.mark.slow
def test_a_takeover_with_a_lost_sandbox_fails_once_and_then_restarts(
    run_main: RunCommand, chat_server: ChatServer, note_taker_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process, taker = _start_stopped_run(chat_server, out)
    kill_process(process)
    taker.go_on.set()
    for archive in (out / "snapshots").glob("*/*"):
        archive.unlink()
    done = run_main("--resume", "--out", out)
    assert done.returncode == 3, (done.stdout, done.stderr)
    (lost,) = [row for row in read_rows(out) if row["outcome"] == "infrastructure_failure"]
    assert "cannot resume" in lost["detail"]
    assert "the resumed run starts it again" in lost["detail"]
    assert run_main("--resume", "--out", out).returncode == 0
    assert _drop_usage(comparable_rows(out)) == _drop_usage(comparable_rows(note_taker_run))
