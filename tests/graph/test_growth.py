"""The database grows linearly with the trace, a late step does no more than an early one, and the state stays readable."""

from __future__ import annotations

import contextlib
import itertools
import queue
import selectors
import sqlite3
import statistics
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import _base as futures
from random import Random
from types import FrameType
from typing import Any, get_type_hints

import pytest
from langchain_core.messages import AIMessage
from langgraph.channels import DeltaChannel
from langgraph.types import Overwrite
from sqlalchemy import create_engine, text

from langgraph_takeover.graph.home import DATABASE_FILE
from langgraph_takeover.nodes.state import AgentState, extend_list

from .conftest import BOTH_DATABASES, DONE, RunHarness, Scripted, native_reply, parse_events, scripted_model

BYTES = 2048
LOOK = f"```bash\nprintf '%0{BYTES}d' 0\n```"
LENGTHS = (80, 160, 320)
MOST, SPREAD = 6.0, 1.15
"""The maximum database bytes per trace byte, and the maximum ratio between runs of these lengths."""


def size(bench: RunHarness) -> int:
    """Bytes of the run's data in the database, including its log."""
    if bench.home.ledger.is_sqlite:
        file = bench.home.directory / DATABASE_FILE
        with contextlib.closing(sqlite3.connect(file)) as connection:
            assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        return file.stat().st_size
    url = bench.home.ledger.url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        # Otherwise the size depends on whether the automatic vacuum has run.
        connection.execute(text("VACUUM FULL"))
        tables = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname ~ '^(check|take)'"
        found = int(connection.execute(text(tables)).scalar_one())
    engine.dispose()
    return found


def growth(bench: RunHarness, steps: int) -> float:
    """Bytes of database growth per byte of trace, for a run of that many steps."""
    before = size(bench)
    state = bench.run(scripted_model(*[LOOK] * steps, DONE), thread=f"{steps} steps", max_steps=steps + 1)
    trace = sum(len(event.text.encode()) for event in parse_events(state))
    assert trace > steps * BYTES
    return (size(bench) - before) / trace


@pytest.mark.sampled(1)
@BOTH_DATABASES
@pytest.mark.slow
def test_the_database_grows_with_the_trace(bench: RunHarness) -> None:
    growth(bench, 2)  # creates the tables and other one-time data
    grown = [growth(bench, steps) for steps in LENGTHS]
    assert max(grown) <= MOST
    # Even five bytes per step for each earlier step would be too many.
    assert max(grown) <= SPREAD * min(grown), grown


@BOTH_DATABASES
def test_every_message_is_kept_after_many_steps(bench: RunHarness) -> None:
    state = bench.run(scripted_model(*[LOOK] * 50, DONE))
    saved = bench.load_state().values
    assert saved["messages"] == state["messages"]
    assert [message.type for message in saved["messages"][:4]] == ["system", "human", "ai", "human"]
    assert len(saved["messages"]) == 2 + 2 * 50 + 1
    assert saved["messages"][-2].text.endswith("0" * 100)


WAITS = {threading.__file__, queue.__file__, futures.__file__, selectors.__file__}


class StepModel(Scripted):
    """Repeats its replies, whatever the conversation; it counts the calls of all functions between its own calls."""

    calls: list[int]
    done: int = 0

    def invoke(self, input: Any, config: Any = None, **_: Any) -> AIMessage:
        self.calls.append(self.done)
        reply = self.replies[len(self.calls) % len(self.replies)]
        usage = {"input_tokens": self.tokens, "output_tokens": 1, "total_tokens": self.tokens + 1}
        message = reply.model_copy() if isinstance(reply, AIMessage) else AIMessage(reply)
        return message.model_copy(update={"usage_metadata": usage})

    @contextlib.contextmanager
    def count(self) -> Iterator[None]:
        """Count the calls of functions in this thread, and in those that begin meanwhile, but not those of waits for a thread."""

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            self.done += event in ("call", "c_call") and frame.f_code.co_filename not in WAITS

        before = sys.getprofile()
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)


def count_calls(bench: RunHarness, replies: list[Any], steps: int, **settings: Any) -> list[int]:
    """The calls of functions in each step of a run, without the model's own."""
    model = StepModel(replies=replies, seen=[], tools=[], calls=[])
    with model.count():
        bench.run(model, max_steps=steps, snapshot_every="never", **settings)
    assert len(model.calls) == steps
    return [later - earlier for earlier, later in zip(model.calls, model.calls[1:], strict=False)]


def test_a_step_does_not_do_more_because_others_came_before(bench: RunHarness) -> None:
    """Even one function more for each earlier step would be too many.

    On a busy machine, some steps wait for other threads, which adds about a hundred calls to each. Therefore the
    growth is the median over all pairs of steps, which single steps do not change.
    """
    calls = count_calls(bench, ["```bash\ntrue\n```"], 180)
    pairs = itertools.combinations(enumerate(calls[5:]), 2)
    slopes = [(late - early) / (at - before) for (before, early), (at, late) in pairs]
    assert statistics.median(slopes) < 0.5, calls


GROWING_RUNS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "text": ([LOOK], {}),
    "a known window": ([LOOK], {"window_tokens": 1_000_000}),
    "condensing": ([LOOK], {"window_tokens": 20_000, "condense": True}),
    "native calls": (
        [native_reply(("shell", '{"command": "true"}'), ("shell", '{"command": "ls"}'))],
        {"protocol": "native"},
    ),
    "unreadable replies": (["nothing to run", LOOK], {}),
}


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", GROWING_RUNS)
def test_a_late_step_does_no_more_than_an_early_one(bench: RunHarness, kind: str) -> None:
    replies, settings = GROWING_RUNS[kind]
    calls = count_calls(bench, replies, 400, **settings)
    # Condensing waits until the window is full, and then works in every few steps.
    early, late = statistics.fmean(calls[45:95]), statistics.fmean(calls[-50:])
    assert late < 1.02 * early, (early, late)


@pytest.mark.parametrize("writes", [[], [[3]], [[3], [4, 5]], [[]], [Overwrite([7])], [Overwrite(None)]])
def test_an_edge_sees_the_list_after_the_writes_of_its_node(writes: list[Any]) -> None:
    channel = (
        get_type_hints(AgentState, include_extras=True)["events"].__metadata__[0].from_checkpoint([1, 2])
    )
    expected = DeltaChannel(extend_list).from_checkpoint([1, 2])
    edge = channel.copy()
    assert expected.update(writes) == edge.update(writes) == bool(writes)
    seen, whole = edge.get(), expected.get()
    assert [*seen] == [*reversed([*reversed(seen)])] == whole
    assert len(seen) == len(whole)
    assert [seen[place] for place in range(-len(whole), len(whole))] == whole * 2
    assert list(seen[1:]) == whole[1:]
    assert list(seen[-2:]) == whole[-2:]
    assert channel.get() == [1, 2]
    with pytest.raises(IndexError):
        seen[len(whole)]


def test_a_list_channel_changes_no_value_that_anybody_holds() -> None:
    channel = get_type_hints(AgentState, include_extras=True)["events"].__metadata__[0].from_checkpoint([])
    random, held, expected = Random(4), [], []
    for number in range(2_000):
        write = [(number, place) for place in range(random.randrange(3))]
        if random.random() < 0.01:
            channel.update([Overwrite(write)])
            expected = write
        else:
            channel.update([write, [number]])
            expected = [*expected, *write, number]
        assert channel.get() == expected
        if random.random() < 0.3:
            held.append((channel.get(), expected))
        elif random.random() < 0.1 and held:
            held.pop()[0].append("a mistake")  # in a value that nobody needs any more
        if random.random() < 0.3 and held:
            held.pop(random.randrange(len(held)))
        assert all(value == then for value, then in held)


def test_a_list_channel_copies_no_list_that_only_it_holds() -> None:
    channel = get_type_hints(AgentState, include_extras=True)["events"].__metadata__[0].from_checkpoint([])
    lists = set()
    for number in range(100):
        channel.update([[number]])
        lists.add(id(channel.value))
    assert len(lists) == 2
    assert channel.get() == list(range(100))
