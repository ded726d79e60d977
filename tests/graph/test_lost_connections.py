"""A PostgreSQL server that closes connections, restarts or stays away: runs wait, continue, or end with one error."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import RunnableLambda
from sqlalchemy import event, text

from langgraph_takeover import open_home
from langgraph_takeover.handoff.ledger import FencedError, LedgerUnavailableError, acquire, database, effects
from langgraph_takeover.handoff.ledger.database import ConnectionLostError, repeat_after_loss
from langgraph_takeover.handoff.ledger.effects import EffectKey
from langgraph_takeover.integrations import hold_thread

from .. import postgres
from ..conftest import skip_missing
from .conftest import DONE, EDIT, FIX, TEST, RunHarness, Scripted

pytestmark = pytest.mark.slow
REPLIES = (EDIT, TEST, FIX, DONE)


@pytest.fixture(scope="module")
def module_server() -> Iterator[postgres.Server]:
    if reason := postgres.unavailability_reason():
        skip_missing(reason)
    with postgres.open_server() as server:
        yield server


@pytest.fixture
def server(module_server: postgres.Server) -> Iterator[postgres.Server]:
    yield module_server
    if not module_server.is_running:
        module_server.start()


@pytest.fixture
def url(server: postgres.Server) -> Iterator[str]:
    with postgres.create_database(server.url) as url:
        yield url
        if not server.is_running:
            server.start()


@pytest.fixture
def bench(tmp_path: Path, url: str) -> Iterator[RunHarness]:
    with open_home(tmp_path / "home", url) as home:
        yield RunHarness(tmp_path, home)


class Disturbing(Scripted):
    """A scripted model with an incident during some of its calls."""

    incidents: dict[int, Callable[[], object]]

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        incident = self.incidents.get(len(self.seen))
        result = super()._generate(messages, *args, **kwargs)
        if incident is not None:
            incident()
        return result


def make_model(incidents: dict[int, Callable[[], object]], *replies: Any) -> Disturbing:
    return Disturbing(replies=list(replies or REPLIES), seen=[], tools=[], incidents=incidents)


@contextmanager
def prepare_restart(server: postgres.Server) -> Iterator[Callable[[], None]]:
    """The yielded function stops the server, which is back about a second later."""
    timer = threading.Timer(1.0, server.start)

    def restart() -> None:
        server.stop()
        timer.start()

    yield restart
    timer.join()


def test_each_call_sees_its_connections_closed(bench: RunHarness, server: postgres.Server) -> None:
    model = make_model(dict.fromkeys(range(4), server.disconnect_all))
    assert bench.run_to_outcome(model).status == "finished"
    assert len(model.seen) == len(REPLIES)
    server.disconnect_all()
    assert bench.home.history("thread")
    server.disconnect_all()
    assert bench.load_state().values["stop_reason"] == "finished"


def test_event_loops_reconnect(bench: RunHarness, server: postgres.Server) -> None:
    model = make_model(dict.fromkeys(range(4), server.disconnect_all))

    async def run() -> str:
        async with bench.open_run(model) as opened:
            return str((await opened.astart("t", "Make `double` double.")).status)

    assert asyncio.run(run()) == "finished"
    assert len(model.seen) == len(REPLIES)


def test_a_takeover_and_a_resume_reconnect(bench: RunHarness, server: postgres.Server) -> None:
    stopped = bench.run_to_outcome(make_model({}), points=("first_source_edit",), max_steps=2)
    assert stopped.stop_reason == "max_steps"
    server.disconnect_all()
    model = make_model({2: server.disconnect_all, 3: server.disconnect_all})
    assert bench.resume(model, max_steps=9).status == "finished"
    assert len(model.seen) == 2
    successor = make_model({0: server.disconnect_all}, FIX, DONE)
    assert bench.take_over(successor)["stop_reason"] == "finished"
    assert len(successor.seen) == 2


def test_a_server_restarts(
    bench: RunHarness, server: postgres.Server, caplog: pytest.LogCaptureFixture
) -> None:
    with prepare_restart(server) as restart:
        model = make_model({1: restart})
        assert bench.run_to_outcome(model).status == "finished"
    assert len(model.seen) == len(REPLIES)
    assert "waiting up to 60 s" in caplog.text


def test_a_session_is_idle_for_too_long(tmp_path: Path, url: str) -> None:
    with open_home(tmp_path / "home", f"{url}%20-cidle_session_timeout%3D1000") as home:
        model = make_model({1: lambda: time.sleep(2)})
        assert RunHarness(tmp_path, home).run_to_outcome(model).status == "finished"
    assert len(model.seen) == len(REPLIES)


def test_a_server_stays_away(
    bench: RunHarness, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "RECONNECT_S", 0.5)
    began = time.monotonic()
    with pytest.raises(LedgerUnavailableError) as caught:
        bench.run_to_outcome(make_model({1: server.stop}))
    assert time.monotonic() - began < 20
    message = str(caught.value)
    assert "resume when the server is back" in message
    assert "\n" not in message
    server.start()
    model = make_model({})
    resumed = bench.resume(model, max_steps=9)
    assert resumed.status == "finished"
    assert len(model.seen) == 3  # the reply that came while the server was away is lost, and counted
    assert resumed.uncounted_calls == 1


def test_another_run_takes_the_thread_while_disconnected(bench: RunHarness, server: postgres.Server) -> None:
    def take() -> None:
        server.disconnect_all()
        with bench.home.ledger.write_transaction() as connection:
            connection.execute(text("UPDATE takeover_leases SET token = token + 1, holder = 'another'"))
        server.disconnect_all()

    with pytest.raises(FencedError, match="taken over by another"):
        bench.run_to_outcome(make_model({1: take}))
    assert max(each.step for each in bench.home.history("thread")) <= 2


def test_a_connection_lost_in_a_transaction_keeps_the_cause(
    bench: RunHarness, server: postgres.Server
) -> None:
    def write(error: Exception | None) -> None:
        with bench.home.ledger.write_transaction() as connection:
            connection.execute(text("SELECT 1"))
            server.disconnect_all()
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="cause"):
        write(ValueError("cause"))
    with pytest.raises(ConnectionLostError) as caught:
        write(None)
    assert caught.value.may_be_committed


@contextmanager
def lose_commits(bench: RunHarness, server: postgres.Server, every: int, *, are_done: bool) -> Iterator[None]:
    """Close all connections at the first of each n commits: before it, or after the server has done it."""
    count = itertools.count(1)

    def lose(connection: Any) -> None:
        if next(count) % every == 1:
            if are_done:
                connection.connection.driver_connection.commit()
            server.disconnect_all()

    event.listen(bench.home.ledger._engine, "commit", lose)
    yield
    event.remove(bench.home.ledger._engine, "commit", lose)


@pytest.mark.parametrize("are_done", [True, False])
def test_commits_without_an_answer(bench: RunHarness, server: postgres.Server, are_done: bool) -> None:
    ledger, key = bench.home.ledger, EffectKey("t", "task", "call")
    with lose_commits(bench, server, 2, are_done=are_done):
        lease = acquire(ledger, "t")
    assert lease.token == 1
    with lose_commits(bench, server, 2, are_done=are_done):
        assert effects.begin(lease, key, "s0") is None
    assert effects.begin(lease, key, "s0") is not None
    lease.release()
    with lose_commits(bench, server, 6, are_done=are_done):
        model = make_model({})
        assert bench.run_to_outcome(model, points=("first_source_edit",)).status == "finished"
    assert len(model.seen) == len(REPLIES)


@pytest.mark.parametrize(
    ("idempotent", "may_be_committed", "calls"),
    [(True, True, 3), (True, False, 3), (False, False, 3), (False, True, 1)],
)
def test_only_idempotent_writes_repeat_after_an_uncertain_commit(
    idempotent: bool, may_be_committed: bool, calls: int
) -> None:
    made = []

    @repeat_after_loss(idempotent=idempotent)
    def write() -> None:
        made.append(1)
        raise ConnectionLostError("lost", may_be_committed=may_be_committed)

    with pytest.raises(ConnectionLostError):
        write()
    assert len(made) == calls


def test_the_journal_repeats_writes_after_a_loss(
    bench: RunHarness, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, key = bench.home.ledger, EffectKey("t", "task", "call")
    lease = acquire(ledger, "t")
    incidents = [server.disconnect_all]
    now = ledger.now

    def disturb(connection: Any) -> float:
        found = now(connection)
        if incidents:
            incidents.pop()()
        return found

    monkeypatch.setattr(ledger, "now", disturb)
    assert effects.begin(lease, key, "s0") is None  # lost before its last statement: repeated
    incidents.append(server.disconnect_all)
    effects.end(lease, key, "s1", "result")
    found = effects.find(ledger, key)
    assert found is not None
    assert found.result == "result"
    lease.release()


def test_many_processes_create_the_tables_at_once(url: str) -> None:
    """No lock of a session is held: a pooler would leave it on a connection."""
    from langgraph_takeover.graph.checkpoints.savers import open_saver
    from langgraph_takeover.handoff.ledger import Ledger

    errors: list[BaseException] = []

    def create() -> None:
        try:
            ledger = Ledger(url)
            with open_saver(ledger):
                pass
            ledger.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors
    import psycopg

    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (
            0,
        )


def _build_chat(saver: Any, work: Callable[[], object]) -> Any:
    from langgraph.graph import START, MessagesState, StateGraph

    def reply(state: MessagesState) -> dict[str, Any]:
        work()
        return {"messages": "Hello."}

    async def areply(state: MessagesState) -> dict[str, Any]:
        return reply(state)

    node = RunnableLambda(reply, areply)
    return (
        StateGraph(MessagesState).add_node("reply", node).add_edge(START, "reply").compile(checkpointer=saver)
    )


CHAT: Any = {"configurable": {"thread_id": "chat"}}


def test_a_users_pool_reconnects(url: str, server: postgres.Server) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool

    options: Any = {"autocommit": True, "row_factory": dict_row}
    with ConnectionPool(url, kwargs=options, min_size=1) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        with hold_thread(saver, "chat") as held:
            graph = _build_chat(held, server.disconnect_all)
            assert len(graph.invoke({"messages": "a"}, CHAT)["messages"]) == 2
            server.disconnect_all()
            assert len(graph.get_state(CHAT).values["messages"]) == 2
            server.disconnect_all()
            assert len([*graph.get_state_history(CHAT)]) == 3


def test_a_users_asynchronous_pool_reconnects(url: str, server: postgres.Server) -> None:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    options: Any = {"autocommit": True, "row_factory": dict_row}

    async def chat() -> int:
        async with AsyncConnectionPool(url, kwargs=options, min_size=1, open=False) as pool:
            saver = AsyncPostgresSaver(pool)
            await saver.setup()
            async with hold_thread(saver, "chat") as held:
                graph = _build_chat(held, server.disconnect_all)
                await graph.ainvoke({"messages": "a"}, CHAT)
                server.disconnect_all()
                return len((await graph.aget_state(CHAT)).values["messages"])

    assert asyncio.run(chat()) == 2


def test_a_users_connection_is_replaced(url: str, server: postgres.Server) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver

    calls: list[int] = []
    with PostgresSaver.from_conn_string(url) as saver, prepare_restart(server) as restart:
        saver.setup()
        with hold_thread(saver, "chat") as held:
            graph = _build_chat(held, lambda: (calls.append(1), restart()))
            assert len(graph.invoke({"messages": "a"}, CHAT)["messages"]) == 2
            server.disconnect_all()
            assert len([*graph.get_state_history(CHAT)]) == 3
    assert calls == [1]


def test_a_users_asynchronous_connection_is_replaced(url: str, server: postgres.Server) -> None:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    async def chat() -> int:
        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
            async with hold_thread(saver, "chat") as held:
                graph = _build_chat(held, server.disconnect_all)
                await graph.ainvoke({"messages": "a"}, CHAT)
                server.disconnect_all()
                return len((await graph.aget_state(CHAT)).values["messages"])

    assert asyncio.run(chat()) == 2


def test_a_users_replaced_connection_checks_the_lease(url: str, server: postgres.Server) -> None:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver

    def take() -> None:
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE takeover_leases SET token = token + 1, holder = 'another'")
        server.disconnect_all()

    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        with pytest.raises(FencedError, match="taken over by another"), hold_thread(saver, "chat") as held:
            _build_chat(held, take).invoke({"messages": "a"}, CHAT)


def test_a_server_refuses_writes_until_a_failover_ends(bench: RunHarness, server: postgres.Server) -> None:
    import psycopg

    def set_read_only(value: str) -> None:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")  # type: ignore[call-overload]
            connection.execute("SELECT pg_reload_conf()")

    timer = threading.Timer(1.0, set_read_only, ["off"])

    def fail_over() -> None:
        set_read_only("on")
        timer.start()

    model = make_model({1: fail_over})
    try:
        assert bench.run_to_outcome(model).status == "finished"
    finally:
        set_read_only("off")
    assert len(model.seen) == len(REPLIES)


def test_a_users_pool_gives_up_with_one_line(url: str, server: postgres.Server) -> None:
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg_pool import ConnectionPool

    with ConnectionPool(url, min_size=1, timeout=0.5) as pool:
        pool.wait()
        server.stop()
        pool.check()
        with (
            pytest.raises(LedgerUnavailableError, match="resume when the server is back"),
            hold_thread(PostgresSaver(pool), "chat"),
        ):
            pass
