"""A run that waits for its endpoint says so, and ends at once when it is stopped."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from langgraph_takeover import RunStatus

from ..chat_server import ChatServer
from ..nodes.test_retries_and_budgets import error_answer
from .conftest import RunHarness


def build_model(server: ChatServer) -> ChatOpenAI:
    server.refusal_headers = {"Retry-After": "50"}
    server.answer = lambda request: error_answer(429, "slow down")
    return ChatOpenAI(model="m", base_url=server.url, api_key="none")  # type: ignore[arg-type]


def until_waiting(bench: RunHarness) -> None:
    ends_at = time.monotonic() + 30
    while "thread" not in bench.home.threads() or bench.home.status("thread") != "waiting_for_model":
        assert time.monotonic() < ends_at
        time.sleep(0.02)


@pytest.mark.cases(2)
@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("with_progress", [False, True])
def test_a_stop_ends_the_wait(
    bench: RunHarness, chat_server: ChatServer, now: bool, with_progress: bool
) -> None:
    model, progress = build_model(chat_server), list[Any]()
    settings: dict[str, Any] = {"on_progress": progress.append} if with_progress else {}
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(bench.run_to_outcome, model, **settings)
        until_waiting(bench)
        assert bench.home.stop("thread", now=now)
        outcome = running.result(timeout=30)
    assert time.monotonic() - started < 40
    assert (outcome.status, bench.home.status("thread")) == (RunStatus.STOPPED, "stopped")
    waits = [each["text"] for each in progress if each["event"] == "waiting"]
    assert waits == ["50 s: the endpoint answered 429: slow down"] * with_progress
    chat_server.answer = lambda request: chat_server.reply("<finish>Done.</finish>")
    assert bench.resume(model).status is RunStatus.FINISHED


@pytest.mark.cases(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("with_progress", [False, True])
def test_a_signal_ends_the_wait(
    bench: RunHarness, chat_server: ChatServer, number: signal.Signals, with_progress: bool
) -> None:
    model = build_model(chat_server)
    settings: dict[str, Any] = {"on_progress": lambda progress: None} if with_progress else {}
    main = threading.main_thread().ident or 0

    def send() -> None:
        until_waiting(bench)
        signal.pthread_kill(main, number)

    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            bench.run_to_outcome(model, **settings)
        sent.result()
    assert time.monotonic() - started < 40
    chat_server.answer = lambda request: chat_server.reply("<finish>Done.</finish>")
    assert bench.resume(model).status is RunStatus.FINISHED
