"""A saver that stores the elements of lists once returns exactly what the wrapped saver would."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import operator
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from sqlalchemy import text
from typing_extensions import TypedDict

from langgraph_takeover.errors import CheckpointCorruptError, UnsupportedSaverError
from langgraph_takeover.integrations import IncrementalSaver, hold_thread

from ..conftest import RunHarness
from ..own_graphs.test_thread_hold import Kind, kinds
from ..own_graphs.test_thread_hold import kind as kind  # the fixture
from ..own_graphs.test_thread_sandbox import hold

_OWN: Any = {"configurable": {"thread_id": "own", "checkpoint_ns": ""}}
_CONFIG: Any = {"configurable": {"thread_id": "job", "checkpoint_ns": ""}}
_VERSIONS = itertools.count(1)
_ROWS = "SELECT count(*), coalesce(sum(length(value)), 0) FROM takeover_list_rows"
_WRITER = """
import sys
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_takeover.integrations import IncrementalSaver
from tests.graph.checkpoints.test_incremental_saver import put
with SqliteSaver.from_conn_string(sys.argv[1]) as plain:
    saver, items = IncrementalSaver(plain), []
    config = None
    for number in range(100_000):
        items = [*items, f"item {number}"]
        config = put(saver, items, config)
        print(number, flush=True)
"""


def put(saver: Any, value: Any, before: Any = None, *, metadata: Any = None, version: Any = None) -> Any:
    """Write a checkpoint with one channel; return its configuration."""
    checkpoint = empty_checkpoint() | {"id": str(uuid6(clock_seq=-1)), "channel_values": {"items": value}}
    new = {"items": version or next(_VERSIONS)}
    checkpoint["channel_versions"] = new
    return saver.put(before or _CONFIG, checkpoint, metadata or {"source": "loop", "step": 0}, new)


def read(saver: Any, config: Any = _CONFIG) -> Any:
    stored = saver.get_tuple(config)
    return stored and stored.checkpoint["channel_values"]["items"]


def read_anew(path: Path, config: Any = _CONFIG) -> Any:
    """Read as another process would."""
    with SqliteSaver.from_conn_string(str(path)) as saver:
        return read(IncrementalSaver(saver), config)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.sqlite"


@kinds(without="shallow")
def test_it_passes_the_conformance_suite(kind: Kind) -> None:
    conformance = importlib.import_module("langgraph.checkpoint.conformance")

    @conformance.checkpointer_test(name="incremental")  # type: ignore[untyped-decorator]
    async def open_one() -> AsyncIterator[IncrementalSaver]:
        async with kind.open() as saver:
            if "sqlite" in kind.name:
                await (asyncio.to_thread(saver.setup) if kind.name == "sqlite" else saver.setup())
            yield IncrementalSaver(saver)

    capabilities = {"put", "put_writes", "get_tuple", "list", "delete_thread", "prune"}
    report = asyncio.run(conformance.validate(open_one, capabilities=capabilities))
    assert {name: each.failures for name, each in report.results.items() if each.failures} == {}
    assert all(report.results[name].passed for name in capabilities)


def _change(values: list[Any], draw: random.Random) -> list[Any]:
    """Return the next value of a list, as reducers make it."""
    values, kind = list(values), draw.random()
    element: Any = draw.choice(
        [
            lambda: HumanMessage("x" * draw.randrange(200), id=str(draw.random())),
            lambda: {"a": draw.randrange(5), "b": [draw.random(), {"c": "text"}]},
            lambda: draw.choice(["text", 7, 7.0, True, None, b"bytes", ("a", 1), {1, 2}]),
        ]
    )()
    if kind < 0.6 or len(values) < 3:
        values.append(element)
    elif kind < 0.7:
        del values[draw.randrange(len(values)) :]
    elif kind < 0.8:
        values[draw.randrange(len(values))] = element
    elif kind < 0.9:
        del values[draw.randrange(len(values))]
    else:
        changed = values[draw.randrange(len(values))]
        if isinstance(changed, HumanMessage):
            changed.content += "!"
            changed.additional_kwargs["note"] = draw.random()
        elif isinstance(changed, dict):
            changed["b"][1]["c"] += "?"
    return values


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_forks_and_restarts_return_the_same_values(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    expected, configs, values = InMemorySaver(), [], list[Any]()
    with SqliteSaver.from_conn_string(str(path)) as plain:
        saver, before = IncrementalSaver(plain), None
        for _ in range(60):
            if draw.random() < 0.1 and configs:  # another process goes back
                saver, before = IncrementalSaver(plain), draw.choice(configs)
                values = read(saver, before)
            values = _change(values, draw)
            version = next(_VERSIONS)
            before = put(saver, values, before, version=version)
            known = empty_checkpoint() | {
                "id": before["configurable"]["checkpoint_id"],
                "channel_values": {"items": values},
                "channel_versions": {"items": version},
            }
            expected.put(_CONFIG, known, {"source": "loop", "step": 0}, {"items": version})  # type: ignore[typeddict-item,arg-type]
            configs.append(before)
        for other in (saver, IncrementalSaver(plain)):
            assert [read(other, each) for each in configs] == [read(expected, each) for each in configs]
            found = {
                each.checkpoint["id"]: each.checkpoint["channel_values"]["items"]
                for each in other.list(_CONFIG)
            }
            assert [found[each["configurable"]["checkpoint_id"]] for each in configs] == [
                read(expected, each) for each in configs
            ]


class _Notes(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]
    step: int


@asynccontextmanager
async def _compile(kind: Kind, graph: Any) -> AsyncIterator[Any]:
    async with kind.open() as saver:
        yield graph.compile(checkpointer=IncrementalSaver(saver))


@kinds(without="shallow")
def test_a_conversation_with_removals_forks_and_updates_is_exact(kind: Kind) -> None:
    def answer(state: MessagesState) -> Any:
        first, last = state["messages"][0], state["messages"][-1]
        first.content = f"{len(state['messages'])} messages"  # the same object, changed and returned
        added = [AIMessage(f"answer to {last.text}", id=f"{last.id}-answer"), first]
        return {
            "messages": added + ([RemoveMessage(state["messages"][2].id or "")] if last.text == "4" else [])
        }

    async def talk(graph: Any) -> Any:
        config: Any = {"configurable": {"thread_id": "talk"}}
        for number in range(8):
            await graph.ainvoke(
                {"messages": [HumanMessage(str(number), id=f"m{number}")]}, config, durability="sync"
            )
        history = [each async for each in graph.aget_state_history(config)]
        old = next(each for each in history if len(each.values["messages"]) == 9)
        forked = await graph.aupdate_state(old.config, {"messages": [HumanMessage("fork", id="fork")]})
        await graph.ainvoke(None, forked, durability="sync")
        return [
            ([each.content for each in one.values.get("messages", [])], one.next, one.metadata["step"])
            async for one in graph.aget_state_history(config)
        ]

    async def compare() -> None:
        graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
        expected = await talk(graph.compile(checkpointer=InMemorySaver()))
        async with _compile(kind, graph) as compiled:
            assert await talk(compiled) == expected

    asyncio.run(compare())


def test_the_database_grows_with_the_steps_and_not_with_their_square(path: Path) -> None:
    sizes = []
    with SqliteSaver.from_conn_string(str(path)) as plain:
        saver, values, before = IncrementalSaver(plain), list[Any](), None
        for number in range(600):
            values = [*values, HumanMessage(f"{number:04} " + "x" * 1000)]
            before = put(saver, values, before)
            if number in (299, 599):
                stored = plain.conn.execute("SELECT sum(length(checkpoint)) FROM checkpoints").fetchone()[0]
                sizes.append(plain.conn.execute(_ROWS).fetchone()[1] + stored)
        assert sizes[1] < 2.2 * sizes[0]
        assert sizes[1] < 2.5 * 600 * 1000
        assert len(read_anew(path)) == 600


def test_a_write_that_failed_is_not_taken_for_stored(path: Path) -> None:
    values = [f"item {number}" for number in range(20)]
    with SqliteSaver.from_conn_string(str(path)) as plain:
        saver = IncrementalSaver(plain)
        before = put(saver, [])
        with pytest.raises(TypeError, match="not JSON serializable"):
            put(saver, values, before, metadata={"source": object()})
        assert plain.conn.execute(_ROWS).fetchone() == (0, 0)
        put(saver, values, before)
    assert read_anew(path) == values


def test_a_value_that_looks_like_a_stored_list_is_returned_as_it_was(path: Path) -> None:
    values: list[Any] = [
        {"takeover_list": "1:00"},
        {"takeover_list": None, "takeover_value": 1},
        [{"takeover_list": "1:00"}] * 9,
    ]
    with SqliteSaver.from_conn_string(str(path)) as plain:
        saver = IncrementalSaver(plain)
        for value in values:
            put(saver, value)
            assert read(saver) == value
            assert read_anew(path) == value


@pytest.mark.parametrize("keep", [1, 3])
def test_pruning_keeps_the_newest_checkpoints_and_their_rows_only(path: Path, keep: int) -> None:
    with SqliteSaver.from_conn_string(str(path)) as plain, SqliteSaver.from_conn_string(str(path)) as second:
        saver, other, before = IncrementalSaver(plain), IncrementalSaver(second), None
        values = [[f"{step} {item}" for item in range(30)] for step in range(6)]
        configs = [before := put(saver, each, before) for each in values]
        other.prune("job", keep=keep)
        assert [each.config for each in saver.list(_CONFIG)] == configs[: -keep - 1 : -1]
        assert [read(saver, each) for each in configs[-keep:]] == values[-keep:]
        assert plain.conn.execute(_ROWS).fetchone()[0] < 30 * keep + 10
        # This process remembers rows that the other one deletes.
        put(saver, values[-1], before)
        put(other, ["short"], before)
        other.prune("job")
        put(saver, values[-1], before)
        assert read_anew(path) == values[-1]


def test_a_deleted_thread_can_begin_again_with_the_same_objects(path: Path) -> None:
    values = [HumanMessage(f"item {number}") for number in range(20)]
    with SqliteSaver.from_conn_string(str(path)) as plain:
        saver = IncrementalSaver(plain)
        put(saver, values)
        saver.delete_thread("job")
        assert plain.conn.execute(_ROWS).fetchone() == (0, 0)
        assert read(saver) is None
        put(saver, values)
        assert read_anew(path) == values


def test_a_thread_of_the_wrapped_saver_continues(path: Path) -> None:
    values = [f"item {number}" for number in range(20)]
    with SqliteSaver.from_conn_string(str(path)) as plain:
        first = put(plain, values)
        saver = IncrementalSaver(plain)
        assert read(saver) == values
        put(saver, [*values, "more"], first)
        assert read(saver, first) == values
        assert read(plain) != [*values, "more"]  # not a shorter list either
    assert read_anew(path) == [*values, "more"]


@pytest.mark.parametrize(
    "damage",
    ["DELETE FROM takeover_list_rows WHERE type = ''", "UPDATE takeover_list_rows SET value = X'00'"],
)
def test_damaged_rows_are_an_error(path: Path, damage: str) -> None:
    with SqliteSaver.from_conn_string(str(path)) as plain:
        put(IncrementalSaver(plain), [f"item {number}" for number in range(20)])
        plain.conn.execute(damage)
        with pytest.raises(CheckpointCorruptError, match=r"thread 'job': .*backup"):
            read(IncrementalSaver(plain))


def test_threads_expire(path: Path) -> None:
    with SqliteSaver.from_conn_string(str(path)) as plain:
        saver = IncrementalSaver(plain)
        put(saver, ["a"])
        plain.conn.execute("UPDATE takeover_list_threads SET written_at = written_at - 100")
        new: Any = {"configurable": {"thread_id": "new", "checkpoint_ns": ""}}
        put(saver, [1, 2, 3, 4], new)
        assert saver.delete_expired(200) == []
        assert saver.delete_expired(50) == ["job"]
        assert (read(saver), read(saver, new)) == (None, [1, 2, 3, 4])
        plain.conn.execute("UPDATE takeover_list_threads SET written_at = written_at - 100")
        put(IncrementalSaver(plain, ttl_s=50), ["b"])
        assert (read(saver), read(saver, new)) == (["b"], None)


class _LockedSetup(SqliteSaver):
    """Creates its tables under its lock only: the script would commit what another OS thread has begun."""

    def setup(self) -> None:
        assert self.lock.locked(), "the tables are created without the lock"
        super().setup()


@pytest.mark.parametrize("is_held", [False, True])
def test_tables_are_created_under_the_lock(path: Path, is_held: bool) -> None:
    with _LockedSetup.from_conn_string(str(path)) as plain:
        saver = IncrementalSaver(plain)
        with hold_thread(plain, "job") if is_held else nullcontext(saver) as writer:
            put(writer, ["a"])
        assert read(saver) == ["a"]


def test_threads_of_the_process_write_at_once(path: Path) -> None:
    with SqliteSaver.from_conn_string(str(path)) as plain:
        saver, errors = IncrementalSaver(plain), list[BaseException]()

        def write(thread: str) -> None:
            config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            try:
                values: list[Any] = []
                for number in range(40):
                    values = [*values, f"{thread} {number}"]
                    put(saver, values, config)
                    assert read(saver, config) == values
            except BaseException as error:
                errors.append(error)

        writers = [threading.Thread(target=write, args=(f"t{number}",)) for number in range(4)]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        assert errors == []


@pytest.mark.slow
def test_after_a_kill_each_stored_checkpoint_is_whole(path: Path) -> None:
    for _ in range(2):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == 60:
                break
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with SqliteSaver.from_conn_string(str(path)) as plain:
            found = [
                each.checkpoint["channel_values"]["items"] for each in IncrementalSaver(plain).list(_CONFIG)
            ]
        assert len(found) > 60
        assert found == [[f"item {n}" for n in range(length)] for length in range(len(found), 0, -1)]


class _Cipher:
    """Each encryption of a text is another."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        key = os.urandom(len(plaintext))
        return "pad", key + bytes(a ^ b for a, b in zip(key, plaintext, strict=True))

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        half = len(ciphertext) // 2
        return bytes(a ^ b for a, b in zip(ciphertext[:half], ciphertext[half:], strict=True))


def test_values_can_be_encrypted(path: Path) -> None:
    values = [HumanMessage(f"secret {number}") for number in range(20)]
    with SqliteSaver.from_conn_string(str(path)) as plain:
        plain.serde = EncryptedSerializer(_Cipher())
        saver = IncrementalSaver(plain)
        before = put(saver, values)
        rows = plain.conn.execute(_ROWS).fetchone()[0]
        resumed = IncrementalSaver(plain)
        put(resumed, [*read(resumed), HumanMessage("more")], before)
        assert plain.conn.execute(_ROWS).fetchone()[0] < rows + 6
        assert read(IncrementalSaver(plain)) == [*values, HumanMessage("more")]
    assert b"secret" not in path.read_bytes()


def test_a_list_becomes_the_start_of_a_delta_channel(path: Path) -> None:
    class Delta(TypedDict, total=False):
        notes: Annotated[
            list[Any], DeltaChannel(lambda known, added: [*known, *(x for one in added for x in one)])
        ]

    config: Any = {"configurable": {"thread_id": "job"}}
    with SqliteSaver.from_conn_string(str(path)) as plain:
        for state, saver in ((_Notes, IncrementalSaver(plain)), (Delta, IncrementalSaver(plain))):
            graph: Any = (
                StateGraph(state).add_node("note", lambda state: {"notes": ["more"]}).add_edge(START, "note")
            )  # type: ignore[type-var]
            graph = graph.compile(checkpointer=saver)
            for _ in range(2):
                graph.invoke({"notes": ["a", "b", "c"]}, config)
        assert graph.get_state(config).values["notes"] == ["a", "b", "c", "more"] * 4


def test_pruned_threads_keep_their_subgraphs(path: Path) -> None:
    child: Any = StateGraph(_Notes).add_node("note", lambda state: {"notes": ["x"]}).add_edge(START, "note")
    parent: Any = StateGraph(_Notes).add_node("child", child.compile(checkpointer=True))
    config: Any = {"configurable": {"thread_id": "job"}}
    with SqliteSaver.from_conn_string(str(path)) as plain:
        saver = IncrementalSaver(plain)
        graph = parent.add_edge(START, "child").compile(checkpointer=saver)
        for number in range(6):
            graph.invoke({"notes": [str(number)]}, config)
        before = graph.get_state(config).values
        saver.prune("job", keep=2)
        assert graph.get_state(config).values == before
        graph.invoke({"notes": ["last"]}, config)
        assert len(graph.get_state(config).values["notes"]) > len(before["notes"])
        inner = next(
            each
            for each in saver.list(_CONFIG | {"configurable": {"thread_id": "job"}})
            if each.config["configurable"]["checkpoint_ns"]
        )
        assert len(inner.checkpoint["channel_values"]["notes"]) > 7


def test_it_can_be_held(path: Path) -> None:
    values = [f"item {number}" for number in range(20)]
    with SqliteSaver.from_conn_string(str(path)) as plain:
        with hold_thread(IncrementalSaver(plain), "job") as held:
            put(held, values)
            assert read(held) == values
        assert plain.conn.execute(_ROWS).fetchone()[0] >= 20
    assert read_anew(path) == values


@pytest.mark.parametrize("make", [InMemorySaver, lambda: IncrementalSaver(SqliteSaver(None))])  # type: ignore[arg-type]
def test_other_savers_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UnsupportedSaverError, match=r"pass a SqliteSaver"):
        IncrementalSaver(make())


def test_a_copy_with_other_types_reads_the_same_rows(path: Path) -> None:
    values = [f"item {number}" for number in range(20)]
    with SqliteSaver.from_conn_string(str(path)) as plain:
        saver = IncrementalSaver(plain)
        put(saver, values)
        assert read(saver.with_allowlist([])) == values


def test_an_async_saver_is_used_from_threads_too(path: Path) -> None:
    async def work() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(path)) as plain:
            saver = IncrementalSaver(plain)
            await asyncio.to_thread(put, saver, [1, 2, 3, 4, 5])
            assert await asyncio.to_thread(read, saver) == [1, 2, 3, 4, 5]
            with pytest.raises(asyncio.InvalidStateError, match=r"await graph\.ainvoke"):
                read(saver)
            await saver.aprune(["job"])
            assert await saver.adelete_expired(0.0) == ["job"]

    asyncio.run(work())


def test_the_saver_of_a_home_stores_lists_once_too(bench: RunHarness) -> None:
    with hold(bench) as work:
        before, values = None, list[Any]()
        for number in range(200):
            values = [*values, f"{number:04} " + "x" * 1000]
            before = put(work.saver, values, before or _OWN)
        assert read(work.saver, _OWN) == values
        work.prune()
        assert read(work.saver, _OWN) == values
        put(work.saver, values[:7], before)
        assert read(work.saver, _OWN) == values[:7]
        with bench.home.ledger.read_transaction() as connection:
            assert connection.execute(text(_ROWS)).one()[1] < 250_000
