"""Time travel with any checkpointer: each checkpoint has its files and shell, and no branch gets the effects of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_takeover.integrations import Sandboxes, SandboxState, open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware, read_events

from ..conftest import RunHarness, scripted_model
from .test_middleware import reply, shell
from .test_sandboxes import at

ANN = at("ann")
pytestmark = pytest.mark.cases(2)
SHOW = "cat log 2>/dev/null; echo $word"
Steps = Generator[tuple[str, str], str, Any]
"""Yields the key and the command of each act, gets its output, and returns the node's update or a `Command`."""


class State(SandboxState, total=False):
    text: str
    seen: str
    """What the last act showed."""
    answer: str


class Player:
    """Builds and runs graphs on a checkpointer, awaited if that is needed."""

    def __init__(self, sandboxes: Any, saver: Any, runner: asyncio.Runner | None = None) -> None:
        self.sandboxes, self.saver, self._runner = sandboxes, saver, runner

    def node(self, body: Callable[[State], Steps]) -> Any:
        """Return a node that makes the acts of a generator."""

        def run(state: State) -> Any:
            return _play(body(state), state, self.sandboxes.current())

        async def arun(state: State) -> Any:
            return await _aplay(body(state), state, await self.sandboxes.acurrent())

        return run if self._runner is None else arun

    def chain(self, *bodies: Callable[[State], Steps], **options: Any) -> Any:
        """Return a graph of nodes, one after another, that have the names of their functions."""
        builder = StateGraph(State)
        builder.add_sequence([(each.__name__, self.node(each)) for each in bodies])
        builder.add_edge(START, bodies[0].__name__)
        return builder.compile(**{"checkpointer": self.saver, **options})

    def invoke(self, graph: Any, given: Any, config: Any = ANN) -> Any:
        if self._runner is None:
            return graph.invoke(given, config)
        return self._runner.run(graph.ainvoke(given, config))

    def state(self, graph: Any, config: Any = ANN, **options: Any) -> Any:
        if self._runner is None:
            return graph.get_state(config, **options)
        return self._runner.run(graph.aget_state(config, **options))

    def update(self, graph: Any, config: Any, values: Any, **options: Any) -> Any:
        if self._runner is None:
            return graph.update_state(config, values, **options)
        return self._runner.run(graph.aupdate_state(config, values, **options))

    def history(self, graph: Any) -> list[Any]:
        """List the checkpoints, oldest first."""

        async def collect() -> list[Any]:
            return [each async for each in graph.aget_state_history(ANN)]

        found = [*graph.get_state_history(ANN)] if self._runner is None else self._runner.run(collect())
        return found[::-1]

    def find(self, graph: Any, node: str, number: int = 0) -> Any:
        """Return the config of the checkpoint before a node, of several the one with a number."""
        return [each for each in self.history(graph) if each.next == (node,)][number].config

    def show(self, values: Any) -> list[str]:
        """Return the words of the file `log` and of the shell variable in a state's sandbox."""

        def read(work: Any) -> list[str]:
            shown: str = work.enter(values.get("sandbox_state")).run(SHOW, timeout_s=10).output
            return shown.split()

        if not isinstance(self.sandboxes, Sandboxes):
            return read(self.sandboxes)
        with self.sandboxes.open("ann") as work:
            return read(work)


def _play(steps: Steps, state: State, work: Any) -> Any:
    sandbox_state, shown = state.get("sandbox_state"), None
    try:
        while True:
            key, command = steps.send(shown)  # type: ignore[arg-type]
            done = work.act(key, _run(command), state=sandbox_state)
            sandbox_state, shown = done.state, done.value
    except StopIteration as end:
        return _add_state(end.value, sandbox_state)


async def _aplay(steps: Steps, state: State, work: Any) -> Any:
    sandbox_state, shown = state.get("sandbox_state"), None
    try:
        while True:
            key, command = steps.send(shown)  # type: ignore[arg-type]
            done = await work.aact(key, _run(command), state=sandbox_state)
            sandbox_state, shown = done.state, done.value
    except StopIteration as end:
        return _add_state(end.value, sandbox_state)


def _run(command: str) -> Callable[[Any], str]:
    return lambda box: str(box.run(command, timeout_s=10).output)


def _add_state(value: Any, sandbox_state: str | None) -> Any:
    if isinstance(value, Command):
        return Command(goto=value.goto, update={**value.update, "sandbox_state": sandbox_state})  # type: ignore[dict-item]
    return {**value, "sandbox_state": sandbox_state}


def write(word: str) -> tuple[str, str]:
    """Return an act that adds a word to the file `log`, puts it into a shell variable, and shows both."""
    return "write", f"echo {word} >> log; word=${{word}}-{word}; {SHOW}"


def note(state: State) -> Steps:
    return {"seen": (yield write(state["text"]))}


def first(state: State) -> Steps:
    return {"seen": (yield write("first"))}


def second(state: State) -> Steps:
    return {"seen": (yield write(f"second-{state.get('text', '')}"))}


def ask(state: State) -> Steps:
    yield write("asked")
    answer = interrupt("yes or no?")
    return {"seen": (yield write(answer)), "answer": answer}


def words(*names: str) -> list[str]:
    """Return what `show` returns after some words."""
    return [*names, "".join(f"-{each}" for each in names)] if names else []


@pytest.fixture(
    params=[
        "sqlite",
        "async",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("memory", "home", "postgres")),
    ]
)
def player(request: pytest.FixtureRequest, bench: RunHarness, tmp_path: Path) -> Iterator[Player]:
    path = str(tmp_path / "chats.sqlite")
    with ExitStack() as stack:
        if request.param == "home":
            work = stack.enter_context(open_sandbox(bench.home, "ann", sandbox=bench.spec))
            yield Player(work, work.saver)
            return
        sandboxes = stack.enter_context(Sandboxes(bench.home, bench.spec, wait_s=20))
        if request.param == "async":
            runner = stack.enter_context(asyncio.Runner())
            opened = AsyncSqliteSaver.from_conn_string(path)
            saver: Any = runner.run(opened.__aenter__())
            stack.callback(lambda: runner.run(opened.__aexit__(None, None, None)))
            yield Player(sandboxes, saver, runner)
            return
        if request.param == "memory":
            saver = InMemorySaver()
        elif request.param == "sqlite":
            saver = stack.enter_context(SqliteSaver.from_conn_string(path))
        else:
            from langgraph.checkpoint.postgres import PostgresSaver

            url = request.getfixturevalue("postgres_database")
            saver = stack.enter_context(PostgresSaver.from_conn_string(url))
            saver.setup()
        yield Player(sandboxes, saver)


def test_each_checkpoint_has_its_files_and_shell(player: Player) -> None:
    graph = player.chain(note, second)
    for word in ("a", "b"):
        player.invoke(graph, {"text": word})
    seen = [(each.values.get("seen", "").split(), player.show(each.values)) for each in player.history(graph)]
    assert all(told == shown for told, shown in seen)
    assert seen[-1][1] == words("a", "second-a", "b", "second-b")
    assert [len(shown) for _, shown in seen] == [0, 0, 2, 3, 3, 3, 4, 5]


def test_an_update_continues_with_the_files_of_its_checkpoint(player: Player) -> None:
    graph = player.chain(first, second)
    player.invoke(graph, {"text": "a"})
    fork = player.update(graph, player.find(graph, "second"), {"text": "b"})
    assert player.show(player.invoke(graph, None, fork)) == words("first", "second-b")
    end = player.invoke(graph, {"text": "c"})
    assert player.show(end) == words("first", "second-b", "first", "second-c")


@pytest.mark.cases(1)
def test_an_update_can_choose_the_files_of_another_checkpoint(player: Player) -> None:
    graph = player.chain(note)
    for word in ("a", "b", "c"):
        player.invoke(graph, {"text": word})
    earlier = player.state(graph, player.find(graph, "note", 1)).values["sandbox_state"]
    player.update(graph, ANN, {"sandbox_state": earlier})
    end = player.invoke(graph, {"text": "d"})
    assert player.show(end) == words("a", "d")


def test_an_earlier_checkpoint_is_replayed_and_forked(player: Player) -> None:
    graph = player.chain(first, second)
    for word in ("a", "b"):
        player.invoke(graph, {"text": word})
    before = player.find(graph, "second")
    for _ in range(2):
        assert player.show(player.invoke(graph, None, before)) == words("first", "second-a")
    assert player.show(player.invoke(graph, {"text": "c"}, before)) == words("first", "first", "second-c")
    assert player.show(player.invoke(graph, {"text": "d"})) == words(
        "first", "first", "second-c", "first", "second-d"
    )


@pytest.mark.parametrize("checkpointer", [None, True], ids=["inherited", "own"])
def test_an_interrupted_subgraph_is_answered_in_each_fork(player: Player, checkpointer: Any) -> None:
    """The question is in a subgraph, between two of its acts; the subgraph is called twice."""
    inner = player.chain(ask, checkpointer=checkpointer)
    builder = StateGraph(State).add_node("first", player.node(first)).add_node("inner", inner)
    builder.add_node("second", player.node(second))
    builder.add_edge(START, "first").add_edge("first", "inner").add_edge("inner", "second")
    graph = builder.compile(checkpointer=player.saver)
    player.invoke(graph, {"text": "a"})
    asked = player.find(graph, "inner")
    assert player.show(player.invoke(graph, Command(resume="yes"))) == words(
        "first", "asked", "yes", "second-a"
    )
    fork = player.update(graph, asked, {"text": "b"})
    player.invoke(graph, None, fork)
    end = player.invoke(graph, Command(resume="no"))
    assert player.show(end) == words("first", "asked", "no", "second-b")
    assert end["answer"] == "no"
    player.invoke(graph, {"text": "c"})
    end = player.invoke(graph, Command(resume="no"))
    told = words("first", "asked", "no", "second-b", "first", "asked", "no", "second-c")
    assert player.show(end) == told
    player.invoke(graph, None, asked)  # the first branch again
    assert player.show(player.invoke(graph, Command(resume="late"))) == words(
        "first", "asked", "late", "second-a"
    )
    again = player.invoke(
        graph, Command(resume="other"), asked
    )  # LangGraph keeps a checkpoint's first answer
    assert player.show(again) == words("first", "asked", again["answer"], "second-a")


@pytest.mark.cases(1)
def test_a_subgraph_is_changed_at_its_own_checkpoint(player: Player) -> None:
    inner = player.chain(first, ask)
    builder = StateGraph(State).add_node("inner", inner).add_edge(START, "inner")
    graph = builder.compile(checkpointer=player.saver)
    player.invoke(graph, {"text": "a"})
    (task,) = player.state(graph, subgraphs=True).tasks
    player.invoke(graph, Command(resume="yes"))
    base = task.state.values["sandbox_state"]
    fork = player.update(graph, task.state.config, {"text": "b"})
    player.invoke(graph, None, fork)
    end = player.invoke(graph, Command(resume="no"))
    assert player.show(end) == words("first", "asked", "no")
    assert player.show({"sandbox_state": base}) == words("first")


@pytest.mark.cases(1)
def test_a_fork_that_goes_elsewhere(player: Player) -> None:
    def choose(state: State) -> Steps:
        seen = yield write("chose")
        return Command(goto=state["text"], update={"seen": seen})

    def left(state: State) -> Steps:
        return {"seen": (yield write("left"))}

    def right(state: State) -> Steps:
        seen = yield write("right")
        return Command(goto="left", update={"seen": seen})

    builder = StateGraph(State).add_node("choose", player.node(choose), destinations=("left", "right"))
    builder.add_node("left", player.node(left))
    builder.add_node("right", player.node(right), destinations=("left",))
    graph = builder.add_edge(START, "choose").compile(checkpointer=player.saver)
    assert player.show(player.invoke(graph, {"text": "left"})) == words("chose", "left")
    before = player.find(graph, "choose")
    fork = player.update(graph, before, {"text": "right"})
    assert player.show(player.invoke(graph, None, fork)) == words("chose", "right", "left")
    assert player.show(player.invoke(graph, None, before)) == words("chose", "left")
    assert player.show(player.invoke(graph, Command(goto="right"))) == words("chose", "left", "right", "left")


def build_agent(player: Player) -> Any:
    """An agent that writes, asks a person in a tool between two acts, and writes again."""

    def finish(answer: str, runtime: Any, done: Any) -> Command[Any]:
        message = ToolMessage(f"{answer}: {done.value}", tool_call_id=runtime.tool_call_id)
        return Command(update={"messages": [message], "sandbox_state": done.state})

    @tool
    def consult(runtime: ToolRuntime) -> Command[Any]:
        """Ask a person."""
        work, before = player.sandboxes.current(), runtime.state["sandbox_state"]
        begun = work.act(*_as_act(write("asked")), state=before)
        answer = interrupt("yes or no?")
        return finish(answer, runtime, work.act(*_as_act(write(answer)), state=begun.state))

    @tool("consult")
    async def aconsult(runtime: ToolRuntime) -> Command[Any]:
        """Ask a person."""
        work, before = await player.sandboxes.acurrent(), runtime.state["sandbox_state"]
        begun = await work.aact(*_as_act(write("asked")), state=before)
        answer = interrupt("yes or no?")
        return finish(answer, runtime, await work.aact(*_as_act(write(answer)), state=begun.state))

    model = scripted_model(
        shell(write("one")[1]), reply(("consult", {}), text="c"), shell(write("two")[1], text="t"), "Done."
    )
    return create_agent(
        model,
        [consult if player._runner is None else aconsult],
        middleware=[SandboxMiddleware(player.sandboxes)],
        checkpointer=player.saver,
    )


def _as_act(act: tuple[str, str]) -> tuple[str, Callable[[Any], str]]:
    return act[0], _run(act[1])


def test_a_tool_asks_again_in_each_fork(player: Player) -> None:
    agent = build_agent(player)
    player.invoke(agent, {"messages": [("user", "Go.")]})
    asked = player.find(agent, "tools", 1)
    player.invoke(agent, None, player.find(agent, "model", 1))  # a step back: asked again, then approved
    end = player.invoke(agent, Command(resume="yes"))
    assert player.show(end) == words("one", "asked", "yes", "two")
    player.invoke(agent, None, player.update(agent, asked, {}, as_node="model"))
    end = player.invoke(agent, Command(resume="no"))
    assert player.show(end) == words("one", "asked", "no", "two")
    assert "no: " in str(end["messages"])
    assert "yes" not in str([each.content for each in end["messages"]])
    assert "yes" not in str(read_events(player.sandboxes._home, end, thread="ann"))
