"""The savers pass LangGraph's conformance suite, and write only under a lease."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sqlite3
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from langgraph_takeover.errors import CheckpointCorruptError, ThreadNotHeldError
from langgraph_takeover.graph.checkpoints.savers import open_saver
from langgraph_takeover.handoff.ledger import FencedError, Lease, Ledger, LedgerUnavailableError, acquire

from ...conftest import skip_missing

THREAD: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
BASIC = {"put", "put_writes", "get_tuple", "list", "delete_thread"}


class AnyThreadSaver(BaseCheckpointSaver[str]):
    """A saver for any thread: each thread is written by the fenced saver of its own lease, as in its own run."""

    def __init__(self, ledger: Ledger, stack: ExitStack) -> None:
        super().__init__()
        self._ledger = ledger
        self._reader: Any = stack.enter_context(open_saver(ledger))
        self._leases: dict[str, Lease] = {}
        stack.callback(lambda: [lease.release() for lease in self._leases.values()])

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found: CheckpointTuple | None = await self._reader.aget_tuple(config)
        return found

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        async for found in self._reader.alist(config, **kwargs):
            yield found

    async def aput(self, config: RunnableConfig, *args: Any) -> RunnableConfig:
        with open_saver(self._ledger, self._lease(config["configurable"]["thread_id"])) as saver:
            stored: RunnableConfig = await saver.aput(config, *args)
        return stored

    async def aput_writes(self, config: RunnableConfig, *args: Any, **kwargs: Any) -> None:
        with open_saver(self._ledger, self._lease(config["configurable"]["thread_id"])) as saver:
            await saver.aput_writes(config, *args, **kwargs)

    async def adelete_thread(self, thread_id: str) -> None:
        with open_saver(self._ledger, self._lease(thread_id)) as saver:
            await saver.adelete_thread(thread_id)

    def _lease(self, thread: str) -> Lease:
        if thread not in self._leases:
            self._leases[thread] = acquire(self._ledger, thread, ttl_s=3600)
        return self._leases[thread]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        found = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    else:
        found = Ledger(request.getfixturevalue("postgres_database"))
    yield found
    found.close()


def test_the_savers_pass_the_conformance_suite(ledger: Ledger) -> None:
    if importlib.util.find_spec("langgraph.checkpoint.conformance") is None:
        skip_missing(
            "langgraph-checkpoint-conformance is not installed: install this project with its extra `dev`"
        )
    conformance = importlib.import_module("langgraph.checkpoint.conformance")

    @conformance.checkpointer_test(name="fenced")  # type: ignore[untyped-decorator]
    async def open_fenced() -> AsyncIterator[AnyThreadSaver]:
        with ExitStack() as stack:
            yield AnyThreadSaver(ledger, stack)

    report = asyncio.run(conformance.validate(open_fenced, capabilities=BASIC))
    failed = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failed == {}
    assert report.passed_all_base()
    assert sum(result.tests_passed for result in report.results.values()) > 40


def test_only_the_leased_thread_is_written_and_only_during_the_lease(ledger: Ledger) -> None:
    def at(thread: str) -> RunnableConfig:
        return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}

    lease = acquire(ledger, "thread")
    with open_saver(ledger, lease) as saver:
        if not ledger.is_sqlite:
            with pytest.raises(ThreadNotHeldError):
                saver.prune(["thread", "other"], strategy="delete")
        first = saver.put(at("thread"), empty_checkpoint(), {"source": "input", "step": -1}, {})
        deeds = (
            lambda config: saver.put(config, empty_checkpoint(), {"source": "loop", "step": 0}, {}),
            lambda config: saver.put_writes(config, [("messages", "late")], "task"),
            lambda config: saver.delete_thread(config["configurable"]["thread_id"]),
        )
        other = {"configurable": {**first["configurable"], "thread_id": "other"}}
        for deed in deeds:
            with pytest.raises(
                ThreadNotHeldError, match="'other' is not held: this saver writes to thread 'thread'"
            ):
                deed(other)
        lease.release()
        later = acquire(ledger, "thread")
        for deed in deeds:
            with pytest.raises(FencedError, match="taken over by process"):
                deed(first)
        (found,) = saver.list(at("thread"))
        assert found.config["configurable"]["checkpoint_id"] == first["configurable"]["checkpoint_id"]
        assert found.pending_writes == []
        assert list(saver.list(at("other"))) == []
        later.release()


def _fill_ledger(path: Path, steps: int = 6) -> Ledger:
    """A thread with a chain of checkpoints, each with its writes."""
    ledger = Ledger(f"sqlite:///{path}")
    lease = acquire(ledger, "thread")
    with open_saver(ledger, lease) as saver:
        config: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
        for step in range(steps):
            checkpoint = empty_checkpoint() | {"id": str(uuid6(clock_seq=step))}
            values = {"sandbox_state": f"m{step}"} | ({"events": []} if step == 0 else {})
            checkpoint["channel_values"] = values
            config = saver.put(config, checkpoint, {"source": "loop", "step": step}, {})
            writes = [("events", f"event {step} {number} " + "text " * 90) for number in range(3)]
            saver.put_writes(config, writes, f"task {step}")
            saver.put_writes(config, [("__interrupt__", "waits")], f"task {step}")
    lease.release()
    return ledger


def _read(ledger: Ledger) -> tuple[Any, Any]:
    """The state that LangGraph resumes from: the newest checkpoint, its writes, and those of all before it."""
    with open_saver(ledger) as saver:
        found = saver.get_tuple(THREAD)
        return found, saver.get_delta_channel_history(
            config=found.config, channels=["events"]
        ) if found else None


def _execute(ledger: Ledger, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(ledger.url.removeprefix("sqlite:///"))) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


@pytest.mark.slow
def test_no_bit_flip_changes_the_resumed_state(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    ledger = _fill_ledger(file)
    before = _read(ledger)
    ledger.close()
    whole, random = file.read_bytes(), Random(22)
    used = [offset for offset, byte in enumerate(whole) if byte]
    errors: list[str] = []
    for _ in range(250):
        damaged = bytearray(whole)
        damaged[random.choice(used)] ^= 1 << random.randrange(8)
        file.write_bytes(damaged)
        for beside in ("-wal", "-shm"):
            Path(f"{file}{beside}").unlink(missing_ok=True)
        try:
            ledger = Ledger(f"sqlite:///{file}")
            try:
                assert _read(ledger) == before
            finally:
                ledger.close()
        except LedgerUnavailableError as error:
            errors.append(str(error))
    assert len(errors) > 100
    assert not any("\n" in line for line in errors)


_NEWEST = "(SELECT max(checkpoint_id) FROM checkpoints)"
_OLDEST = "(SELECT min(checkpoint_id) FROM checkpoints)"


@pytest.mark.parametrize(
    ("damage", "reason", "is_fork_possible"),
    [
        (f"DELETE FROM checkpoints WHERE checkpoint_id = {_NEWEST}", "it is missing", True),
        (
            f"DELETE FROM writes WHERE checkpoint_id = {_NEWEST}",
            "its writes do not match their checksum",
            True,
        ),
        (f"DELETE FROM writes WHERE checkpoint_id = {_NEWEST} AND idx = 2", "its writes do not match", True),
        (
            f"UPDATE writes SET value = 'x' WHERE checkpoint_id = {_NEWEST} AND idx = 1",
            "its writes do not",
            True,
        ),
        (f"UPDATE writes SET task_id = 'x' WHERE checkpoint_id = {_NEWEST}", "its writes do not match", True),
        (
            f"UPDATE writes SET channel = CAST(x'da' AS TEXT) WHERE checkpoint_id = {_NEWEST}",
            "it cannot be read",
            True,
        ),
        (
            f"UPDATE checkpoints SET checkpoint = x'80' WHERE checkpoint_id = {_NEWEST}",
            "does not match its",
            True,
        ),
        (
            f"UPDATE checkpoints SET type = CAST(x'ff' AS TEXT) WHERE checkpoint_id = {_NEWEST}",
            "be read",
            True,
        ),
        (
            f"UPDATE checkpoints SET parent_checkpoint_id = {_OLDEST} WHERE checkpoint_id = {_NEWEST}",
            "match",
            True,
        ),
        (
            f"UPDATE checkpoints SET parent_checkpoint_id = NULL WHERE checkpoint_id = {_NEWEST}",
            "match",
            True,
        ),
        (f"DELETE FROM takeover_checksums WHERE checkpoint_id = {_NEWEST}", "it has no checksum", True),
        (
            f"UPDATE takeover_checksums SET writes = NULL WHERE checkpoint_id = {_NEWEST}",
            "its writes do not",
            True,
        ),
        (f"DELETE FROM checkpoints WHERE checkpoint_id = {_OLDEST}", "it is missing", False),
        (f"DELETE FROM writes WHERE checkpoint_id = {_OLDEST}", "its writes do not match", False),
        ("DELETE FROM checkpoints", "it is missing", False),
        ("UPDATE checkpoints SET thread_id = 'threae'", "it is missing", False),
        ("UPDATE takeover_checksums SET thread_id = 'threae'", "it has no checksum", False),
    ],
)
def test_damage_is_reported_in_one_line_with_the_last_good_checkpoint(
    tmp_path: Path, damage: str, reason: str, is_fork_possible: bool
) -> None:
    ledger = _fill_ledger(tmp_path / "ledger.sqlite")
    with open_saver(ledger) as saver:
        good = [each.config["configurable"]["checkpoint_id"] for each in saver.list(THREAD)][1]
    _execute(ledger, damage)
    with pytest.raises(CheckpointCorruptError, match=reason) as raised:
        _read(ledger)
    line = str(raised.value)
    assert "\n" not in line
    assert "ledger.sqlite: thread 'thread': checkpoint '" in line
    with open_saver(ledger) as saver:
        with pytest.raises(CheckpointCorruptError):
            list(saver.list(THREAD))
        if is_fork_possible:
            assert line.endswith(f"(fork from the last intact one: resume(..., checkpoint={good!r}))")
            config: RunnableConfig = {"configurable": {**THREAD["configurable"], "checkpoint_id": good}}
            assert saver.get_tuple(config).config == config
            assert saver.get_delta_channel_history(config=config, channels=["events"])["events"]["writes"]
        else:
            assert line.endswith("restore the database from a copy, or start a new thread)")
    ledger.close()


def test_another_thread_is_not_refused_for_a_damaged_one(tmp_path: Path) -> None:
    ledger = _fill_ledger(tmp_path / "ledger.sqlite")
    lease = acquire(ledger, "other")
    other: RunnableConfig = {"configurable": {"thread_id": "other", "checkpoint_ns": ""}}
    with open_saver(ledger, lease) as saver:
        saver.put(other, empty_checkpoint(), {"source": "input", "step": -1}, {})
        _execute(ledger, "DELETE FROM checkpoints WHERE thread_id = 'thread'")
        assert saver.get_tuple(other) is not None
        assert len(list(saver.list(other))) == 1
    lease.release()


def test_repeated_and_early_writes_have_checksums(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    lease = acquire(ledger, "thread")
    with open_saver(ledger, lease) as saver:
        checkpoint = empty_checkpoint()
        config: RunnableConfig = {
            "configurable": {"thread_id": "thread", "checkpoint_ns": "", "checkpoint_id": checkpoint["id"]}
        }
        saver.put_writes(config, [("a", 1)], "task")
        assert saver.get_tuple(THREAD) is None
        saver.put(THREAD, checkpoint, {"source": "input", "step": -1}, {})
        saver.put_writes(config, [("a", 2)], "task")  # ignored
        for answer in ("first", "second"):
            saver.put_writes(config, [("__resume__", answer)], "task")  # replaces
        saver.put_writes(config, [("__resume__", 1), ("__resume__", 2)], "other")
        saver.put_writes(config, [], "none")
        found = saver.get_tuple(THREAD)
        assert sorted(found.pending_writes) == [
            ("other", "__resume__", 2),
            ("task", "__resume__", "second"),
            ("task", "a", 1),
        ]
        saver.delete_thread("thread")
        assert saver.get_tuple(THREAD) is None
        assert list(saver.list(THREAD)) == []
    lease.release()
