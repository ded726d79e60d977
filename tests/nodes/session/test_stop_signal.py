"""A cancelled work ends the command that runs, and the run can continue; a requested stop remains."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover.handoff.ledger import Ledger, acquire
from langgraph_takeover.handoff.ledger.leases import RunStoppedError
from langgraph_takeover.nodes.session.workers import AbortableWork, StopSignal


class Run:
    """A run's signal, and works that end when their sandbox is ended."""

    def __init__(self, ledger: Ledger) -> None:
        self.lease = acquire(ledger, "thread")
        self.signal = StopSignal(self.lease, self.end_sandbox)
        self.ended = threading.Event()

    def end_sandbox(self) -> None:
        self.ended.set()

    def start(self) -> tuple[AbortableWork[None], threading.Thread]:
        begun = threading.Event()

        def command() -> None:
            begun.set()
            assert self.ended.wait(30)

        work = AbortableWork(self.signal, command)
        thread = threading.Thread(target=work.run)
        thread.start()
        begun.wait(30)
        return work, thread


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    run = Run(ledger)
    yield run
    run.lease.release()
    ledger.close()


def test_a_run_continues_after_an_aborted_work(run: Run) -> None:
    work, thread = run.start()
    work.abort()
    thread.join(30)
    assert not run.signal.is_urgent
    run.signal.require_running()


def test_work_that_has_ended_is_not_aborted(run: Run) -> None:
    work, thread = run.start()
    run.ended.set()
    thread.join(30)
    run.ended.clear()
    work.abort()
    assert not run.signal.is_urgent
    assert not run.ended.is_set()


def test_a_run_is_urgent_until_its_last_work_has_ended(run: Run) -> None:
    first, thread = run.start()
    may_end, begun = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        may_end.wait(30)

    second = threading.Thread(target=AbortableWork(run.signal, slow).run)
    second.start()
    begun.wait(30)
    first.abort()
    thread.join(30)
    assert run.signal.is_urgent, "the other work could start a command in an ended sandbox"
    with pytest.raises(RunStoppedError):
        run.signal.require_not_urgent()
    may_end.set()
    second.join(30)
    assert not run.signal.is_urgent


def test_a_stop_at_once_remains_after_an_aborted_work(run: Run) -> None:
    work, thread = run.start()
    run.signal.request("now")
    work.abort()
    thread.join(30)
    assert run.signal.is_urgent
    with pytest.raises(RunStoppedError):
        run.signal.require_running()
