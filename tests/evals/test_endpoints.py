"""Takeovers by models behind an endpoint: a failing one, an endless one, and one that tries to steal secrets."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from langgraph_takeover.evals.models import ORACLE, ModelEntry, ModelPrice
from langgraph_takeover.evals.run.execution import stages
from langgraph_takeover.evals.run.settings.config import RunConfig, RunPaths
from langgraph_takeover.evals.tasks import BUNDLED, Task, load_tasks

from ..chat_server import ChatServer
from .conftest import ONE_POINT, RunCommand, isolated_sandbox_options, read_rows

FIELDS = '{"work_completed": [{"claim": "It is half done.", "events": ["e1"]}]}'
LOOK = "I look.\n\n```bash\nls\n```"


@dataclass(frozen=True)
class Frozen:
    """A predecessor's run up to its first edit, where successors start in this process."""

    config: RunConfig
    out: Path
    task: Task
    record: str

    def take_over(self, server: ChatServer, repeat: int, **settings: Any) -> dict[str, Any]:
        return self.run("repository", repeat, base_url=server.url, **settings)

    def take_over_as(self, entry: ModelEntry, repeat: int, **settings: Any) -> dict[str, Any]:
        """A takeover by an entry of a models file with its own server."""
        return self.run("repository", repeat, models={"mine": entry}, successors=("mine",), **settings)

    def run(self, view: str, repeat: int, **settings: Any) -> dict[str, Any]:
        config = self.config.model_copy(update=settings)
        place = (config, self.out, self.task, self.record)
        return stages.run_takeover(*place, view, config.successors[0], repeat).to_dict()

    def configure_notes(self, entry: ModelEntry, *views: str) -> RunConfig:
        """The settings of a run whose notes an entry of a models file writes."""
        settings = {"models": {"mine": entry}, "notes_model": "mine", "views": views}
        return self.config.model_copy(update=settings)

    def write_note(self, config: RunConfig) -> dict[str, Any]:
        return stages.write_note(config, self.out, self.task, self.record).to_dict()


@pytest.fixture(scope="module")
def snapshot_case(tmp_path_factory: pytest.TempPathFactory) -> Frozen:
    _, sandbox = isolated_sandbox_options()
    out = tmp_path_factory.mktemp("frozen")
    models: Any = {"predecessors": (ORACLE,), "successors": ("openai:m",), "notes_model": ORACLE}
    place: Any = {"tasks": BUNDLED, "points": ("first_source_edit",), "sandbox": sandbox}
    config = RunConfig(run_id="frozen", views=("repository",), **models, **place)
    (task,) = load_tasks(BUNDLED, ["galley__galley-31"])
    task.check_out(RunPaths(out).repositories)
    (record,) = stages.run_predecessor(config, out, task, ORACLE).records or ()
    return Frozen(config, out, task, record)


def _run(server: ChatServer, view: str, out: Path, *more: str) -> tuple[str | Path, ...]:
    arguments = ("--successor", "openai:m", "--base-url", server.url, "--view", view, "--out", out)
    return (*arguments, *ONE_POINT, *isolated_sandbox_options(), *more)


@pytest.mark.slow
def test_a_failing_endpoint_is_an_outcome_and_can_be_resumed(
    run_main: RunCommand, chat_server: ChatServer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    error = b'{"error": {"message": "wrong key", "code": "invalid_api_key"}}'
    chat_server.answer = lambda request: (401, error)
    done = run_main(*_run(chat_server, "trace", out))
    assert done.returncode == 3, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    rows = read_rows(out)
    assert [row["outcome"] for row in rows] == ["infrastructure_failure"] * 2
    assert all(row["resolved"] is None and "answered 401" in row["detail"] for row in rows), rows
    chat_server.answer = lambda request: chat_server.reply("<finish>It is done.</finish>")
    assert run_main("--resume", "--out", out).returncode == 0
    assert [(row["outcome"], row["stop_reason"]) for row in read_rows(out)] == [("graded", "finished")] * 2


@pytest.mark.slow
def test_no_endpoint_at_all(run_main: RunCommand, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    out = tmp_path / "out"
    options = ("--model", "openai:m", "--base-url", url, "--limit", "1", *isolated_sandbox_options())
    done = run_main(*options, "--out", out)
    assert done.returncode == 3
    assert "could not be reached" in read_rows(out, "predecessors")[0]["detail"]


@pytest.mark.slow
def test_a_retried_takeover_resumes_and_counts_earlier_seconds(
    snapshot_case: Frozen, chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_at_the_second(request: dict[str, Any]) -> tuple[int, bytes]:
        if request["messages"][-2]["role"] == "assistant":
            return chat_server.cut_reply("half a rep")
        time.sleep(0.5)
        return chat_server.reply(LOOK)

    chat_server.answer = cut_at_the_second
    failed = snapshot_case.take_over(chat_server, 1)
    assert (failed["outcome"], failed["resolved"]) == ("infrastructure_failure", None)
    assert "not JSON" in failed["detail"]
    chat_server.answer = lambda request: chat_server.reply("<finish>It is done.</finish>")
    # With a stopped clock, the second attempt takes no time.
    monkeypatch.setattr(stages, "time", SimpleNamespace(monotonic=lambda: 0.0))
    row = snapshot_case.take_over(chat_server, 1)
    assert (row["outcome"], row["stop_reason"], row["steps"]) == ("graded", "finished", 2)
    assert row["seconds"] >= 0.5


def refuse_after(server: ChatServer, steps: int, message: str, code: str | None = None) -> None:
    """Let a server refuse a takeover after that many replies."""
    error = {"message": message, "code": code, "type": "invalid"}

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        done = sum(each["role"] == "assistant" for each in request["messages"])
        return server.reply(LOOK) if done < steps else (400, json.dumps({"error": error}).encode())

    server.answer = answer


def test_a_context_overflow_is_graded(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    refuse_after(chat_server, 1, "maximum context length is 800", "context_length_exceeded")
    row = snapshot_case.take_over(chat_server, 2)
    assert (row["outcome"], row["stop_reason"], row["resolved"]) == ("graded", "context_overflow", True)
    assert row["events"] > 0


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("max_tokens is too large: 100000. This model supports at most 16384 completion tokens", "max_output_tokens"),
        ("max_tokens is too large: 9. This model's maximum context length is 8000 and has 10 input tokens", "far below"),
        ("maximum context length is 200 tokens", "did nothing"),
    ],
)  # fmt: skip
def test_an_agent_that_did_nothing_has_no_result(
    snapshot_case: Frozen, chat_server: ChatServer, message: str, says: str
) -> None:
    refuse_after(chat_server, 0, message)
    row = snapshot_case.take_over(chat_server, 12)
    assert (row["outcome"], row["resolved"]) == ("infrastructure_failure", None)
    assert says in row["detail"]


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_model_with_thoughts_alone_completes_its_row(
    snapshot_case: Frozen, chat_server: ChatServer, content: str | None
) -> None:
    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        replies = [each for each in request["messages"] if each["role"] == "assistant"]
        if any(not (each["content"] or "").strip() for each in request["messages"]):
            return 400, b'{"error": {"message": "message must not be empty"}}'
        if len(replies) % 2:
            return chat_server.reply(LOOK if len(replies) < 5 else "<finish>Done.</finish>")
        return chat_server.reply(content, thought="I ponder.")  # type: ignore[arg-type]

    chat_server.answer = answer
    repeat = {None: 41, "": 42, " \n": 43}[content]
    row = snapshot_case.take_over(chat_server, repeat)
    assert (row["outcome"], row["stop_reason"], row["steps"]) == ("graded", "finished", 6), row


def test_a_token_cap_stops(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    chat_server.answer = lambda request: chat_server.reply(LOOK, prompt_tokens=100_000)
    row = snapshot_case.take_over(chat_server, 3, max_tokens=250_000)
    assert (row["outcome"], row["stop_reason"], row["steps"]) == ("graded", "max_tokens", 3)


@pytest.mark.slow
def test_the_time_limits_of_calls_are_settings(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    """An entry's own limit comes before the option's: a slow server needs more time than others."""

    def answer_slowly(request: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(1.5)
        return chat_server.reply("<finish>It is done.</finish>")

    chat_server.answer = answer_slowly
    row = snapshot_case.take_over(chat_server, 11, model_timeout_s=0.4)
    assert row["outcome"] == "infrastructure_failure"
    assert "no complete reply" in row["detail"], row
    row = snapshot_case.take_over(chat_server, 12, read_timeout_s=0.2, model_timeout_s=5)
    assert (row["outcome"], row["resolved"]) == ("infrastructure_failure", None), row
    slow = ModelEntry(model="m", base_url=chat_server.url, model_timeout_s=60.0, read_timeout_s=30.0)
    row = snapshot_case.take_over_as(slow, 13, model_timeout_s=0.4, read_timeout_s=0.2)
    assert (row["outcome"], row["stop_reason"]) == ("graded", "finished"), row


@pytest.mark.slow
def test_a_note_has_a_time_limit_of_its_own(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    def answer_slowly(request: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(1.5)
        return chat_server.reply("Nothing.")

    chat_server.answer = answer_slowly
    settings = {"base_url": chat_server.url, "notes_model": "openai:m", "views": ("repository", "summary")}
    config = snapshot_case.config.model_copy(update={**settings, "notes_timeout_s": 0.4})
    row = snapshot_case.write_note(config)
    assert (row["outcome"], "no complete reply" in row["detail"]) == ("infrastructure_failure", True), row


@pytest.mark.slow
def test_an_endless_model_stops_at_the_requested_cap(
    run_main: RunCommand, chat_server: ChatServer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    chat_server.answer = lambda request: chat_server.reply(LOOK)
    caps = ("--max-steps", "7", "--max-reply-tokens", "99", "--max-tokens", "250000")
    done = run_main(*_run(chat_server, "repository", out, *caps))
    assert done.returncode == 0, (done.stdout, done.stderr)
    (row,) = read_rows(out)
    assert {request["max_completion_tokens"] for request in chat_server.requests} == {99}
    assert (row["stop_reason"], row["steps"], row["resolved"]) == ("max_steps", 7, True)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (700, 70)
    assert "Stopped before finishing: 1 by max_steps, of 1 takeovers." in done.stdout
    assert json.loads((out / "config.json").read_text())["max_tokens"] == 250_000


def test_a_run_without_points_is_reported(run_main: RunCommand, tmp_path: Path) -> None:
    done = run_main("--task-ids", "galley__galley-31", "--max-steps", "2", "--out", tmp_path / "out")
    assert done.returncode == 0
    assert "no handoff point in galley__galley-31 (max_steps after 4 events)" in done.stdout
    assert "Nothing to compare: no predecessor reached a handoff point." in done.stdout


@pytest.mark.slow
def test_the_runtime_s_secrets_reach_no_sandbox_and_no_file(
    takeover: RunCommand, chat_server: ChatServer, tmp_path: Path
) -> None:
    def steal(request: dict[str, Any]) -> tuple[int, bytes]:
        if any(message["role"] == "assistant" for message in request["messages"]):
            return chat_server.reply("<finish>I have it.</finish>")
        return chat_server.reply("I look.\n\n```bash\nenv; cat /proc/*/environ\n```")

    secret, out = "sk-canary-0123456789", tmp_path / "out"
    chat_server.answer = steal
    done = takeover(*_run(chat_server, "repository", out), OPENAI_API_KEY=secret)
    assert done.returncode == 0, done.stderr
    assert [row["stop_reason"] for row in read_rows(out)] == ["finished"]
    assert secret not in done.stdout + done.stderr
    contents = {path: _content(path) for path in out.rglob("*") if path.is_file()}
    (trace,) = (out / "traces").glob("*first_source_edit*")
    assert b"\\nPATH=" in contents[trace]
    assert [path for path, content in contents.items() if secret.encode() in content] == []


def _content(path: Path) -> bytes:
    if path.suffix != ".zst":
        return path.read_bytes()
    with path.open("rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


@pytest.mark.slow
def test_failed_notes_fail_their_views_until_they_are_written(
    run_main: RunCommand, chat_server: ChatServer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    chat_server.answer = lambda request: (500, b"{}")
    arguments = ("--notes-model", "openai:m", "--base-url", chat_server.url, "--view", "structured")
    done = run_main(*arguments, *ONE_POINT, "--out", out)
    assert done.returncode == 3
    outcomes = {row["view"]: row["outcome"] for row in read_rows(out)}
    assert outcomes == {"repository": "graded", "structured": "infrastructure_failure"}
    chat_server.answer = lambda request: chat_server.reply('{"work_completed": "Half of it."}')
    assert run_main("--resume", "--out", out).returncode == 0
    assert [row["outcome"] for row in read_rows(out)] == ["graded", "graded"]
    assert {request["max_completion_tokens"] for request in chat_server.requests} == {1600}


def test_a_model_that_never_replies_saves_no_effort(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    def late(request: dict[str, Any]) -> tuple[int, bytes]:
        time.sleep(4)
        return chat_server.reply(LOOK)

    chat_server.answer = late
    row = snapshot_case.take_over(chat_server, repeat=90, max_seconds=1.0)
    assert row["outcome"] == "infrastructure_failure"
    assert row["detail"].startswith("no reply within 1 seconds")
    chat_server.answer = lambda request: chat_server.reply(LOOK)
    row = snapshot_case.take_over(chat_server, repeat=90, max_steps=1)
    assert (row["outcome"], row["stop_reason"], row["llm_calls"]) == ("graded", "max_steps", 1)


def test_a_model_that_answers_nothing(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    chat_server.answer = lambda request: chat_server.reply("")
    row = snapshot_case.take_over(chat_server, 20, max_steps=3)
    assert (row["outcome"], row["stop_reason"], row["empty_replies"]) == ("graded", "max_steps", 3)
    assert row["detail"].endswith("; of 3 replies 3 had nothing")
    last = str(chat_server.requests[-1]["messages"])
    assert "Your reply is empty: it contains no text and no action." in last


def test_a_model_that_only_thinks(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    chat_server.answer = lambda request: chat_server.reply("", "length", thought="Let me ponder.")
    entry = ModelEntry(model="m", base_url=chat_server.url, max_output_tokens=64)
    row = snapshot_case.take_over_as(entry, 21, max_steps=2)
    assert (row["outcome"], row["stop_reason"], row["empty_replies"]) == ("graded", "max_steps", 2)
    assert row["detail"].endswith(
        "; of 2 replies 2 had thought, but no text and no action; 2 were cut off at the limit of 64 output tokens "
        "(raise max_output_tokens of mine in --models, or --max-reply-tokens)"
    )
    last = str(chat_server.requests[-1]["messages"])
    assert "Your reply contains thought, but no text and no action." in last


def test_a_model_without_usage_has_no_sums(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    replies = iter([chat_server.reply(LOOK), chat_server.reply(LOOK, prompt_tokens=None)])
    chat_server.answer = lambda request: next(replies, chat_server.reply("<finish></finish>"))
    entry = ModelEntry(model="m", base_url=chat_server.url, price=ModelPrice(input=1.0, output=1.0))
    row = snapshot_case.take_over_as(entry, 22)
    assert (row["stop_reason"], row["llm_calls"], row["uncounted_calls"]) == ("finished", 3, 1)
    assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (None, None, None)
    assert row["cost_usd"] is None


def test_prices_and_cached_tokens_make_a_cost(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    replies = iter([chat_server.reply(LOOK, prompt_tokens=1000)])  # this server omits a count of zero
    finish = chat_server.reply("<finish></finish>", prompt_tokens=2000, cached_tokens=900)
    chat_server.answer = lambda request: next(replies, finish)
    price = ModelPrice(input=2.0, output=10.0, cached=0.5)
    row = snapshot_case.take_over_as(ModelEntry(model="m", base_url=chat_server.url, price=price), 23)
    assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (3000, 900, 20)
    assert row["cost_usd"] == pytest.approx((2100 * 2.0 + 900 * 0.5 + 20 * 10.0) / 1e6)
    assert (row["uncounted_calls"], row["empty_replies"], row["condensed"]) == (0, 0, 0)
    without = snapshot_case.take_over_as(ModelEntry(model="m", base_url=chat_server.url), 24)
    assert without["prompt_tokens"] == 2000
    assert without["cost_usd"] is None


def test_a_retried_cut_off_reply_is_not_counted(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    replies = iter([chat_server.cut_reply("half a rep")])
    chat_server.answer = lambda request: next(replies, chat_server.reply("<finish></finish>"))
    entry = ModelEntry(model="m", base_url=chat_server.url, price=ModelPrice(input=1.0, output=1.0))
    row = snapshot_case.take_over_as(entry, 25)
    assert (row["llm_calls"], row["uncounted_calls"]) == (1, 1)
    assert (row["prompt_tokens"], row["cost_usd"]) == (None, None)


def test_a_window_of_the_models_file_ends_a_takeover_before_its_server_cuts_the_prompt(
    snapshot_case: Frozen, chat_server: ChatServer
) -> None:
    def count_honestly(request: dict[str, Any]) -> tuple[int, bytes]:
        characters = sum(len(message["content"]) for message in request["messages"])
        command = "```bash\npython3 -c 'print(\"x\" * 4000)'\n```"
        return chat_server.reply(command, prompt_tokens=characters // 4)

    chat_server.answer = count_honestly
    price = ModelPrice(input=1.0, output=1.0)
    entry = ModelEntry(model="m", base_url=chat_server.url, window=4000, price=price)
    row = snapshot_case.take_over_as(entry, 26)
    assert (row["outcome"], row["stop_reason"], row["resolved"]) == ("graded", "context_overflow", True)
    assert row["window_tokens"] == 4000
    assert row["cost_usd"] > 0
    wider = entry.model_copy(update={"window": 6000})
    condensed = snapshot_case.take_over_as(wider, 27, condense=True, max_steps=7)
    assert (condensed["stop_reason"], condensed["steps"]) == ("max_steps", 7)
    assert condensed["condensed"] > 0


def test_a_window_bounds_the_view_of_the_built_in_model_but_not_its_run(snapshot_case: Frozen) -> None:
    row = snapshot_case.run("trace", 28, window_tokens=1000, successors=(ORACLE,))
    assert (row["stop_reason"], row["resolved"], row["window_tokens"]) == ("finished", True, 1000)


def test_thought_alone_is_no_note(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    chat_server.answer = lambda request: chat_server.reply("", "length", thought="Let me ponder.")
    entry = ModelEntry(model="m", base_url=chat_server.url, price=ModelPrice(input=1.0, output=1.0))
    config = snapshot_case.configure_notes(entry, "structured")
    row = snapshot_case.write_note(config)
    assert row["outcome"] == "infrastructure_failure"
    assert row["detail"] == (
        "mine wrote no structured note: 2 of 2 replies had thought, but no text; 2 were cut off at the limit of "
        "1,600 output tokens (raise max_output_tokens of mine in --models)"
    )


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("replies", "views", "outcome", "message"),
    [
        (("",), ("summary",), "infrastructure_failure", "mine wrote no summary note: 1 of 1"),
        (("", "{}"), ("structured",), "written", "1 of 2 replies had no text"),
        (("", ""), ("cited",), "infrastructure_failure", "mine wrote no structured note: 2 of 2"),
        (("No JSON.", ""), ("structured",), "written", "1 of 2 replies had no text"),
        (("", "{}", "{}"), ("summary", "structured"), "infrastructure_failure", "mine wrote no summary note: 1 of 3"),
    ],
)  # fmt: skip
def test_an_empty_note_fails_the_views_that_show_it(
    snapshot_case: Frozen,
    chat_server: ChatServer,
    replies: tuple[str, ...],
    views: tuple[str, ...],
    outcome: str,
    message: str,
) -> None:
    answers = iter([chat_server.reply(text) for text in replies])
    chat_server.answer = lambda request: next(answers)
    entry = ModelEntry(model="m", base_url=chat_server.url)
    config = snapshot_case.configure_notes(entry, "repository", *views)
    row = snapshot_case.write_note(config)
    assert row["outcome"] == outcome
    assert row["detail"].startswith(message)
    if outcome == "written" and replies[0] == "":
        # Other notes of the record are no reason to show an empty one.
        shown = replace(snapshot_case, config=config).run("summary", 90, successors=(ORACLE,))
        assert shown["outcome"] == "infrastructure_failure"
        assert "has no summary note, which the summary view shows" in shown["detail"]


def test_truncated_notes_are_named(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    replies = iter([chat_server.reply("A long sum", "length"), chat_server.reply(FIELDS)])
    chat_server.answer = lambda request: next(replies)
    entry = ModelEntry(model="m", base_url=chat_server.url)
    config = snapshot_case.configure_notes(entry, "summary", "structured")
    row = snapshot_case.write_note(config)
    assert (row["outcome"], row["truncated"]) == ("written", ["summary"])


def test_calls_of_killed_and_failed_notes_are_uncounted(
    snapshot_case: Frozen, chat_server: ChatServer
) -> None:
    entry = ModelEntry(model="m", base_url=chat_server.url)
    config = snapshot_case.configure_notes(entry, "summary", "structured")
    answered, child = [chat_server.reply("A summary.")], 0

    def answer_or_kill(request: dict[str, Any]) -> tuple[int, bytes]:
        if answered:
            return answered.pop()
        while not child:
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        return 500, b""

    chat_server.answer = answer_or_kill
    child = os.fork()
    if child == 0:
        try:
            snapshot_case.write_note(config)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    answered = [chat_server.reply("A summary.")]
    chat_server.answer = lambda request: answered.pop() if answered else (401, b"{}")
    assert snapshot_case.write_note(config)["outcome"] == "infrastructure_failure"
    more = iter([chat_server.reply("A summary."), chat_server.reply(FIELDS)])
    chat_server.answer = lambda request: next(more)
    row = snapshot_case.write_note(config)
    # Two calls of the killed job, and one of the failed job.
    assert (row["outcome"], row["llm_calls"], row["uncounted_calls"]) == ("written", 2, 3)
    assert row["prompt_tokens"] is None
    with RunPaths(snapshot_case.out).home() as home:
        assert not [thread for thread in home.threads() if thread.startswith("notes.")]


def test_notes_with_an_uncounted_call_have_no_sums(snapshot_case: Frozen, chat_server: ChatServer) -> None:
    replies = iter([chat_server.reply("A summary."), chat_server.reply(FIELDS, prompt_tokens=None)])
    chat_server.answer = lambda request: next(replies)
    entry = ModelEntry(model="m", base_url=chat_server.url, price=ModelPrice(input=1.0, output=1.0))
    config = snapshot_case.configure_notes(entry, "summary", "structured")
    row = snapshot_case.write_note(config)
    assert row["usage"]["summary"]["prompt_tokens"] == 100
    assert row["usage"]["structured"] == dict.fromkeys(row["usage"]["structured"])
    assert (row["prompt_tokens"], row["uncounted_calls"], row["cost_usd"]) == (None, 1, None)
