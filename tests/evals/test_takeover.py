"""The main command end to end on the embedded default, disturbed and undisturbed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from graph import open_home
from sandbox.machine import SandboxSpec

from ..chat_server import ChatServer
from .conftest import ROOT, TWO, comparable, rows, start_takeover

Run = Callable[..., subprocess.CompletedProcess[str]]
COLUMNS = {
    *("task_id", "point", "view", "successor", "resolved", "outcome", "events", "llm_calls", "prompt_tokens"),
    *("completion_tokens", "seconds", "first_prompt_chars", "rediscovery_events", "patch", "record_id"),
}


def test_rows_are_complete_and_solved(undisturbed: Path) -> None:
    found = rows(undisturbed)
    points = 5  # ledger has all three, galley's first fix is right, so it has no failure
    assert len(found) == points * 4
    assert all(set(row) >= COLUMNS and row["resolved"] and row["outcome"] == "graded" for row in found)
    by_view = {view: [row for row in found if row["view"] == view] for view in ("repository", "structured")}
    assert {row["record_id"] for row in by_view["repository"]} == {
        row["record_id"] for row in by_view["structured"]
    }
    assert {row["handoff_state"] for row in rows(undisturbed, "labels")} == {
        "already_solved",
        "behavior_broken",
    }


def test_the_views_differ_as_their_information_does(undisturbed: Path) -> None:
    views = json.loads((undisturbed / "summary.json").read_text())["views"]
    events = {view: figures["median_events"] for view, figures in views.items()}
    assert events["trace"] <= events["summary"] <= events["repository"]
    assert events["trace"] <= events["structured"] <= events["repository"]
    assert events["trace"] < events["repository"]
    sizes = {view: figures["median_first_prompt_chars"] for view, figures in views.items()}
    assert sizes["repository"] < sizes["summary"] < sizes["trace"]


def test_records_are_self_contained(undisturbed: Path) -> None:
    for directory in (undisturbed / "records").iterdir():
        assert {path.name for path in directory.iterdir()} == {
            "record.json",
            "notes.json",
            "snapshot.tar.zst",
        }


def test_two_workers_make_the_same_rows(undisturbed: Path, takeover: Run, tmp_path: Path) -> None:
    done = takeover("--view", "all", *TWO, "--out", tmp_path / "out", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert comparable(tmp_path / "out") == comparable(undisturbed)


@pytest.mark.parametrize(
    ("after", "workers"), [("predecessors", "2"), ("takeovers", "1"), ("takeovers_late", "2")]
)
def test_kill_and_resume(undisturbed: Path, takeover: Run, tmp_path: Path, after: str, workers: str) -> None:
    out = tmp_path / "out"
    process = start_takeover("--view", "all", *TWO, "--out", out, "--workers", workers)
    name, _, late = after.partition("_")
    _wait_for(lambda: len(rows_so_far(out, name)) >= (7 if late else 1), process)
    process.kill()
    process.communicate()
    assert len(rows_so_far(out, "takeovers")) < 20
    done = takeover("--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    assert comparable(out) == comparable(undisturbed)
    assert list((out / "machines").iterdir()) == []
    run_id = json.loads((out / "config.json").read_text())["run_id"]
    assert not list(Path("/tmp").glob(f"takeover-{run_id}-*"))


def test_interrupt_and_resume(undisturbed: Path, takeover: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_takeover("--view", "all", *TWO, "--out", out, "--workers", "2")
    _wait_for(lambda: len(rows_so_far(out, "takeovers")) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
    assert takeover("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(undisturbed)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_terminate_and_resume(undisturbed: Path, takeover: Run, tmp_path: Path, workers: str) -> None:
    out = tmp_path / "out"
    process = start_takeover("--view", "all", *TWO, "--out", out, "--workers", workers)
    _wait_for(lambda: len(rows_so_far(out, "takeovers")) >= 2, process)
    process.terminate()
    _terminated(process)
    assert takeover("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(undisturbed)
    assert list((out / "machines").iterdir()) == []


def test_no_machine_is_left_and_every_thread_can_be_looked_back_upon(undisturbed: Path) -> None:
    assert list((undisturbed / "machines").iterdir()) == []
    with open_home(undisturbed) as home:
        for row in rows(undisturbed):
            moments = home.history(f"takeover.{row['record_id']}.{row['view']}.{row['repeat']}")
            assert {moment.step for moment in moments} == set(range(row["steps"] + 1))
        for row in rows(undisturbed, "predecessors"):
            assert home.history(f"predecessor.{row['task_id']}")[0].step == row["steps"]
        assert len(home.threads()) == len(rows(undisturbed)) + len(rows(undisturbed, "predecessors"))


def test_a_torn_last_line_does_not_count(undisturbed: Path, takeover: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert takeover("--view", "all", *TWO, "--out", out).returncode == 0
    journal = out / "takeovers.jsonl"
    journal.write_bytes(journal.read_bytes()[:-40])
    assert takeover("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(undisturbed)


def test_one_run_at_a_time_in_a_directory(takeover: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start_takeover("--view", "all", *TWO, "--out", out)
    _wait_for(lambda: len(rows_so_far(out, "predecessors")) >= 1, first)
    second = takeover("--resume", "--out", out)
    assert second.returncode == 2
    assert "another run is at work" in second.stderr
    first.kill()
    first.communicate()


def test_help_is_light() -> None:
    script = (
        "import sys, runpy\n"
        "sys.argv = ['takeover', '--help']\n"
        "try: runpy.run_module('evals.takeover', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'langgraph', 'langchain_core', 'swebench', 'docker', 'pydantic', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Examples" in done.stdout


def _bad_line(tmp_path: Path) -> str:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"instance_id": "a"}\n{"instance_id": \n')
    return str(path)


def _without_image(tmp_path: Path) -> str:
    row = dict.fromkeys(
        ("problem_statement", "repo", "version", "FAIL_TO_PASS", "eval_script", "log_parser"), "x"
    )
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"instance_id": "a", "eval_type": "pass_and_fail", **row}) + "\n")
    return str(path)


BAD = {
    "view": (("--view", "telepathy"), "there is no view 'telepathy'; there are repository, trace"),
    "point": (("--points", "last_edit"), "there is no point 'last_edit'"),
    "model": (("--model", "gpt-5"), "give openai:NAME, replay:FILE or builtin:oracle"),
    "key": (("--model", "openai:gpt-5"), "OPENAI_API_KEY is not set"),
    "task": (("--task-ids", "ledger__ledger-13"), "no task ledger__ledger-13; it has 4 tasks"),
    "file": (("--tasks", "/nowhere/tasks.jsonl"), "/nowhere/tasks.jsonl: no such file"),
    "parquet": (("--tasks", "README.md"), "is no task file"),
    "ids": (("--task-ids", "@/nowhere/ids.txt"), "/nowhere/ids.txt: No such file"),
    "replay": (("--predecessor", "replay:/nowhere.json"), "/nowhere.json: no such file"),
    "sandbox": (("--sandbox", "cloud"), "there are auto, docker, host, process"),
    "protocol": (("--protocol", "xml"), "there are text, native"),
    "unisolated": (
        ("--sandbox", "process", "--model", "openai:m", "--base-url", "http://127.0.0.1:1/v1"),
        "--allow-unisolated",
    ),
    "no ids": (("--task-ids", ","), "names no task"),
    "resume nothing": (("--resume",), "name the run to go on with by --out"),
    "resume": (("--resume", "--out", "/nowhere/out"), "there is no run to resume"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_usage_is_one_clear_line(takeover: Run, name: str, tmp_path: Path) -> None:
    arguments, message = BAD[name]
    where = () if {"--out", "--resume"} & set(arguments) else ("--out", tmp_path / "out")
    _refused(takeover(*arguments, *where), message)
    assert not (tmp_path / "out").exists()


def test_bad_task_files(takeover: Run, tmp_path: Path) -> None:
    _refused(
        takeover("--tasks", _bad_line(tmp_path), "--out", tmp_path / "out"), "tasks.jsonl: line 2: not JSON"
    )
    model = ("--model", "openai:m", "--base-url", "http://127.0.0.1:1/v1", "--sandbox", "docker")
    _refused(
        takeover("--tasks", _without_image(tmp_path), *model, "--out", tmp_path / "out"), "it names no image"
    )


def test_no_docker_daemon(takeover: Run, tmp_path: Path) -> None:
    done = takeover(
        "--sandbox", "docker", "--out", tmp_path / "out", DOCKER_HOST="unix:///nowhere/docker.sock"
    )
    _refused(done, "no Docker daemon answers")


def test_a_used_directory_is_not_overwritten(undisturbed: Path, takeover: Run) -> None:
    _refused(takeover("--out", undisturbed), "--resume")
    _refused(
        takeover("--resume", "--out", undisturbed, "--repeats", "2"), "--repeats: the run was begun with 1"
    )


def _refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


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
    chosen = ("--task-ids", "galley__galley-31", "--points", "first_source_edit", *_isolated())
    return (*asked, *chosen, *more)


@pytest.fixture(scope="module")
def noted(takeover: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the note taker that nothing disturbed."""
    server, out = ChatServer(), tmp_path_factory.mktemp("noted") / "out"
    taker = NoteTaker(server)
    done = takeover(*_noting(server, out))
    server.close()
    assert done.returncode == 0, done.stderr
    assert len(taker.asked) == 2 * (taker.STEPS + 1)
    return out


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_takeover_that_is_killed_goes_on_where_it_stood(
    takeover: Run, chat_server: ChatServer, noted: Path, tmp_path: Path, workers: str
) -> None:
    out, taker = tmp_path / "out", NoteTaker(chat_server, stop_at=4)
    process = start_takeover(*_noting(chat_server, out, "--workers", workers))
    assert taker.reached.wait(300), process.communicate()
    process.kill()
    process.communicate()
    taker.go_on.set()
    assert len(rows(out)) < 2
    with open_home(out) as home:
        begun = {thread: len(home.history(thread)) for thread in home.threads()}
    done = takeover("--resume", "--out", out)
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


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_takeover_that_is_told_to_end_keeps_the_reply_that_it_waits_for(
    takeover: Run, chat_server: ChatServer, noted: Path, tmp_path: Path, workers: str
) -> None:
    out, taker = tmp_path / "out", NoteTaker(chat_server, stop_at=4)
    process = start_takeover(*_noting(chat_server, out, "--workers", workers))
    assert taker.reached.wait(300), process.communicate()
    process.terminate()
    time.sleep(2)  # so that its workers are told, too, before the reply comes
    taker.go_on.set()
    _terminated(process)
    assert len(rows(out)) < 2
    assert takeover("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(noted)
    assert set(taker.asked.values()) == {1}


def test_a_takeover_whose_machine_is_lost_fails_once_and_then_begins_anew(
    takeover: Run, chat_server: ChatServer, noted: Path, tmp_path: Path
) -> None:
    out, taker = tmp_path / "out", NoteTaker(chat_server, stop_at=4)
    process = start_takeover(*_noting(chat_server, out))
    assert taker.reached.wait(300), process.communicate()
    process.kill()
    process.communicate()
    taker.go_on.set()
    for archive in (out / "machines").glob("*/*"):
        archive.unlink()
    done = takeover("--resume", "--out", out)
    assert done.returncode == 3, (done.stdout, done.stderr)
    (lost,) = [row for row in rows(out) if row["outcome"] == "infrastructure_failure"]
    assert "cannot go on where it stood" in lost["detail"]
    assert "begins anew" in lost["detail"]
    assert takeover("--resume", "--out", out).returncode == 0
    assert comparable(out) == comparable(noted)


def test_a_thread_that_somebody_else_holds_fails_until_it_is_free(takeover: Run, tmp_path: Path) -> None:
    out, thread = tmp_path / "out", "takeover.galley__galley-31.first_source_edit.repository.1"
    spec = SandboxSpec(backend="process", directory=tmp_path)
    chosen = ("--task-ids", "galley__galley-31", "--points", "first_source_edit", "--view", "repository")
    with open_home(out) as home, home.session(thread, spec):
        assert takeover(*chosen, "--out", out).returncode == 3
    (row,) = rows(out)
    assert row["outcome"] == "infrastructure_failure"
    assert f"thread '{thread}' is held by process {os.getpid()}" in row["detail"]
    assert takeover("--resume", "--out", out).returncode == 0
    assert [row["outcome"] for row in rows(out)] == ["graded"]


def test_a_database_that_is_none(takeover: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "takeover.sqlite").write_text("This is a letter. " * 100)
    _refused(takeover("--out", out), "it is no SQLite database")


FAILURES: dict[str, tuple[Callable[[ChatServer], tuple[int, bytes]], str]] = {
    "401": (
        lambda s: (401, b'{"error": {"message": "wrong key", "code": "invalid_api_key"}}'),
        "answered 401",
    ),
    "429": (lambda s: (429, b'{"error": {"message": "slow down"}}'), "answered 429"),
    "garbage": (lambda s: (200, b"<html>hello</html>"), "endpoint"),
    "no choices": (lambda s: (200, b'{"id": "1", "object": "chat.completion", "choices": []}'), "malformed"),
    "cut": (lambda s: s.reply("half a rep", finish_reason=None), "cut off"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_endpoint_is_an_outcome_and_can_be_resumed(
    takeover: Run, chat_server: ChatServer, tmp_path: Path, name: str
) -> None:
    answer, message = FAILURES[name]
    out = tmp_path / "out"
    chat_server.answer = lambda request: answer(chat_server)
    asked = ("--successor", "openai:m", "--base-url", chat_server.url, "--notes-model", "builtin:oracle")
    chosen = ("--task-ids", "galley__galley-31", "--points", "first_source_edit", "--view", "trace")
    done = takeover(*asked, *chosen, *_isolated(), "--out", out)
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert [row["outcome"] for row in rows(out)] == ["infrastructure_failure"] * 2
    assert all(row["resolved"] is None and message in row["detail"] for row in rows(out)), rows(out)
    chat_server.answer = lambda request: chat_server.reply("<finish>It is done.</finish>")
    assert takeover("--resume", "--out", out).returncode == 0
    assert [(row["outcome"], row["stop_reason"]) for row in rows(out)] == [("graded", "finished")] * 2


def test_no_endpoint_at_all(takeover: Run, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    out = tmp_path / "out"
    done = takeover("--model", "openai:m", "--base-url", url, "--limit", "1", *_isolated(), "--out", out)
    assert done.returncode == 3
    assert "could not be reached" in rows(out, "predecessors")[0]["detail"]


def test_context_overflow_is_graded_as_it_stands(
    takeover: Run, chat_server: ChatServer, tmp_path: Path
) -> None:
    error = {"message": "maximum context length is 8", "code": "context_length_exceeded", "type": "invalid"}
    chat_server.answer = lambda request: (400, json.dumps({"error": error}).encode())
    row = _one_takeover(takeover, chat_server, tmp_path)
    assert (row["outcome"], row["stop_reason"], row["resolved"]) == ("graded", "context_overflow", True)


def test_a_model_that_never_finishes_stops_at_its_cap(
    takeover: Run, chat_server: ChatServer, tmp_path: Path
) -> None:
    chat_server.answer = lambda request: chat_server.reply("I look.\n\n```bash\nls\n```")
    row = _one_takeover(takeover, chat_server, tmp_path, "--max-steps", "7", "--max-reply-tokens", "99")
    assert {request["max_completion_tokens"] for request in chat_server.requests} == {99}
    assert (row["stop_reason"], row["steps"], row["resolved"]) == ("max_steps", 7, True)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (700, 70)


def test_a_token_cap_stops_too(takeover: Run, chat_server: ChatServer, tmp_path: Path) -> None:
    look = chat_server.reply("I look.\n\n```bash\nls\n```", prompt_tokens=100_000)
    chat_server.answer = lambda request: look
    row = _one_takeover(takeover, chat_server, tmp_path, "--max-tokens", "250000")
    assert (row["stop_reason"], row["steps"]) == ("max_tokens", 3)


def test_a_run_without_points_says_so(takeover: Run, tmp_path: Path) -> None:
    done = takeover("--limit", "1", "--max-steps", "2", "--out", tmp_path / "out")
    assert done.returncode == 0
    assert "no handoff point in galley__galley-31 (max_steps after 4 events)" in done.stdout


def _one_takeover(takeover: Run, server: ChatServer, tmp_path: Path, *more: str) -> dict[str, Any]:
    asked = ("--successor", "openai:m", "--base-url", server.url, "--view", "repository", *more)
    chosen = ("--task-ids", "galley__galley-31", "--points", "first_source_edit")
    done = takeover(*asked, *chosen, *_isolated(), "--out", tmp_path / "out")
    assert done.returncode == 0, (done.stdout, done.stderr)
    (row,) = rows(tmp_path / "out")
    return row


def _isolated() -> tuple[str, ...]:
    from sandbox.host import unavailable

    return ("--sandbox", "process", "--allow-unisolated") if unavailable() else ("--sandbox", "host")


def rows_so_far(out: Path, name: str) -> list[str]:
    path = out / f"{name}.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def _wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 400
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_runtime_s_secrets_reach_no_sandbox_and_no_file(
    takeover: Run, chat_server: ChatServer, tmp_path: Path
) -> None:
    secret = "sk-canary-0123456789"
    chat_server.answer = lambda request: chat_server.reply(
        "I look.\n\n```bash\nenv; cat /proc/*/environ\n```"
    )
    asked = (
        "--successor",
        "openai:m",
        "--base-url",
        chat_server.url,
        "--view",
        "repository",
        "--max-steps",
        "2",
    )
    chosen = ("--task-ids", "galley__galley-31", "--points", "first_source_edit", *_isolated())
    done = takeover(*asked, *chosen, "--out", tmp_path / "out", OPENAI_API_KEY=secret)
    if "process" not in chosen:
        assert done.returncode == 0, done.stderr
        holders = [
            p for p in (tmp_path / "out").rglob("*") if p.is_file() and secret.encode() in p.read_bytes()
        ]
        assert holders == []
    assert secret not in done.stdout + done.stderr
    assert os.environ.get("OPENAI_API_KEY") != secret


def test_a_full_disk_stops_the_run_and_loses_nothing(
    takeover: Run, undisturbed: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    small = tmp_path / "small"
    small.mkdir()
    if (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", small], check=False).returncode
        != 0
    ):
        pytest.skip("this root may not mount a file system")
    try:
        stopped = takeover("--view", "all", *TWO, "--out", small / "out")
        assert stopped.returncode == 4, (stopped.stdout, stopped.stderr)
        assert len(stopped.stderr.splitlines()) == 1
        assert "no space left" in stopped.stderr
        subprocess.run(["mount", "-o", "remount,size=100m", small], check=True)
        assert takeover("--resume", "--out", small / "out").returncode == 0
        assert comparable(small / "out") == comparable(undisturbed)
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_tampered_record_fails_its_takeovers_and_nothing_else(takeover: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert takeover("--task-ids", "galley__galley-31", "--out", out).returncode == 0
    whole = comparable(out)
    path = out / "records" / "galley__galley-31.first_validation" / "record.json"
    good = path.read_text()
    path.write_text(good.replace("reproduce_issue.py", "reproduce_it.py", 1))
    (out / "takeovers.jsonl").unlink()
    done = takeover("--resume", "--out", out)
    assert done.returncode == 3, (done.stdout, done.stderr)
    failed = [row for row in rows(out) if row["outcome"] == "infrastructure_failure"]
    assert {row["record_id"] for row in failed} == {"galley__galley-31.first_validation"}
    assert all("does not match its digest" in row["detail"] for row in failed)
    path.write_text(good)
    assert takeover("--resume", "--out", out).returncode == 0
    assert comparable(out) == whole


def test_notes_that_failed_fail_the_views_that_need_them_until_they_are_written(
    takeover: Run, chat_server: ChatServer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    chat_server.answer = lambda request: (500, b"{}")
    asked = ("--notes-model", "openai:m", "--base-url", chat_server.url, "--view", "structured")
    done = takeover(*asked, "--task-ids", "galley__galley-31", "--points", "first_source_edit", "--out", out)
    assert done.returncode == 3
    assert {row["view"]: row["outcome"] for row in rows(out)} == {
        "repository": "graded",
        "structured": "infrastructure_failure",
    }
    chat_server.answer = lambda request: chat_server.reply('{"work_completed": "Half of it."}')
    assert takeover("--resume", "--out", out).returncode == 0
    assert [row["outcome"] for row in rows(out)] == ["graded", "graded"]
    assert {request["max_completion_tokens"] for request in chat_server.requests} == {1600}
