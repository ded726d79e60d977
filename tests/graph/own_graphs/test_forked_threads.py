"""Forks of a thread have its conversation and its sandbox; the chosen one becomes the thread's newest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_takeover.errors import ThreadExistsError, ThreadHeldError, ThreadNotFoundError
from langgraph_takeover.integrations import Sandboxes, choose_fork, fork_thread

from ..conftest import RunHarness
from .test_sandboxes import AsyncOnlySaver, State, append, at, build


@pytest.fixture
def sandboxes(bench: RunHarness) -> Iterator[Sandboxes]:
    with Sandboxes(bench.home, bench.spec, wait_s=0) as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "sqlite":
        with SqliteSaver.from_conn_string(str(tmp_path / "chats.sqlite")) as opened:
            yield opened
    else:
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(request.getfixturevalue("postgres_database")) as opened:
            opened.setup()
            yield opened


def test_forks_continue_and_one_is_chosen(sandboxes: Sandboxes, saver: Any) -> None:
    graph = build(sandboxes, saver)
    for text in "12":
        graph.invoke({"text": text}, at("ann"))
    forks = fork_thread(sandboxes, "ann", saver=saver, n=2)
    assert forks == ("ann.fork-1", "ann.fork-2")
    for number, fork in enumerate(forks):
        for text in "ab":
            end = graph.invoke({"text": f"{text}{number}"}, at(fork))
        assert end["lines"] == ["1", "2", f"a{number}", f"b{number}"]
    assert graph.get_state(at("ann")).values["lines"] == ["1", "2"]
    choose_fork(sandboxes, "ann.fork-2", saver=saver, thread="ann")
    assert graph.get_state(at("ann")).values["lines"] == ["1", "2", "a1", "b1"]
    assert graph.invoke({"text": "3"}, at("ann"))["lines"] == ["1", "2", "a1", "b1", "3"]
    assert graph.invoke({"text": "c"}, at("ann.fork-1"))["lines"] == ["1", "2", "a0", "b0", "c"]
    history = [each.values.get("lines") for each in graph.get_state_history(at("ann"))]
    assert ["1", "2"] in history


def test_a_fork_outlives_its_source(bench: RunHarness, sandboxes: Sandboxes, saver: Any) -> None:
    graph = build(sandboxes, saver)
    graph.invoke({"text": "1"}, at("ann"))
    (fork,) = fork_thread(sandboxes, "ann", saver=saver)
    with sandboxes.open("ann") as work:
        work.session.forget_snapshots()
    bench.home.remove_unused_snapshots()
    assert graph.invoke({"text": "2"}, at(fork))["lines"] == ["1", "2"]


def test_an_earlier_checkpoint_can_be_forked(sandboxes: Sandboxes, saver: Any) -> None:
    graph = build(sandboxes, saver)
    for text in "123":
        graph.invoke({"text": text}, at("ann"))
    first = next(each for each in graph.get_state_history(at("ann")) if each.values.get("lines") == ["1"])
    checkpoint = first.config["configurable"]["checkpoint_id"]
    (fork,) = fork_thread(sandboxes, "ann", saver=saver, checkpoint_id=checkpoint)
    assert graph.invoke({"text": "x"}, at(fork))["lines"] == ["1", "x"]


def test_forks_answer_the_question_of_their_thread(sandboxes: Sandboxes, saver: Any) -> None:
    def node(state: State) -> State:
        work = sandboxes.current()
        first = work.act("a", append("a"), state=state.get("sandbox_state"))
        second = work.act("b", append(interrupt("yes or no?")), state=first.state)
        return {"sandbox_state": second.state, "lines": second.value}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile(checkpointer=saver)
    graph.invoke({}, at("ann"))
    forks = fork_thread(sandboxes, "ann", saver=saver, n=2)
    for fork, answer in zip(forks, ("yes", "no"), strict=True):
        assert graph.get_state(at(fork)).interrupts[0].value == "yes or no?"
        assert graph.invoke(Command(resume=answer), at(fork))["lines"] == ["a", answer]
    assert graph.get_state(at("ann")).interrupts[0].value == "yes or no?"
    choose_fork(sandboxes, forks[1], saver=saver, thread="ann")
    assert graph.get_state(at("ann")).values["lines"] == ["a", "no"]


def test_subgraphs_with_checkpoints_of_their_own_are_copied(sandboxes: Sandboxes, saver: Any) -> None:
    inner = build(sandboxes, None)
    inner.checkpointer = True
    builder = StateGraph(State).add_node("inner", inner).add_edge(START, "inner")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"text": "1"}, at("ann"))
    (fork,) = fork_thread(sandboxes, "ann", saver=saver)
    namespaces = {each.config["configurable"]["checkpoint_ns"] for each in saver.list(at(fork))}
    assert namespaces == {"", "inner"}
    assert graph.invoke({"text": "2"}, at(fork))["lines"] == ["1", "2"]


@pytest.mark.parametrize("kind", ["sqlite", "platform"])
def test_forks_in_an_event_loop(bench: RunHarness, tmp_path: Path, kind: str) -> None:
    async def fork(saver: Any) -> None:
        async with Sandboxes(bench.home, bench.spec) as sandboxes:
            graph = build(sandboxes, saver)
            await graph.ainvoke({"text": "1"}, at("ann"))
            (name,) = await bench.home.acall(fork_thread, sandboxes, "ann", saver=saver)
            end = await graph.ainvoke({"text": "2"}, at(name))
            assert end["lines"] == ["1", "2"]
            await bench.home.acall(choose_fork, sandboxes, name, saver=saver, thread="ann")
            assert (await graph.aget_state(at("ann"))).values["lines"] == ["1", "2"]

    async def main() -> None:
        if kind == "platform":
            await fork(AsyncOnlySaver())
            return
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "chats.sqlite")) as saver:
            await saver.setup()
            await fork(saver)

    asyncio.run(main())


def test_wrong_forks_are_explained(bench: RunHarness, sandboxes: Sandboxes) -> None:
    saver = InMemorySaver()
    graph = build(sandboxes, saver)
    graph.invoke({"text": "1"}, at("ann"))
    with pytest.raises(ThreadNotFoundError, match="'ben'"):
        fork_thread(sandboxes, "ben", saver=saver)
    with pytest.raises(ThreadNotFoundError, match="no checkpoint 7 is"):
        fork_thread(sandboxes, "ann", saver=saver, checkpoint_id="7")
    fork_thread(sandboxes, "ann", saver=saver)
    with pytest.raises(ThreadExistsError, match="fork-1"):
        fork_thread(sandboxes, "ann", saver=saver, n=2)
    with (
        Sandboxes(bench.home, bench.spec, wait_s=0) as other,
        other.open("ann"),
        pytest.raises(ThreadHeldError),
    ):
        choose_fork(sandboxes, "ann.fork-1", saver=saver, thread="ann")
    assert graph.invoke({"text": "2"}, at("ann"))["lines"] == ["1", "2"]
