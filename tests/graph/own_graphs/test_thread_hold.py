"""A user's own saver writes to a thread only while this process holds it, in every form that LangGraph offers."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_takeover import Home, open_home
from langgraph_takeover.base.awaiting import run_without_loop
from langgraph_takeover.errors import (
    FencedError,
    ThreadHeldError,
    ThreadNameError,
    ThreadNotHeldError,
    UnsupportedSaverError,
)
from langgraph_takeover.graph.checkpoints.user_savers import HeldSaver, SaverKind, _ledgers, share_ledger
from langgraph_takeover.graph.own_graphs import thread_hold
from langgraph_takeover.handoff.ledger import acquire
from langgraph_takeover.integrations import hold_thread

from ..test_one_writer import suspend_between_transactions, until
from .holder import CONFIG, FENCED, HELD, build_graph, open_saver

_HOLDER = Path(__file__).with_name("holder.py")
THREAD: RunnableConfig = {"configurable": {"thread_id": "job", "checkpoint_ns": ""}}


class Kind(NamedTuple):
    """A form of saver, and its database."""

    name: str
    url: str

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        if self.name == "sqlite":
            with SqliteSaver.from_conn_string(self.url) as saver:
                yield saver
        elif self.name == "async sqlite":
            async with AsyncSqliteSaver.from_conn_string(self.url) as async_saver:
                yield async_saver
        else:
            async with self._open_postgres() as saver:
                yield saver

    @asynccontextmanager
    async def _open_postgres(self) -> AsyncIterator[Any]:
        from langgraph.checkpoint.postgres import PostgresSaver, shallow
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool, ConnectionPool

        options: Any = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        first_kind = shallow.ShallowPostgresSaver if "shallow" in self.name else PostgresSaver
        with first_kind.from_conn_string(self.url) as first:
            first.setup()  # it cannot run in a pipeline
        is_piped = "pipeline" in self.name
        if self.name == "postgres pool":
            with ConnectionPool(self.url, kwargs=options) as pool:
                yield PostgresSaver(pool)
        elif self.name == "async postgres pool":
            async with AsyncConnectionPool(self.url, kwargs=options, open=False) as pool:
                yield AsyncPostgresSaver(pool)
        elif self.name.startswith("async"):
            made = shallow.AsyncShallowPostgresSaver if "shallow" in self.name else AsyncPostgresSaver
            async with made.from_conn_string(self.url, pipeline=is_piped) as async_saver:
                yield async_saver
        else:
            sync = shallow.ShallowPostgresSaver if "shallow" in self.name else PostgresSaver
            with sync.from_conn_string(self.url, pipeline=is_piped) as saver:
                yield saver


POSTGRES = [
    f"{way}postgres{form}" for way in ("", "async ") for form in ("", " pool", " pipeline", " shallow")
]


def kinds(*parts: str, without: str = "-") -> Any:
    """Run a test with the savers whose names contain these parts; PostgreSQL is slow."""
    names = ["sqlite", "async sqlite", *POSTGRES]
    chosen = [name for name in names if all(part in name for part in parts) and without not in name]
    marked = [pytest.param(each, marks=pytest.mark.slow) if "postgres" in each else each for each in chosen]
    return pytest.mark.parametrize("kind", marked, indirect=True)


@pytest.fixture
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if "sqlite" in request.param:
        return Kind(request.param, str(tmp_path / "chats.sqlite"))
    return Kind(request.param, request.getfixturevalue("postgres_database"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "chats.sqlite")
    return str(request.getfixturevalue("postgres_database"))


class AnyThreadSaver(BaseCheckpointSaver[Any]):
    """A saver for any thread, which it holds from its first write on."""

    def __init__(self, saver: Any, stack: AsyncExitStack) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._stack = saver, stack
        self._held: dict[str, Any] = {}

    async def _hold(self, thread: str) -> Any:
        if thread not in self._held:
            self._held[thread] = await self._stack.enter_async_context(hold_thread(self._saver, thread))
        return self._held[thread]

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        reader = await self._hold("reader")
        found: CheckpointTuple | None = await reader.aget_tuple(config)
        return found

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        async for found in (await self._hold("reader")).alist(config, **kwargs):
            yield found

    async def aput(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        held = await self._hold(config["configurable"]["thread_id"])
        stored: RunnableConfig = await held.aput(config, *args)
        return stored

    async def aput_writes(self, config: RunnableConfig, *args: Any, **kwargs: Any) -> None:
        held = await self._hold(config["configurable"]["thread_id"])
        await held.aput_writes(config, *args, **kwargs)

    async def adelete_thread(self, thread_id: str) -> None:
        await (await self._hold(thread_id)).adelete_thread(thread_id)


@kinds(without="shallow")  # they keep one checkpoint, so they do not pass it without a lease either
def test_held_savers_pass_the_conformance_suite(kind: Kind) -> None:
    conformance = importlib.import_module("langgraph.checkpoint.conformance")

    @conformance.checkpointer_test(name="held")  # type: ignore[untyped-decorator]
    async def open_held() -> AsyncIterator[AnyThreadSaver]:
        async with kind.open() as saver, AsyncExitStack() as stack:
            yield AnyThreadSaver(saver, stack)

    basic = {"put", "put_writes", "get_tuple", "list", "delete_thread"}
    report = asyncio.run(conformance.validate(open_held, capabilities=basic))
    failed = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failed == {}
    assert report.passed_all_base()
    assert sum(result.tests_passed for result in report.results.values()) > 40
    assert _ledgers == {}


@kinds()
def test_one_holder_writes_and_the_users_saver_reads(kind: Kind) -> None:
    async def use() -> None:
        async with kind.open() as saver:
            async with hold_thread(saver, "job") as held:
                graph = build_graph(held, lambda name: {"last": name})
                assert await graph.ainvoke({}, CONFIG) == {"last": "c"}
                with pytest.raises(ThreadHeldError, match="thread 'job' is held by process"):
                    async with hold_thread(saver, "job"):
                        pass
                with pytest.raises(ThreadNotHeldError, match="thread 'other' is not held: this saver"):
                    await graph.ainvoke({}, {"configurable": {"thread_id": "other"}})
                async with hold_thread(saver, "other") as second:
                    other: Any = {"configurable": {"thread_id": "other"}}
                    end = await build_graph(second, lambda name: {"last": "other"}).ainvoke({}, other)
                    assert end == {"last": "other"}
            is_async = "async" in kind.name
            before = [each async for each in saver.alist(THREAD)] if is_async else [*saver.list(THREAD)]
            assert len(before) == (1 if "shallow" in kind.name else 5)
            for write in (
                lambda: held.aput(THREAD, empty_checkpoint(), {"source": "loop", "step": 9}, {}),
                lambda: held.aput_writes(before[0].config, [("last", "late")], "task"),
                lambda: held.adelete_thread("job"),
            ):
                with pytest.raises(FencedError):
                    await write()
            assert [each async for each in held.alist(THREAD)] == before
            state = await build_graph(held, None).aget_state(CONFIG)
            assert state.values == {"last": "c"}
            if "shallow" not in kind.name:  # those delete nothing
                async with hold_thread(saver, "job") as held:
                    await held.adelete_thread("job")
                    assert await held.aget_tuple(THREAD) is None

    asyncio.run(use())


def test_a_sync_graph(url: str) -> None:
    with open_saver(url) as saver:
        saver.setup()
        with hold_thread(saver, "job") as held:
            graph = build_graph(held, lambda name: {"last": name})
            graph.invoke({}, CONFIG, interrupt_after=["a"])
            graph.update_state(CONFIG, {"last": "mine"})
            assert graph.invoke(None, CONFIG) == {"last": "c"}
        plain = build_graph(saver, None)
        assert [each.values for each in plain.get_state_history(CONFIG)][2] == {"last": "mine"}
        with pytest.raises(FencedError):
            graph.update_state(CONFIG, {"last": "late"})
        assert plain.get_state(CONFIG).values == {"last": "c"}


def test_sync_nodes_use_an_async_saver(tmp_path: Path) -> None:
    """LangGraph's sync interface, called in another OS thread than the event loop."""

    async def use() -> Any:
        async with (
            AsyncSqliteSaver.from_conn_string(str(tmp_path / "chats.sqlite")) as saver,
            hold_thread(saver, "job") as held,
        ):
            graph = build_graph(held, lambda name: {"last": name})
            return await asyncio.to_thread(graph.invoke, {}, CONFIG), await graph.aget_state(CONFIG)

    end, state = asyncio.run(use())
    assert end == state.values == {"last": "c"}


class Holder(NamedTuple):
    """A process that holds the thread, and waits in its second step for a line."""

    process: subprocess.Popen[str]

    def wait_for_step(self) -> None:
        assert self.process.stdout is not None
        assert [self.process.stdout.readline() for _ in "ab"] == ["at a\n", "at b\n"]

    def end(self) -> tuple[int, str]:
        out, _ = self.process.communicate("\n", timeout=60)
        return self.process.returncode, out


@pytest.fixture
def start() -> Iterator[Any]:
    """Start a holder of the thread in the database of this URL."""
    started: list[subprocess.Popen[str]] = []

    def start_holder(url: str, lease_s: float = 30) -> Holder:
        words = [sys.executable, str(_HOLDER), url, str(lease_s)]
        path = os.pathsep.join([str(_HOLDER.parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(words, env=os.environ | {"PYTHONPATH": path}, **pipes))
        return Holder(started[-1])

    yield start_holder
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def can_hold(saver: Any) -> bool:
    try:
        with hold_thread(saver, "job"):
            return True
    except ThreadHeldError:
        return False


@pytest.mark.slow
def test_of_two_processes_one_is_refused(url: str, start: Any) -> None:
    first = start(url)
    first.wait_for_step()
    code, line = start(url).end()
    assert (code, line.count("\n")) == (HELD, 1)
    assert f"thread 'job' is held by process {first.process.pid} on " in line
    assert first.end() == (0, "at c\n")


@pytest.mark.slow
def test_a_suspended_process_that_lost_the_thread_writes_nothing(url: str, start: Any) -> None:
    first = start(url, 1)
    first.wait_for_step()
    suspend_between_transactions(first.process.pid, url)
    with open_saver(url) as saver:
        until(lambda: can_hold(saver))
        with hold_thread(saver, "job") as second:
            graph = build_graph(second, lambda name: {"last": f"second {name}"})
            graph.invoke(None, CONFIG)
            before = [*second.list(THREAD)]
            os.kill(first.process.pid, signal.SIGCONT)
            code, line = first.end()
            assert (code, line.count("\n")) == (FENCED, 1)
            assert f"thread 'job' was taken over by process {os.getpid()} on " in line
            assert [*saver.list(THREAD)] == before
            assert graph.get_state(CONFIG).values == {"last": "second c"}


@pytest.mark.slow
def test_a_killed_process_loses_the_thread_at_once(url: str, start: Any) -> None:
    first = start(url)
    first.wait_for_step()
    first.process.kill()
    first.process.wait()
    with open_saver(url) as saver, hold_thread(saver, "job") as held:
        steps: list[str] = []

        def step(name: str) -> dict[str, str]:
            steps.append(name)
            return {"last": name}

        build_graph(held, step).invoke(None, CONFIG)
        assert steps == ["b", "c"]


def test_nobody_takes_the_thread_while_a_write_is_in_its_transaction(url: str) -> None:
    ledger_url = url if url.startswith("postgresql:") else f"sqlite:///{url}"
    saver_kind = SaverKind(is_async=False, is_postgres=ledger_url == url)
    taken = threading.Event()
    with open_saver(url) as saver, share_ledger(ledger_url) as ledger:
        saver.setup()
        lease = acquire(ledger, "job", ttl_s=0.5)

        def take() -> None:
            acquire(ledger, "job")
            taken.set()

        taker = threading.Thread(target=take)

        async def write_after_the_lease_ended() -> None:
            async with HeldSaver(saver, saver_kind, lease)._begin("job") as begun:
                lease.end()  # as if its process were suspended here: nothing renews it
                time.sleep(0.6)
                taker.start()
                assert not taken.wait(0.5)
                begun.saver.put(THREAD, empty_checkpoint(), {"source": "loop", "step": 0}, {})

        run_without_loop(write_after_the_lease_ended())
        taker.join()
        assert taken.is_set()
        assert saver.get_tuple(THREAD) is not None
        with pytest.raises(FencedError):
            run_without_loop(write_after_the_lease_ended())


def test_savers_that_cannot_be_fenced(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSaverError, match="the writes of InMemorySaver cannot be fenced"):
        hold_thread(InMemorySaver(), "job")
    with (
        open_home(tmp_path / "home") as home,
        pytest.raises(UnsupportedSaverError, match="FencedSqliteSaver"),
    ):
        hold_thread(home.saver, "job")
    with SqliteSaver.from_conn_string(":memory:") as saver:
        with pytest.raises(UnsupportedSaverError, match="in memory"), hold_thread(saver, "job"):
            pass
        with pytest.raises(ThreadNameError):
            hold_thread(saver, "")

    async def use() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "chats.sqlite")) as saver:
            with pytest.raises(UnsupportedSaverError, match="async with"), hold_thread(saver, "job"):
                pass

    asyncio.run(use())


@pytest.mark.parametrize("name", ["a?b.sqlite", "a#b.sqlite", "a b%2F@:ä.sqlite"])
def test_odd_names_of_files(tmp_path: Path, name: str) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / name)) as saver:
        with hold_thread(saver, "job") as held:
            build_graph(held, lambda name: {"last": name}).invoke({}, CONFIG)
        assert saver.get_tuple(THREAD) is not None


@kinds("async")
def test_a_cancelled_write_leaves_no_transaction(kind: Kind) -> None:

    async def use() -> None:
        async with kind.open() as saver, hold_thread(saver, "job") as held:
            for turns in range(30):
                checkpoint = empty_checkpoint()
                write = asyncio.create_task(held.aput(THREAD, checkpoint, {"source": "loop", "step": 0}, {}))
                for _ in range(turns // 2):
                    await asyncio.sleep(0.0005)
                write.cancel()
                is_stored = await asyncio.gather(write, return_exceptions=True) == [
                    {"configurable": {**THREAD["configurable"], "checkpoint_id": checkpoint["id"]}}
                ]
                last = empty_checkpoint()
                await held.aput(THREAD, last, {"source": "loop", "step": 1}, {})
                found = [each.checkpoint["id"] async for each in saver.alist(THREAD)]
                assert found[0] == last["id"]
                assert not is_stored or "shallow" in kind.name or checkpoint["id"] in found
            async with hold_thread(saver, "other"):
                pass

    asyncio.run(use())


class ReversingSaver(SqliteSaver):
    """A saver of the user's, with a serializer that stores bytes in reverse."""

    puts = 0

    class Serializer(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            kind, data = super().dumps_typed(obj)
            return kind, data[::-1]

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return super().loads_typed((data[0], data[1][::-1]))

    def put(self, *args: Any, **kwargs: Any) -> RunnableConfig:
        self.__class__.puts += 1
        return super().put(*args, **kwargs)


def test_the_users_serializer_and_class_stay(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "chats.sqlite")) as plain:
        mine = ReversingSaver(plain.conn, serde=ReversingSaver.Serializer())
        with hold_thread(mine, "job") as held:
            build_graph(held, lambda name: {"last": name}).invoke({}, CONFIG)
        assert ReversingSaver.puts == 5
        assert build_graph(mine, None).get_state(CONFIG).values == {"last": "c"}
        (stored,) = plain.conn.execute("SELECT checkpoint FROM checkpoints LIMIT 1").fetchone()
        assert "channel_versions" in JsonPlusSerializer().loads_typed(("msgpack", stored[::-1]))


def test_a_home_in_the_same_database_sees_the_holder(tmp_path: Path) -> None:
    file = tmp_path / "chats.sqlite"
    with SqliteSaver.from_conn_string(str(file)) as saver:
        saver.setup()
        with open_home(tmp_path / "home", f"sqlite:///{file}") as home, hold_thread(saver, "job"):
            assert isinstance(home, Home)
            assert home.status("job") == "running"


@pytest.mark.slow
def test_a_forked_process_holds_a_thread_of_its_own(url: str) -> None:
    root = _HOLDER.parents[3]
    program = [sys.executable, "-m", "tests.graph.own_graphs.forked_holder", url]
    subprocess.run(program, cwd=root, timeout=60, check=True)
    with open_saver(url) as saver:
        states = [
            build_graph(saver, None).get_state({"configurable": {"thread_id": thread}})
            for thread in ("job", "other")
        ]
    assert [state.values for state in states] == [{"last": "c"}] * 2


@kinds("sqlite")
def test_a_hold_that_is_cancelled_while_it_opens_is_released(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_acquire = threading.Event(), threading.Event()
    acquire = thread_hold.acquire

    def acquire_late(*arguments: Any, **options: Any) -> Any:
        begun.set()
        may_acquire.wait(30)
        return acquire(*arguments, **options)

    async def use() -> None:
        async with kind.open() as saver:
            with monkeypatch.context() as patch:
                patch.setattr(thread_hold, "acquire", acquire_late)
                task = asyncio.create_task(hold_thread(saver, "job").__aenter__())
                while not begun.is_set():
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            may_acquire.set()
            await asyncio.sleep(0.2)  # the late lease
            for _ in range(500):
                try:
                    async with hold_thread(saver, "job"):
                        return
                except ThreadHeldError:
                    await asyncio.sleep(0.02)
            pytest.fail("the lease was not released")

    asyncio.run(use())
