"""An exception from a signal handler leaves no transaction open and no lock taken, at any instruction."""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.runtime import RunControl

from langgraph_takeover.graph.checkpoints import savers
from langgraph_takeover.graph.checkpoints.savers import open_saver
from langgraph_takeover.graph.runs.stop_requests import drain_on_sigterm
from langgraph_takeover.handoff.ledger import Ledger, acquire, database
from langgraph_takeover.handoff.ledger.database import defer_signals
from langgraph_takeover.handoff.ledger.leases import renew
from langgraph_takeover.nodes.model.deadlines import Cancellation

WATCHED = ("handoff/ledger", "graph/savers", "contextlib", "sqlalchemy", "checkpoint/sqlite")
STRIDES = {"ledger": 31, "files": 7, "saver": 7}
"""For each kind of writer, the number of instructions between two tested ones."""


class Came(BaseException):
    """The exception that the handler raises."""


@pytest.fixture(params=[signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def raising(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    def handler(number: int, frame: Any) -> None:
        raise Came

    before = signal.signal(request.param, handler)
    yield request.param
    assert signal.getsignal(request.param) is handler
    signal.signal(request.param, before)


def disturb(deed: Callable[[], object], number: signal.Signals, position: int) -> bool:
    """Whether the signal came before the operation was over, at this instruction."""
    left = position

    def trace(frame: Any, what: str, argument: Any) -> Any:
        nonlocal left
        if not any(name in frame.f_code.co_filename for name in WATCHED):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        left -= what == "opcode"
        if left == 0:
            sys.settrace(None)
            signal.raise_signal(number)
        return trace if left > 0 else None

    def doing() -> Iterator[object]:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield deed()
        finally:
            sys.settrace(before)

    # If the signal falls into the entry to an `except`, Python never leaves it. The end of a generator does; otherwise
    # every later exception of this process would have the caught one as its context.
    deque(doing(), maxlen=0)
    return left <= 0


@pytest.mark.parametrize("writer", ["files", "saver", pytest.param("ledger", marks=pytest.mark.slow)])
def test_the_next_write_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raising: signal.Signals, writer: str
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.3)
    monkeypatch.setattr(savers, "BUSY_S", 0.3)
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    lease = acquire(ledger, "t")
    position, came, kept = 1, 0, []
    with open_saver(ledger, lease) as saver:

        def put() -> None:
            saver.put(
                {"configurable": {"thread_id": "t", "checkpoint_ns": ""}},
                empty_checkpoint(),
                {"source": "loop", "step": 1, "parents": {}},
                {},
            )

        def file() -> None:
            with ledger.lock_snapshots():
                pass

        deeds = {"ledger": lambda: renew(lease.ledger, [lease]), "files": file, "saver": put}
        for deed in deeds.values():  # SQLAlchemy compiles statements only once
            deed()
        over = False
        while not over:
            try:
                over = not disturb(deeds[writer], raising, position)
            except Came as error:
                kept.append(error)  # as in a terminating program: its frames stay alive
                came += 1
            for deed in deeds.values():
                deed()
            position += STRIDES[writer]
    assert came > 10


def test_a_run_that_fails_after_sigterm_ends() -> None:
    def failing() -> None:
        with drain_on_sigterm(RunControl(), Cancellation()):
            signal.raise_signal(signal.SIGTERM)
            raise ValueError("the model is out of order")

    with pytest.raises(SystemExit, match="143"):
        failing()


def test_two_deferred_signals_both_arrive() -> None:
    came: list[int] = []

    def handler(number: int, frame: Any) -> None:
        came.append(number)
        raise Came

    def hold_back() -> None:
        with defer_signals():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert came == []

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(Came):
            hold_back()
        assert came == [signal.SIGTERM, signal.SIGINT]
        assert {signal.getsignal(number) for number in before} == {handler}
    finally:
        for number, found in before.items():
            signal.signal(number, found)
