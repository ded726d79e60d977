"""Calls end at their deadlines and do not affect later calls."""

from __future__ import annotations

import contextvars
import os
import threading
import time

import pytest

from langgraph_takeover.nodes.model.deadlines import (
    CallCancelledError,
    Cancellation,
    DeadlineExceededError,
    call_with_timeout,
)

_word = contextvars.ContextVar("_word", default="none")


def test_a_call_returns_or_raises_as_a_direct_call_does() -> None:
    _word.set("mine")
    assert call_with_timeout(5, lambda: (_word.get(), 3)) == ("mine", 3)
    with pytest.raises(ZeroDivisionError):
        call_with_timeout(5, lambda: 1 // 0)
    with pytest.raises(KeyboardInterrupt):
        call_with_timeout(5, _interrupt)


def test_finished_calls_share_a_thread_that_ends_with_its_caller() -> None:
    threads: list[threading.Thread] = []

    def call_twice() -> None:
        threads.extend(call_with_timeout(5, threading.current_thread) for _ in range(2))

    caller = threading.Thread(target=call_twice)
    caller.start()
    caller.join()
    assert threads[0] is threads[1]
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_an_overdue_call_delays_no_later_one_and_its_thread_ends_with_it() -> None:
    may_end, threads = threading.Event(), []

    def hang() -> None:
        threads.append(threading.current_thread())
        may_end.wait(60)

    with pytest.raises(DeadlineExceededError):
        call_with_timeout(0.2, hang)
    assert call_with_timeout(60, lambda: may_end.is_set()) is False, "the call waited for the overdue one"
    may_end.set()
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_calls_nest() -> None:
    assert (
        call_with_timeout(5, lambda: call_with_timeout(5, lambda: "inner") + " and outer")
        == "inner and outer"
    )


def test_calls_work_in_a_forked_process() -> None:
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


def test_an_overdue_computation_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
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


def test_a_cancelled_call_ends_at_once() -> None:
    cancellation, begun = Cancellation(), threading.Event()
    timer = threading.Thread(target=lambda: (begun.wait(), cancellation.cancel()))
    timer.start()
    with pytest.raises(CallCancelledError):
        call_with_timeout(60, lambda: (begun.set(), time.sleep(30)), cancellation)
    timer.join()
    with pytest.raises(CallCancelledError):
        call_with_timeout(60, lambda: 1, cancellation)
    assert call_with_timeout(60, lambda: 1) == 1
