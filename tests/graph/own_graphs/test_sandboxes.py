"""A graph that is compiled once: each thread has its own sandbox, in every run, process and fork."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest
from blockbuster import blockbuster_ctx
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from langgraph_takeover.errors import (
    FencedError,
    LedgerUnavailableError,
    SandboxStateLostError,
    SettingsError,
    ThreadAdvancedError,
    ThreadHeldError,
    ThreadNameError,
)
from langgraph_takeover.integrations import Sandboxes, SandboxRequest, SandboxState
from langgraph_takeover.middleware import SandboxMiddleware, read_events
from langgraph_takeover.sandbox import Sandbox

from ..conftest import RunHarness, scripted_model
from .many_threads import make_repository, run_and_kill
from .test_middleware import shell

SERVER = Path(__file__).with_name("sandboxes_server.py")


class State(SandboxState, total=False):
    text: str
    lines: list[str]
    answer: str


class AsyncOnlySaver(InMemorySaver):
    """A saver like that of LangGraph's platform, whose synchronous methods are not implemented."""

    def get_tuple(self, config: Any) -> Any:
        raise NotImplementedError

    def list(self, config: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def put(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def aget_tuple(self, config: Any) -> Any:
        return super().get_tuple(config)

    async def alist(self, config: Any, **kwargs: Any) -> AsyncIterator[Any]:
        for each in super().list(config, **kwargs):
            yield each

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        return super().put(*args, **kwargs)


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def append(text: str) -> Callable[[Sandbox], list[str]]:
    return lambda box: box.run(f"echo {text} >> log; cat log", timeout_s=10).output.split()


def build(sandboxes: Sandboxes, saver: Any, *, meanwhile: Callable[[State], Any] = lambda _: None) -> Any:
    def node(state: State) -> State:
        act = sandboxes.current().act("append", append(state["text"]), state=state.get("sandbox_state"))
        meanwhile(state)
        return {"sandbox_state": act.state, "lines": act.value}

    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile(checkpointer=saver)


def list_open(sandboxes: Sandboxes) -> list[str]:
    kept = [(each.name, each.kept) for each in sandboxes.list_threads()]
    return sorted(name for name, warm in kept if warm is not None and warm.work.session.count_sandboxes())


def wait_until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


@pytest.fixture
def sandboxes(bench: RunHarness) -> Iterator[Sandboxes]:
    with Sandboxes(bench.home, bench.spec, wait_s=20) as opened:
        yield opened


def test_each_thread_has_files_of_its_own(sandboxes: Sandboxes) -> None:
    graph = build(sandboxes, InMemorySaver())
    assert graph.invoke({"text": "1"}, at("ann"))["lines"] == ["1"]
    assert graph.invoke({"text": "2"}, at("ben"))["lines"] == ["2"]
    assert graph.invoke({"text": "3"}, at("ann"))["lines"] == ["1", "3"]


def test_between_runs_the_sandbox_is_kept_and_the_thread_is_free(
    bench: RunHarness, sandboxes: Sandboxes
) -> None:
    saver = InMemorySaver()
    build(sandboxes, saver).invoke({"text": "1"}, at("ann"))
    (thread,) = sandboxes.list_threads()
    sandbox = thread.kept.work.session._sandbox_manager.current
    assert sandbox is not None
    assert thread.run is None
    build(sandboxes, saver).invoke({"text": "2"}, at("ann"))
    assert thread.kept.work.session._sandbox_manager.current is sandbox
    with Sandboxes(bench.home, bench.spec, wait_s=0) as other:
        assert build(other, saver).invoke({"text": "3"}, at("ann"))["lines"] == ["1", "2", "3"]
    assert build(sandboxes, saver).invoke({"text": "4"}, at("ann"))["lines"] == ["1", "2", "3", "4"]


def test_a_fork_begins_with_the_files_of_its_checkpoint(sandboxes: Sandboxes) -> None:
    graph = build(sandboxes, InMemorySaver())
    for text in "123":
        graph.invoke({"text": text}, at("ann"))
    first = next(each for each in graph.get_state_history(at("ann")) if each.values.get("lines") == ["1"])
    assert graph.invoke({"text": "4"}, first.config)["lines"] == ["1", "4"]
    assert graph.invoke({"text": "5"}, at("ann"))["lines"] == ["1", "4", "5"]


@pytest.mark.parametrize("limit", [1, 3])
def test_at_most_so_many_sandboxes_run(bench: RunHarness, limit: int) -> None:
    names = [f"user-{n}" for n in range(6)]
    with Sandboxes(bench.home, bench.spec, max_open=limit) as sandboxes:
        graph = build(sandboxes, InMemorySaver())
        for text in "12":
            for name in names:
                graph.invoke({"text": text}, at(name))
                assert len(list_open(sandboxes)) <= limit
        assert list_open(sandboxes) == names[-limit:]
        assert [graph.get_state(at(name)).values["lines"] for name in names] == [["1", "2"]] * 6


def test_parallel_runs_exceed_the_limit_only_while_they_work(bench: RunHarness) -> None:
    with Sandboxes(bench.home, bench.spec, max_open=2) as sandboxes, ThreadPoolExecutor(6) as pool:
        graph = build(sandboxes, InMemorySaver())
        for text in "12":
            runs = [pool.submit(graph.invoke, {"text": text}, at(f"user-{n}")) for n in range(6)]
            ends = [run.result() for run in runs]
        assert [end["lines"] for end in ends] == [["1", "2"]] * 6
        assert len(list_open(sandboxes)) <= 6


def test_an_idle_sandbox_is_closed_and_restored(bench: RunHarness) -> None:
    with Sandboxes(bench.home, bench.spec, idle_s=0.2) as sandboxes:
        graph = build(sandboxes, InMemorySaver())
        graph.invoke({"text": "1"}, at("ann"))
        wait_until(lambda: not sandboxes.list_threads())
        assert graph.invoke({"text": "2"}, at("ann"))["lines"] == ["1", "2"]


def test_a_question_lets_another_process_continue(bench: RunHarness, sandboxes: Sandboxes) -> None:
    saver = InMemorySaver()

    def ask(state: State) -> None:
        if state["text"] == "ask":
            assert interrupt("go on?") == "yes"

    build(sandboxes, saver, meanwhile=ask).invoke({"text": "ask"}, at("ann"))
    with Sandboxes(bench.home, bench.spec, wait_s=0) as other:
        end = build(other, saver, meanwhile=ask).invoke(Command(resume="yes"), at("ann"))
        assert end["lines"] == ["ask"]
        assert build(other, saver).invoke({"text": "2"}, at("ann"))["lines"] == ["ask", "2"]


class Pause(NamedTuple):
    reached: Event
    go_on: Event

    def __call__(self, state: State) -> None:
        if state["text"] == "hold":
            self.reached.set()
            assert self.go_on.wait(20)


@contextmanager
def running(graph_of: Callable[[Pause], Any], thread: str = "ann") -> Iterator[tuple[Any, Pause]]:
    """A run that waits in its node; at the end of the block it goes on."""
    pause = Pause(Event(), Event())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(graph_of(pause).invoke, {"text": "hold"}, at(thread))
        try:
            assert pause.reached.wait(20)
            yield first, pause
        finally:
            pause.go_on.set()


def test_a_second_run_is_refused_and_reading_is_not(bench: RunHarness) -> None:
    saver = InMemorySaver()
    with (
        Sandboxes(bench.home, bench.spec, wait_s=0.1) as sandboxes,
        running(lambda pause: build(sandboxes, saver, meanwhile=pause)) as (first, pause),
    ):
        graph = build(sandboxes, saver, meanwhile=pause)
        with pytest.raises(ThreadHeldError, match="another run in this process"):
            graph.invoke({"text": "2"}, at("ann"))
        with (
            Sandboxes(bench.home, bench.spec, wait_s=0.1) as other,
            pytest.raises(ThreadHeldError, match="process"),
        ):
            build(other, saver).invoke({"text": "2"}, at("ann"))
        assert graph.get_state(at("ann")).next == ("node",)
        pause.go_on.set()
        assert first.result()["lines"] == ["hold"]


@pytest.mark.parametrize("end", ["raised", "abandoned"])
def test_a_run_that_fails_or_is_abandoned_lets_go(bench: RunHarness, end: str) -> None:
    def fail(state: State) -> None:
        if state["text"] == "fail":
            raise RuntimeError("planted")

    with Sandboxes(bench.home, bench.spec, wait_s=0) as sandboxes:
        saver = InMemorySaver()
        graph = build(sandboxes, saver, meanwhile=fail)
        if end == "raised":
            with pytest.raises(RuntimeError, match="planted"):
                graph.invoke({"text": "fail"}, at("ann"))
        else:
            stream = graph.stream({"text": "1"}, at("ann"))
            next(stream)
            stream.close()
            del stream
            gc.collect()
        with Sandboxes(bench.home, bench.spec, wait_s=0) as other:
            assert build(other, saver).invoke({"text": "2"}, at("ann"))["lines"] == (
                ["2"] if end == "raised" else ["1", "2"]
            )


def test_an_overtaken_run_is_refused_and_the_next_one_continues(bench: RunHarness) -> None:
    """It loaded its checkpoint before it waited for the run that then changed the files."""
    saver = InMemorySaver()
    with Sandboxes(bench.home, bench.spec, wait_s=20) as sandboxes, ThreadPoolExecutor(1) as pool:
        with running(lambda pause: build(sandboxes, saver, meanwhile=pause)) as (first, _):
            late = pool.submit(build(sandboxes, saver).invoke, {"text": "late"}, at("ann"))
            wait_until(lambda: len([*saver.list(at("ann"))]) > 3)
        assert first.result()["lines"] == ["hold"]
        with pytest.raises(ThreadAdvancedError, match="guard"):
            late.result()
        graph = build(sandboxes, saver)
        assert graph.get_state(at("ann")).values["lines"] == ["hold"]
        assert graph.invoke({"text": "2"}, at("ann"))["lines"] == ["hold", "2"]


def test_of_runs_that_begin_at_once_one_is_refused(bench: RunHarness) -> None:
    """Each has stored its input before the other's first act, but only one acts on it."""
    saver, both = InMemorySaver(), threading.Barrier(2)
    with Sandboxes(bench.home, bench.spec, wait_s=20) as sandboxes, ThreadPoolExecutor(2) as pool:

        def node(state: State) -> State:
            with suppress(threading.BrokenBarrierError):
                both.wait(1)
            act = sandboxes.current().act("append", append(state["text"]), state=state.get("sandbox_state"))
            return {"sandbox_state": act.state, "lines": act.value}

        graph = StateGraph(State).add_node(node).add_edge(START, "node").compile(checkpointer=saver)
        runs = [pool.submit(graph.invoke, {"text": text}, at("ann"), durability="sync") for text in "12"]
        errors = [run.exception() for run in runs]
        assert sorted(map(type, errors), key=str) == [type(None), ThreadAdvancedError]
        (text,) = (text for text, error in zip("12", errors, strict=True) if error is None)
        assert graph.get_state(at("ann")).values["lines"] == [text]


def test_guarded_runs_wait(bench: RunHarness) -> None:
    saver = InMemorySaver()
    with (
        Sandboxes(bench.home, bench.spec, wait_s=30) as here,
        Sandboxes(bench.home, bench.spec, wait_s=30) as there,
        ThreadPoolExecutor(8) as pool,
    ):
        graphs = [build(each, each.guard(saver)) for each in (here, there)]
        runs = [pool.submit(graphs[n % 2].invoke, {"text": str(n)}, at("ann")) for n in range(8)]
        ends = [run.result()["lines"] for run in runs]
    assert sorted(map(len, ends)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted(max(ends, key=len)) == [str(n) for n in range(8)]


def test_guarded_runs_wait_in_an_event_loop_that_stays_free(bench: RunHarness, tmp_path: Path) -> None:
    async def main() -> list[list[str]]:
        async with (
            AsyncSqliteSaver.from_conn_string(str(tmp_path / "chats.sqlite")) as saver,
            Sandboxes(bench.home, bench.spec, wait_s=30) as sandboxes,
        ):
            await saver.setup()

            async def node(state: State) -> State:
                work = await sandboxes.acurrent()
                act = await work.aact("append", append(state["text"]), state=state.get("sandbox_state"))
                return {"sandbox_state": act.state, "lines": act.value}

            builder = StateGraph(State).add_node("node", node).add_edge(START, "node")
            graph = builder.compile(checkpointer=sandboxes.guard(saver))
            with blockbuster_ctx():
                runs = [graph.ainvoke({"text": str(n)}, at(f"user-{n % 2}")) for n in range(6)]
                return [end["lines"] for end in await asyncio.gather(*runs)]

    ends = asyncio.run(main())
    assert sorted(map(len, ends)) == [1, 1, 2, 2, 3, 3]


def test_a_guarded_thread_is_deleted_between_runs(bench: RunHarness, sandboxes: Sandboxes) -> None:
    graph = build(sandboxes, sandboxes.guard(InMemorySaver()))
    graph.invoke({"text": "1"}, at("ann"))
    graph.checkpointer.delete_thread("ann")
    assert graph.get_state(at("ann")).values == {}
    assert graph.invoke({"text": "2"}, at("ann"))["lines"] == ["2"]


def test_a_run_that_lost_its_lease_saves_no_checkpoint(bench: RunHarness) -> None:
    saver = InMemorySaver()
    with Sandboxes(bench.home, bench.spec, wait_s=0) as sandboxes:

        def lose(state: State) -> None:
            with bench.home.ledger.write_transaction() as connection:
                connection.exec_driver_sql("UPDATE takeover_leases SET token = token + 1, holder = 'another'")

        graph = build(sandboxes, sandboxes.guard(saver), meanwhile=lose)
        with pytest.raises(FencedError):
            graph.invoke({"text": "1"}, at("ann"), durability="sync")
        assert not build(sandboxes, saver).get_state(at("ann")).values.get("lines")


@pytest.mark.parametrize("repeated", ["forked", "failed"])
def test_an_effect_after_a_question_belongs_to_its_answer(sandboxes: Sandboxes, repeated: str) -> None:
    """Answered again in a fork, or after a failure: the file says what the node was told."""
    attempts: list[str] = []

    def node(state: State) -> State:
        work = sandboxes.current()
        first = work.act("a", append("a"), state=state.get("sandbox_state"))
        answer = interrupt("yes or no?")
        second = work.act("b", append(answer), state=first.state)
        attempts.append(answer)
        if repeated == "failed" and len(attempts) == 1:
            raise RuntimeError("planted")
        return {"sandbox_state": second.state, "lines": second.value, "answer": answer}

    graph = (
        StateGraph(State).add_node("node", node).add_edge(START, "node").compile(checkpointer=InMemorySaver())
    )
    graph.invoke({}, at("ann"))
    asked = graph.get_state(at("ann")).config
    if repeated == "forked":
        end = graph.invoke(Command(resume="yes"), at("ann"))
        assert end["lines"] == ["a", "yes"]
        graph.invoke(None, graph.update_state(asked, {"text": "fork"}))
    else:
        with pytest.raises(RuntimeError, match="planted"):
            graph.invoke(Command(resume="yes"), at("ann"))
    end = graph.invoke(Command(resume="no"), at("ann"))
    assert end["lines"] == ["a", end["answer"]]
    if repeated == "forked":
        assert end["answer"] == "no"


def test_the_specification_can_depend_on_the_run(bench: RunHarness, tmp_path: Path) -> None:
    asked: list[SandboxRequest] = []

    def choose(request: SandboxRequest) -> Any:
        asked.append(request)
        base = tmp_path / request.config["configurable"]["repository"]
        base.mkdir()
        (base / "log").write_text(f"{base.name}\n")
        return bench.spec.model_copy(update={"directory": base})

    with Sandboxes(bench.home, choose) as sandboxes:
        graph = build(sandboxes, InMemorySaver())
        for thread in ("ann", "ben"):
            config: Any = {"configurable": {"thread_id": thread, "repository": f"of-{thread}"}}
            assert graph.invoke({"text": "1"}, config)["lines"] == [f"of-{thread}", "1"]
            assert graph.invoke({"text": "2"}, config)["lines"] == [f"of-{thread}", "1", "2"]
    assert [each.thread for each in asked] == ["ann", "ben"]


def test_wrong_uses_are_explained(bench: RunHarness) -> None:
    with pytest.raises(SettingsError, match="max_open"):
        Sandboxes(bench.home, bench.spec, max_open=0)
    with pytest.raises(SettingsError, match=r"invalid policy 'marker' .*'markers'"):
        Sandboxes(bench.home, bench.spec, merge="marker")  # type: ignore[arg-type]
    sandboxes = Sandboxes(bench.home, lambda request: "none")  # type: ignore[arg-type,return-value]
    with pytest.raises(ThreadNameError, match=r"no graph runs here.*sandboxes.open"):
        sandboxes.current()
    with pytest.raises(ThreadNameError, match="the run has no thread"):
        build(sandboxes, None).invoke({"text": "1"})
    with pytest.raises(SettingsError, match="returned str"):
        build(sandboxes, InMemorySaver()).invoke({"text": "1"}, at("ann"))
    sandboxes.close()
    sandboxes.close()
    with pytest.raises(LedgerUnavailableError, match="closed"):
        build(sandboxes, InMemorySaver()).invoke({"text": "1"}, at("ann"))


def test_runs_in_a_block_belong_to_it(bench: RunHarness) -> None:
    async def in_loop(graph: Any) -> None:
        async with sandboxes.open("ann") as work:
            end = await graph.ainvoke({"text": "3"}, at("ann"))
            assert work.enter(end["sandbox_state"]).read_file("log") == b"1\n2\n3\n"

    with Sandboxes(bench.home, bench.spec, wait_s=0) as sandboxes:
        graph = build(sandboxes, InMemorySaver())
        graph.invoke({"text": "1"}, at("ann"))
        with sandboxes.open("ann") as work:
            end = graph.invoke({"text": "2"}, at("ann"))
            assert work.enter(end["sandbox_state"]).read_file("log") == b"1\n2\n"
        asyncio.run(in_loop(graph))
        assert graph.invoke({"text": "4"}, at("ann"))["lines"] == ["1", "2", "3", "4"]


# Agents


def test_one_compiled_agent_serves_two_threads(
    sandboxes: Sandboxes, caplog: pytest.LogCaptureFixture
) -> None:
    replies = [shell("echo $who >> log", text="1"), "Done."]
    model = scripted_model(shell("who=$(cat name || echo nobody)", "echo hello >> log", text="0"), *replies)
    agent = create_agent(model, middleware=[SandboxMiddleware(sandboxes)], checkpointer=InMemorySaver())
    ends = [agent.invoke({"messages": [("user", "go")]}, at(name)) for name in ("ann", "ben")]
    for name, end in zip(("ann", "ben"), ends, strict=True):
        with sandboxes.open(name) as work:
            assert work.enter(end["sandbox_state"]).read_file("log") == b"hello\nnobody\n"
    assert len([each for each in caplog.records if "checkpoints are in memory" in each.message]) == 1


@pytest.mark.parametrize("kind", ["sqlite", "platform"])
def test_agents_leave_the_event_loop_free(bench: RunHarness, tmp_path: Path, kind: str) -> None:
    async def main(saver: BaseCheckpointSaver[Any], sandboxes: Sandboxes) -> list[Any]:
        model = scripted_model(shell("echo 1 >> log", text="0"), shell("cat log", text="1"), "Done.")
        middleware = [SandboxMiddleware(sandboxes, points=("first_source_edit", "first_validation"))]
        agent: Any = create_agent(model, middleware=middleware, checkpointer=saver)
        with blockbuster_ctx():
            runs = [agent.ainvoke({"messages": [("user", "go")]}, at(f"user-{n}")) for n in range(4)]
            return [*await asyncio.gather(*runs)]

    async def open_and_run() -> list[Any]:
        async with Sandboxes(bench.home, bench.spec) as sandboxes:
            if kind == "platform":
                return await main(AsyncOnlySaver(), sandboxes)
            async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "chats.sqlite")) as saver:
                await saver.setup()
                return await main(saver, sandboxes)

    for number, end in enumerate(asyncio.run(open_and_run())):
        assert isinstance(end["messages"][-1], AIMessage)
        assert read_events(bench.home, end, thread=f"user-{number}")[-1].text.split()[-1] == "1"


# Processes


@contextmanager
def serving(bench: RunHarness, saver: Path, wait_s: float = 20) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(SERVER), str(bench.home.directory), str(saver)]
    with subprocess.Popen(
        [*command, bench.spec.model_dump_json(), str(wait_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield server
        finally:
            server.kill()


def send(server: subprocess.Popen[str], thread: str, text: str) -> None:
    assert server.stdin is not None
    server.stdin.write(f"{thread} {text}\n")
    server.stdin.flush()


def receive(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline().strip()


def test_two_processes_take_turns(bench: RunHarness, tmp_path: Path) -> None:
    saver = tmp_path / "chats.sqlite"
    with serving(bench, saver) as one, serving(bench, saver, wait_s=0.2) as other:
        for n, server in enumerate((one, other, one)):
            send(server, "ann", str(n))
            assert json.loads(receive(server)) == [str(each) for each in range(n + 1)]
        send(one, "ann", "hold")
        assert receive(one) == "holds"
        send(other, "ann", "late")
        assert receive(other).startswith("ThreadHeldError: thread 'ann' is held by process")
        send(other, "ben", "1")
        assert json.loads(receive(other)) == ["1"]
        send(one, "-", "-")
        assert json.loads(receive(one)) == ["0", "1", "2", "hold"]


def test_a_killed_server_loses_nothing_and_leaves_nothing(bench: RunHarness, tmp_path: Path) -> None:
    saver, earlier = tmp_path / "chats.sqlite", {each.name for each in list_runs()}
    with serving(bench, saver) as server:
        for thread in ("ann", "ben"):
            send(server, thread, "1")
            assert json.loads(receive(server)) == ["1"]
        send(server, "ann", "hold")
        assert receive(server) == "holds"
        owners = {each.name for each in list_runs()} - earlier
        assert len(owners) == 2
        server.send_signal(signal.SIGKILL)
        server.wait()
    with serving(bench, saver) as server:
        send(server, "ann", "2")
        assert json.loads(receive(server)) == ["1", "2"]
        send(server, "ben", "2")
        assert json.loads(receive(server)) == ["1", "2"]
        wait_until(lambda: not owners & {each.name for each in list_runs()})


@pytest.mark.slow
def test_many_threads_survive_kills(postgres_database: str, tmp_path: Path) -> None:
    """Of two processes of the service in `examples/langgraph_server`."""
    found = run_and_kill(make_repository(tmp_path / "many"), postgres_database, threads=30, runs=3, kill_s=2)
    assert found.wrong == {}
    assert found.kills > 1


def list_runs() -> list[Path]:
    return list((Path(os.environ["TAKEOVER_HOME"]) / "runs").glob("test-agent.*"))


def test_a_cancelled_run_ends_the_command_of_a_synchronous_node(sandboxes: Sandboxes) -> None:
    """LangGraph leaves such a node running in its OS thread."""

    def node(state: State) -> State:
        command = f"echo {state['text']} >> log; [ {state['text']} = 2 ] || sleep 30; cat log"
        act = sandboxes.current().act(
            "run",
            lambda box: box.run(command, timeout_s=60).output.split(),
            state=state.get("sandbox_state"),
        )
        return {"sandbox_state": act.state, "lines": act.value}

    graph = (
        StateGraph(State).add_node("node", node).add_edge(START, "node").compile(checkpointer=InMemorySaver())
    )

    async def main() -> list[str]:
        task = asyncio.create_task(graph.ainvoke({"text": "1"}, at("ann")))
        while not list_open(sandboxes):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return list((await graph.ainvoke({"text": "2"}, at("ann")))["lines"])

    begun_at = time.monotonic()
    assert asyncio.run(main()) == ["2"]
    assert time.monotonic() - begun_at < 15


@pytest.mark.parametrize("keeps_state", [True, False])
def test_without_a_checkpointer_each_run_begins_anew(sandboxes: Sandboxes, keeps_state: bool) -> None:
    def node(state: Any) -> Any:
        act = sandboxes.current().act("append", append("1"), state=state.get("sandbox_state"))
        return {"sandbox_state": act.state, "lines": act.value}

    class Lossy(TypedDict, total=False):
        lines: list[str]

    builder = StateGraph(State if keeps_state else Lossy).add_node("first", node).add_node("second", node)
    graph = builder.add_edge(START, "first").add_edge("first", "second").compile()
    for _ in range(2):
        if keeps_state:
            assert graph.invoke({}, at("ann"))["lines"] == ["1", "1"]
        else:
            with pytest.raises(SandboxStateLostError, match="no sandbox_state"):
                graph.invoke({}, at("ann"))


def test_closing_waits_for_runs_that_have_ended(bench: RunHarness) -> None:
    """Under `snapshot_every="point"`, a run's last state is saved when its thread is released."""
    saver, names = InMemorySaver(), [f"user-{number}" for number in range(6)]

    async def run() -> None:
        async with Sandboxes(bench.home, bench.spec, snapshot_every="point") as sandboxes:

            async def node(state: SandboxState) -> Any:
                work = await sandboxes.acurrent()
                done = await work.aact(
                    "log", lambda box: box.run("echo 1 >> log", timeout_s=10).exit_code, state=None
                )
                return {"sandbox_state": done.state}

            graph = (
                StateGraph(SandboxState).add_node(node).add_edge(START, "node").compile(checkpointer=saver)
            )
            await asyncio.gather(
                *(graph.ainvoke({}, {"configurable": {"thread_id": name}}) for name in names)
            )

    asyncio.run(run())
    with Sandboxes(bench.home, bench.spec) as sandboxes:
        for name in names:
            stored = saver.get_tuple({"configurable": {"thread_id": name}})
            assert stored is not None
            with sandboxes.open(name) as work:
                state = stored.checkpoint["channel_values"]["sandbox_state"]
                assert work.enter(state).read_file("log") == b"1\n"


def test_unknown_states_to_save_are_refused(bench: RunHarness) -> None:
    unknown: Any = "handoff"
    with pytest.raises(SettingsError, match="snapshot_every: invalid value 'handoff'"):
        Sandboxes(bench.home, bench.spec, snapshot_every=unknown)
