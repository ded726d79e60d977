"""Forks of a thread have its conversation and its sandbox; the chosen one becomes the thread's newest."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from langgraph_takeover.errors import (
    SettingsError,
    ThreadAdvancedError,
    ThreadHeldError,
    ThreadNotFoundError,
)
from langgraph_takeover.integrations import Sandboxes, SandboxState, choose_fork, fork_thread
from langgraph_takeover.middleware import SandboxMiddleware

from ..conftest import RunHarness, native_reply, scripted_model
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
    with pytest.raises(SettingsError, match="n: invalid number 0"):
        fork_thread(sandboxes, "ann", saver=saver, n=0)
    fork_thread(sandboxes, "ann", saver=saver)
    assert fork_thread(sandboxes, "ann", saver=saver, n=2) == ("ann.fork-2", "ann.fork-3")
    with (
        Sandboxes(bench.home, bench.spec, wait_s=0) as other,
        other.open("ann"),
        pytest.raises(ThreadHeldError),
    ):
        choose_fork(sandboxes, "ann.fork-1", saver=saver, thread="ann")
    assert graph.invoke({"text": "2"}, at("ann"))["lines"] == ["1", "2"]


class Words(SandboxState):
    words: Annotated[list[str], operator.add]


def write(sandboxes: Sandboxes, state: Words, text: str) -> Words:
    work = sandboxes.current()
    act = work.act(
        text,
        lambda box: box.run(f"echo {text} >> log-{text}; cat log-*", timeout_s=10).output.split(),
        state=state.get("sandbox_state"),
    )
    return {"words": act.value, "sandbox_state": act.state}


def build_branches(sandboxes: Sandboxes, saver: Any, counts: Counter[str]) -> Any:
    """A graph in whose second step one branch ends, and the other one asks."""

    def node(name: str, state: Words) -> Words:
        counts[name] += 1
        return write(sandboxes, state, str(interrupt("name?")) if name == "asking" else name)

    builder = StateGraph(Words)
    for name in ("first", "ending", "asking", "last"):
        builder.add_node(name, partial(node, name))
    builder.add_edge(START, "first").add_edge("first", "ending").add_edge("first", "asking")
    return builder.add_edge(["ending", "asking"], "last").compile(checkpointer=saver)


def test_an_unfinished_step_is_forked_and_chosen(sandboxes: Sandboxes, saver: Any) -> None:
    """With the work of the branch that has ended, which is not repeated."""
    counts = Counter[str]()
    graph = build_branches(sandboxes, saver, counts)
    graph.invoke({}, at("ann"))
    forks = fork_thread(sandboxes, "ann", saver=saver, n=2)
    end = graph.invoke(Command(resume="ann"), at(forks[0]))
    assert end["words"][-4:] == ["ann", "ending", "first", "last"]
    choose_fork(sandboxes, forks[1], saver=saver, thread="ann")
    assert graph.invoke(Command(resume="ben"), at("ann"))["words"][-4:] == ["ben", "ending", "first", "last"]
    assert counts["first"] == counts["ending"] == 1


def test_a_chosen_fork_may_wait_for_an_answer(sandboxes: Sandboxes, saver: Any) -> None:
    counts = Counter[str]()
    graph = build_branches(sandboxes, saver, counts)
    done = StateGraph(Words).add_node("first", partial(write, sandboxes, text="old")).add_edge(START, "first")
    done.compile(checkpointer=saver).invoke({}, at("ann"))
    (fork,) = fork_thread(sandboxes, "ann", saver=saver)
    graph.invoke({}, at(fork))
    choose_fork(sandboxes, fork, saver=saver, thread="ann")
    end = graph.invoke(Command(resume="ann"), at("ann"))
    assert end["words"][-5:] == ["ann", "ending", "first", "last", "old"]
    assert counts["ending"] == 1
    graph.invoke({}, at(fork))
    graph.invoke({}, at("ann"))
    with pytest.raises(ThreadAdvancedError, match="thread 'ann': it has advanced since"):
        choose_fork(sandboxes, fork, saver=saver, thread="ann")


def test_a_fork_asks_what_the_thread_asks(sandboxes: Sandboxes, saver: Any) -> None:
    """The agent is a subgraph: its own checkpoint has the call that waits."""
    model = scripted_model(
        *(native_reply(("shell", f'{{"command": "echo {n} >> log"}}')) for n in "123"), "Done."
    )
    middleware = [SandboxMiddleware(sandboxes), HumanInTheLoopMiddleware({"shell": True})]
    agent = create_agent(model, middleware=middleware)

    class Chat(SandboxState):
        messages: Annotated[list[Any], add_messages]

    graph = StateGraph(Chat).add_node("agent", agent).add_edge(START, "agent").compile(checkpointer=saver)

    def ask(value: Any, thread: str) -> list[str]:
        found = graph.invoke(value, at(thread)).get("__interrupt__", ())
        return [each["args"]["command"] for one in found for each in one.value["action_requests"]]

    approve = Command(resume={"decisions": [{"type": "approve"}]})
    assert ask({"messages": [("user", "Go.")]}, "ann") == ["echo 1 >> log"]
    assert ask(approve, "ann") == ["echo 2 >> log"]
    (fork,) = fork_thread(sandboxes, "ann", saver=saver)
    assert ask(approve, fork) == ["echo 3 >> log"]
    assert ask(approve, fork) == []
    assert ask(approve, "ann") == ["echo 3 >> log"]
    with sandboxes.open(fork) as work:
        assert work.enter(graph.get_state(at(fork)).values["sandbox_state"]).read_file("log") == b"1\n2\n3\n"


def test_the_memory_of_a_subgraph_is_forked_and_chosen(sandboxes: Sandboxes, saver: Any) -> None:
    """Of one with `checkpointer=True`, which keeps its state between the thread's runs."""

    class Memory(TypedDict):
        text: str
        seen: Annotated[list[str], operator.add]

    inner = (
        StateGraph(Memory).add_node("note", lambda state: {"seen": [state["text"]]}).add_edge(START, "note")
    )
    memory = inner.compile(checkpointer=True)

    def node(state: State) -> Any:
        seen = memory.invoke({"text": state["text"]})["seen"]
        act = sandboxes.current().act("log", append(state["text"]), state=state.get("sandbox_state"))
        return {"lines": seen, "sandbox_state": act.state}

    graph = StateGraph(State).add_node(node).add_edge(START, "node").compile(checkpointer=saver)
    for text in "12":
        graph.invoke({"text": text}, at("ann"))
    (fork,) = fork_thread(sandboxes, "ann", saver=saver)
    assert graph.invoke({"text": "3"}, at(fork))["lines"] == ["1", "2", "3"]
    choose_fork(sandboxes, fork, saver=saver, thread="ann")
    assert graph.invoke({"text": "4"}, at("ann"))["lines"] == ["1", "2", "3", "4"]
    choose_fork(sandboxes, fork, saver=saver, thread="ann")
    assert graph.invoke({"text": "5"}, at("ann"))["lines"] == ["1", "2", "3", "5"]


def test_a_thread_that_the_saver_copied_has_its_files(bench: RunHarness, sandboxes: Sandboxes) -> None:
    """As LangGraph's server copies threads; also when the source's snapshots are gone later."""
    saver = InMemorySaver()
    graph = build(sandboxes, saver)
    graph.invoke({"text": "1"}, at("ann"))
    for stored in [*saver.list(at("ann"))][::-1]:
        config: Any = {"configurable": {"thread_id": "copy", "checkpoint_ns": ""}}
        saver.put(config, stored.checkpoint, stored.metadata, stored.checkpoint["channel_versions"])
    assert graph.invoke({"text": "2"}, at("copy"))["lines"] == ["1", "2"]
    bench.home.delete_thread("ann")
    first = [*graph.get_state_history(at("copy"))][-3]
    assert first.values["lines"] == ["1"]
    assert graph.invoke({"text": "3"}, graph.update_state(first.config, {}))["lines"] == ["1", "3"]
