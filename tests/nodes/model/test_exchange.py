"""Calls that may hang are waited for only so long, and are in nobody's way afterwards."""

from __future__ import annotations

import contextvars
import os
import threading

import pytest

from langgraph_takeover.nodes.model.exchange import DeadlineExceededError, call_with_timeout

_word = contextvars.ContextVar("_word", default="none")


def test_a_call_returns_or_raises_as_if_made_here() -> None:
    _word.set("mine")
    assert call_with_timeout(5, lambda: (_word.get(), 3)) == ("mine", 3)
    with pytest.raises(ZeroDivisionError):
        call_with_timeout(5, lambda: 1 // 0)
    with pytest.raises(KeyboardInterrupt):
        call_with_timeout(5, _interrupt)


def test_calls_that_end_share_a_thread_that_ends_with_who_called() -> None:
    seen: list[threading.Thread] = []

    def call_twice() -> None:
        seen.extend(call_with_timeout(5, threading.current_thread) for _ in range(2))

    caller = threading.Thread(target=call_twice)
    caller.start()
    caller.join()
    assert seen[0] is seen[1]
    seen[0].join(60)
    assert not seen[0].is_alive()


def test_an_overdue_call_holds_up_no_later_one_and_its_thread_ends_with_it() -> None:
    go_on, seen = threading.Event(), []

    def hang() -> None:
        seen.append(threading.current_thread())
        go_on.wait(60)

    with pytest.raises(DeadlineExceededError):
        call_with_timeout(0.2, hang)
    assert call_with_timeout(60, lambda: go_on.is_set()) is False, "it ran while the overdue call still hung"
    go_on.set()
    seen[0].join(60)
    assert not seen[0].is_alive()


def test_a_call_may_call() -> None:
    assert (
        call_with_timeout(5, lambda: call_with_timeout(5, lambda: "inner") + " and outer")
        == "inner and outer"
    )


def test_a_forked_process_calls_as_well() -> None:
    assert call_with_timeout(5, lambda: "before") == "before"
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if call_with_timeout(20, lambda: "after") == "after" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_call_that_computes_on_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    threads: list[threading.Thread] = []

    def compute() -> None:
        threads.append(threading.current_thread())
        while True:
            sum(range(1000))

    with pytest.raises(DeadlineExceededError):
        call_with_timeout(0.2, compute)
    threads[0].join(30)
    assert not threads[0].is_alive()
    assert capfd.readouterr().err == ""
