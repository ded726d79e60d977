"""Threads of users' graphs: whose a thread is, pruning, repair, and deletion that leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from langgraph_takeover import hand_over, open_home, open_run, resume
from langgraph_takeover.errors import (
    FencedError,
    ForeignThreadError,
    HandedOverError,
    HandoffError,
    SandboxStateLostError,
    SnapshotNotFoundError,
    ThreadHeldError,
    ThreadNotFoundError,
    ThreadNotHeldError,
)
from langgraph_takeover.handoff.ledger import handoffs
from langgraph_takeover.integrations import SandboxState, ThreadSandbox, open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware, complete_handoff, receive_record
from langgraph_takeover.protocol import roll_back
from langgraph_takeover.sandbox import Sandbox

from ..conftest import DONE, RunHarness, native_reply, scripted_model

CONFIG: Any = {"configurable": {"thread_id": "own"}}
SECRET = "hunter2-planted-secret"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class State(SandboxState):
    report: str
    best: str


def hold(bench: RunHarness, thread: str = "own", **options: Any) -> Any:
    return open_sandbox(bench.home, thread, sandbox=bench.spec, **options)


def append(text: str) -> Callable[[Sandbox], str]:
    return lambda sandbox: sandbox.run(f"echo {text} >> log; cat log", timeout_s=10).output


def build(work: ThreadSandbox, *, asks: bool = False) -> Any:
    def make(name: str) -> Any:
        def node(state: State) -> Any:
            done = work.act(name, append(name), state=state.get("sandbox_state"))
            if name == "a":
                return {"sandbox_state": done.state, "best": done.state}
            if asks and name == "b":
                interrupt("go on?")
            return {"sandbox_state": done.state, "report": f"important {name}"}

        return node

    return (
        StateGraph(State)
        .add_sequence([(name, make(name)) for name in "abc"])
        .add_edge(START, "a")
        .compile(checkpointer=work.saver)
    )


def run_own_graph(bench: RunHarness) -> dict[str, Any]:
    with hold(bench) as work:
        return dict(build(work).invoke({}, CONFIG))


def load_values(bench: RunHarness, thread: str = "own") -> dict[str, Any]:
    stored = bench.home.saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
    assert stored is not None
    return dict(stored.checkpoint["channel_values"])


@pytest.mark.parametrize("kind", ["own", "agent"])
def test_the_runtime_refuses_threads_of_other_graphs(bench: RunHarness, kind: str) -> None:
    if kind == "own":
        run_own_graph(bench)
    else:
        with hold(bench) as work:
            model = scripted_model(native_reply(("shell", '{"command": "echo 1 > new.txt"}')), "Done.")
            agent = create_agent(model, middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
            agent.invoke({"messages": [("user", "Go.")]}, CONFIG)
    before, model = load_values(bench), scripted_model(DONE)
    options: dict[str, Any] = {"model": model, "sandbox": bench.spec}
    calls: list[Callable[[], Any]] = [
        lambda: open_run(bench.home, "own", **options).__enter__(),
        lambda: resume(bench.home, "own", **options),
        lambda: bench.run(model, thread="own"),
    ]
    for call in calls:
        with pytest.raises(ForeignThreadError, match="thread 'own' belongs to a graph of your own"):
            call()
    assert load_values(bench) == before
    assert bench.home.status("own") == "finished"
    assert all(each.is_restorable for each in bench.home.history("own"))


def test_an_own_graph_cannot_open_a_thread_of_the_runtime(bench: RunHarness) -> None:
    bench.run(scripted_model(DONE))
    before = load_values(bench, "thread")
    with pytest.raises(ForeignThreadError, match="thread 'thread' belongs to a run"), hold(bench, "thread"):
        pass
    assert load_values(bench, "thread") == before
    with bench.open_run(scripted_model(DONE)) as run:
        run.prune()


def test_a_record_is_received_through_the_ledger(bench: RunHarness) -> None:
    """The source can no longer write, the successor works, and a roll-back returns the work to the source."""

    def build_agent(work: ThreadSandbox, command: str) -> Any:
        model = scripted_model(native_reply(("shell", json.dumps({"command": command}))), "Done.")
        return create_agent(model, middleware=[SandboxMiddleware(work)], checkpointer=work.saver)

    given: Any = {"messages": [("user", "Go.")]}
    with hold(bench) as work:
        (record,) = build_agent(work, "sed -i s/1/2/ pkg/core.py").invoke(given, CONFIG)["records"]
    handoff = hand_over(bench.home, record, target="tester")
    assert hand_over(bench.home, record, target="reviewer").state == "offered"
    config: Any = {"configurable": {"thread_id": "next"}}
    with hold(bench) as source, hold(bench, "next") as work:
        with pytest.raises(HandoffError, match="offered to tester, reviewer"):
            receive_record(work, record)
        for _ in range(2):
            taken = receive_record(work, record, agent_name="tester")
        assert handoffs.load(bench.home.ledger, handoff.id).state == "active"
        with pytest.raises((FencedError, HandedOverError)):
            source.act("late", append("late"), state=None)
        end = build_agent(work, "cat pkg/core.py").invoke(taken, config)
        assert "return n + 2" in str(end["messages"])
        done = complete_handoff(work, "all tests pass")
        assert done is not None
        assert (done.state, done.successor) == ("completed", "next")
    with pytest.raises(HandedOverError), hold(bench):
        pass
    assert roll_back(bench.home, handoff.id, by="me", sandbox=bench.spec).events == 2
    with hold(bench) as work:
        agent = create_agent(
            scripted_model("", "Done."), middleware=[SandboxMiddleware(work)], checkpointer=work.saver
        )
        end = agent.invoke(None, CONFIG)
        assert work.enter(end["sandbox_state"]).read_file("pkg/core.py").endswith(b"n + 2\n")
        assert complete_handoff(work) is None


def test_status_of_own_graphs(bench: RunHarness) -> None:
    with hold(bench) as work:
        graph = build(work, asks=True)
        graph.invoke({}, CONFIG, interrupt_before=["b"])
        assert bench.home.status("own") == "running"
    assert bench.home.status("own") == "stopped"
    with hold(bench) as work:
        build(work, asks=True).invoke(None, CONFIG)
    assert bench.home.status("own") == "waiting"


def list_snapshots(bench: RunHarness) -> int:
    return len([*bench.home.snapshot_directory.iterdir()])


def test_pruning_keeps_the_newest_checkpoint_with_all_channels(bench: RunHarness) -> None:
    end = run_own_graph(bench)
    assert list_snapshots(bench) == 3
    with hold(bench) as work:
        graph = build(work)
        work.prune()
        assert graph.get_state(CONFIG).values == end
        # The state in another channel has its snapshot, too.
        assert work.enter(end["best"]).read_file("log") == b"a\n"
        assert work.enter(end["sandbox_state"]).read_file("log") == b"a\nb\nc\n"
    assert list_snapshots(bench) == 2
    (only,) = bench.home.history("own")
    assert only.is_restorable
    with hold(bench) as work:
        again = build(work).invoke({}, CONFIG)
        assert work.enter(again["sandbox_state"]).read_file("log") == b"a\nb\nc\na\nb\nc\n"


def test_a_waiting_thread_can_be_pruned(bench: RunHarness) -> None:
    from langgraph.types import Command

    with hold(bench) as work:
        build(work, asks=True).invoke({}, CONFIG)
        work.prune()
    with hold(bench) as work:
        end = build(work, asks=True).invoke(Command(resume="yes"), CONFIG)
        assert work.enter(end["sandbox_state"]).read_file("log") == b"a\nb\nc\n"


def test_pruning_an_empty_thread(bench: RunHarness) -> None:
    with hold(bench) as work, pytest.raises(ThreadNotFoundError, match="no graph has run on it"):
        work.prune()


def poison(work: ThreadSandbox, value: Any) -> None:
    """Store a checkpoint without the state of the sandbox."""
    stored = work.saver.get_tuple(CONFIG)
    assert stored is not None
    stored.checkpoint["channel_values"]["sandbox_state"] = value
    version = work.saver.get_next_version(stored.checkpoint["channel_versions"]["sandbox_state"], None)
    stored.checkpoint["channel_versions"]["sandbox_state"] = version
    stored.checkpoint["id"] = stored.checkpoint["id"][:-4] + "ffff"
    work.saver.put(
        stored.parent_config or CONFIG, stored.checkpoint, stored.metadata, {"sandbox_state": version}
    )


@pytest.mark.parametrize("value", [None, ""])
def test_a_poisoned_thread_is_refused_and_repaired(bench: RunHarness, value: Any) -> None:
    with hold(bench) as work:
        build(work).invoke({}, CONFIG, interrupt_before=["c"])
        good = load_values(bench)["sandbox_state"]
        poison(work, value)
        graph = build(work)
        with pytest.raises(SandboxStateLostError, match="repair"):
            graph.invoke(None, CONFIG)
        assert work.repair() != "base"
        end = graph.invoke(None, CONFIG)
        assert end["report"] == "important c"
        assert work.enter(end["sandbox_state"]).read_file("log").split()[-1] == b"c"
        assert work.repair() == end["sandbox_state"]
        assert work.repair(good) == good
        assert graph.get_state(CONFIG).values == end | {"sandbox_state": good}
        with pytest.raises(SnapshotNotFoundError):
            work.repair("0123456789abcdef")


def find_in_files(directory: Path, secret: str) -> list[str]:
    """The files, of any kind and depth, whose bytes have the secret."""
    found = []
    for root, _, names in os.walk(directory):
        found += [name for name in names if secret.encode() in Path(root, name).read_bytes()]
    return found


def find_in_database(bench: RunHarness, secret: str) -> list[str]:
    """The tables of PostgreSQL that have the secret."""
    from sqlalchemy import create_engine, inspect, text

    if bench.home.ledger.is_sqlite:
        return []
    engine = create_engine(bench.home.ledger.url)
    with engine.connect() as connection:
        names = [
            name
            for name in inspect(connection).get_table_names()
            if connection.execute(
                text(f"SELECT 1 FROM {name} t WHERE t::text LIKE :secret OR t::text LIKE :digits"),
                {"secret": f"%{secret}%", "digits": f"%{secret.encode().hex()}%"},
            ).first()
        ]
    engine.dispose()
    return names


def search(bench: RunHarness) -> list[str]:
    return find_in_files(bench.home.directory, SECRET) + find_in_database(bench, SECRET)


@pytest.mark.parametrize("way", ["saver", "async", "home"])
def test_nothing_of_a_deleted_thread_remains(
    bench: RunHarness, way: Literal["saver", "async", "home"]
) -> None:
    def leak(state: State) -> Any:
        done = work.act("leak", append(SECRET), state=state.get("sandbox_state"))
        return {"sandbox_state": done.state, "report": done.value}

    def build_leak() -> Any:
        # The journal drops the first node's act when the second acts.
        builder = StateGraph(State).add_sequence([("leak", leak), ("again", leak)])
        return builder.add_edge(START, "leak").compile(checkpointer=work.saver)

    with hold(bench, "kept") as work:
        kept = work.act("keep", append("kept"), state=None)
    with hold(bench) as work:
        build_leak().invoke({}, CONFIG)
        work.act("script", append(SECRET), state=None)
        assert search(bench)
        if way == "saver":
            work.saver.delete_thread("own")
            clean = work.act("script", append("clean"), state=None)
            assert clean.value == "clean\n"
            assert search(bench) == []
        elif way == "async":
            asyncio.run(work.saver.adelete_thread("own"))
        else:
            with pytest.raises(ThreadHeldError):
                bench.home.delete_thread("own")
    if way == "home":
        bench.home.delete_thread("own")
    assert search(bench) == []
    assert bench.home.status("own") == ("elsewhere" if way == "saver" else "empty"), "it acted since"
    with hold(bench, "kept") as work:
        assert work.enter(kept.state).read_file("log") == b"kept\n"


def test_records_are_deleted_by_choice(bench: RunHarness) -> None:
    for with_records in (False, True):
        with hold(bench) as work:
            model = scripted_model(
                native_reply(("shell", f'{{"command": "echo {SECRET} >> pkg/core.py"}}')), "Done."
            )
            agent = create_agent(model, middleware=[SandboxMiddleware(work)], checkpointer=work.saver)
            (record,) = agent.invoke({"messages": [("user", "Go.")]}, CONFIG)["records"]
        bench.home.delete_thread("own", records=with_records)
        assert (record in bench.store.list_ids()) is not with_records
    assert search(bench) == []
    bench.home.delete_thread("own", records=True)
    with pytest.raises(ThreadNotFoundError):
        bench.home.delete_thread("unknown")


def test_a_killed_deletion_is_finished_at_the_next_opening(
    bench: RunHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_own_graph(bench)
    with monkeypatch.context() as patch:
        patch.setattr(type(bench.home), "finish_deletions", lambda self: None)  # as if it was killed here
        bench.home.delete_thread("own")
    assert list_snapshots(bench) == 3
    url = None if bench.home.ledger.is_sqlite else bench.home.ledger.url
    with open_home(bench.home.directory, url):
        assert list_snapshots(bench) == 0


def test_a_held_thread_can_be_read(bench: RunHarness) -> None:
    """By the home's saver, with which nothing can be written."""
    reader = (
        StateGraph(State)
        .add_node("a", lambda state: {})
        .add_edge(START, "a")
        .compile(checkpointer=bench.home.saver)
    )
    with hold(bench) as work:
        end = build(work).invoke({}, CONFIG)
        assert reader.get_state(CONFIG).values == end
        assert asyncio.run(reader.aget_state(CONFIG)).values == end
        assert len([*reader.get_state_history(CONFIG)]) == 5
        with pytest.raises(ThreadNotHeldError, match="this saver only reads"):
            reader.invoke({}, CONFIG)
