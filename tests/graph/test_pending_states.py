"""The state of an act is saved while the model answers: no database names it earlier, and a failure loses nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from langgraph_takeover.nodes.session.pending_states import PendingStates
from langgraph_takeover.sandbox.interface import OutOfDiskError
from langgraph_takeover.sandbox.snapshots import archive_writer

from .conftest import DONE, NOTE, PROMPT, SHOW, RunHarness, get_shown_lines, scripted_model

_FULL = OutOfDiskError("the disk is full")


class ArchiveGate:
    """Lets archives be written when it is opened, or makes their writing fail."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.error: Exception | None = None
        self.opened.set()

    def close(self, error: Exception | None = None) -> None:
        self.error = error
        self.opened.clear()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveGate]:
    gate, write = ArchiveGate(), archive_writer.write_to_store

    def write_later(*args: Any, **kwargs: Any) -> Any:
        gate.opened.wait(20)
        if gate.error is not None:
            error, gate.error = gate.error, None
            raise error
        return write(*args, **kwargs)

    monkeypatch.setattr(archive_writer, "write_to_store", write_later)
    yield gate
    gate.opened.set()


def newest_step(bench: RunHarness) -> tuple[int, tuple[str, ...]]:
    """The step of the newest checkpoint, and the node that comes next."""
    newest = bench.home.history("thread")[0]
    return newest.step, newest.next


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_the_model_answers_while_a_state_is_saved(
    bench: RunHarness, gate: ArchiveGate, is_async: bool
) -> None:
    seen = []

    def listen(moment: dict[str, Any]) -> None:
        if (moment["event"], moment["step"]) == ("acting", 1):
            gate.close()
        if (moment["event"], moment["step"]) == ("thinking", 1):
            seen.append(newest_step(bench))
            gate.opened.set()

    model = scripted_model(NOTE.format(1), SHOW, DONE)
    if is_async:

        async def run_in_loop() -> Any:
            async with bench.open_run(model, on_progress=listen) as run:
                return await run.astart("t", PROMPT)

        done = asyncio.run(run_in_loop())
    else:
        with bench.open_run(model, on_progress=listen) as run:
            done = run.start("t", PROMPT)
    assert seen == [(1, ("shell",))], "the checkpoint before the act is the newest"
    assert get_shown_lines(done.state) == ["1"]
    assert all(each.is_restorable for each in bench.home.history("thread") if each.step)


def test_a_failure_is_reported_before_the_next_act(bench: RunHarness, gate: ArchiveGate) -> None:
    """The reply that came meanwhile is lost; the act is repeated in the state before it."""

    def listen(moment: dict[str, Any]) -> None:
        if (moment["event"], moment["step"]) == ("acting", 1):
            gate.close(_FULL)
        if (moment["event"], moment["step"]) == ("thinking", 1):
            gate.opened.set()

    model = scripted_model(NOTE.format(1), NOTE.format(2), SHOW, DONE)
    with pytest.raises(OutOfDiskError, match="disk is full"):
        bench.run(model, on_progress=listen)
    assert len(model.seen) == 2
    assert newest_step(bench) == (1, ("shell",))
    done = bench.resume(model)
    assert get_shown_lines(done.state) == ["1", "2"]


def test_a_failure_at_the_end_of_a_stream_is_reported(bench: RunHarness, gate: ArchiveGate) -> None:
    model = scripted_model(NOTE.format(1), SHOW, DONE)

    def leave_after_the_act() -> None:
        with bench.open_run(model) as run:
            task = {"id": "t", "prompt": PROMPT}
            for state in run.agent.stream({"task": task}, **run.options, stream_mode="values"):
                if state.get("steps") == 1:
                    if gate.opened.is_set():  # the model has answered
                        gate.close(_FULL)
                    else:
                        gate.opened.set()
                        return

    with pytest.raises(OutOfDiskError, match="disk is full"):
        leave_after_the_act()
    assert get_shown_lines(bench.resume(model).state) == ["1"]


def test_the_same_run_can_be_resumed_after_a_failure(bench: RunHarness, gate: ArchiveGate) -> None:
    def listen(moment: dict[str, Any]) -> None:
        if (moment["event"], moment["step"]) == ("acting", 1) and len(model.seen) == 1:
            gate.close(_FULL)
        if (moment["event"], moment["step"]) == ("thinking", 1):
            gate.opened.set()

    model = scripted_model(NOTE.format(1), SHOW, DONE)
    with bench.open_run(model, on_progress=listen) as run:
        with pytest.raises(OutOfDiskError, match="disk is full"):
            run.start("t", PROMPT)
        assert get_shown_lines(run.resume().state) == ["1"]


def test_writes_wait_in_order_and_are_dropped_with_what_follows() -> None:
    pending, written = PendingStates(), list[str]()

    def write(name: str, parent: str) -> bool:
        return pending.defer(lambda: written.append(name), parent=parent, checkpoint=name)

    assert not write("a", ""), "nothing is pending: the caller writes"
    saving: Future[None] = Future()
    pending.add(saving, {"a"})
    assert write("b", "a")
    assert write("c", "b")
    assert not written
    saving.set_result(None)
    pending.settle({"c"})
    assert written == ["b", "c"]

    saving = Future()
    pending.add(saving, {"c"})
    assert write("d", "c")
    saving.set_exception(_FULL)
    for parent in ("c", "d"):  # of the act, and of what was dropped
        with pytest.raises(OutOfDiskError):
            write("e", parent)
    with pytest.raises(OutOfDiskError):
        pending.settle({"d"})
    assert not write("other", "b"), "another branch goes on"
    pending.settle({"c"})  # the act is repeated
    assert not write("f", "c")
    assert written == ["b", "c"]


def test_a_write_that_fails_drops_those_after_it() -> None:
    pending, saving = PendingStates(), Future[None]()
    pending.add(saving, {"a"})

    def fail() -> None:
        raise ValueError("cannot be stored")

    assert pending.defer(fail, parent="a", checkpoint="b")
    assert pending.defer(fail, parent="b", checkpoint="c")
    saving.set_result(None)
    with pytest.raises(ValueError, match="cannot be stored"):
        pending.settle()
    pending.settle()  # it is reported once
    with pytest.raises(ValueError, match="cannot be stored"):
        pending.settle({"c"})
