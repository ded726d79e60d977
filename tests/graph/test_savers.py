"""The savers keep what LangGraph's own promise, as its conformance suite has it, and write under a lease only."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from graph.savers import open_saver
from handoff.ledger import Fenced, Lease, Ledger, acquire

from ..conftest import missing

BASIC = {"put", "put_writes", "get_tuple", "list", "delete_thread"}


class Everywhere(BaseCheckpointSaver[str]):
    """A saver for any thread: each is written by the fenced saver of its own lease, as in a run of its own."""

    def __init__(self, ledger: Ledger, stack: ExitStack) -> None:
        super().__init__()
        self._ledger = ledger
        self._reader: Any = stack.enter_context(open_saver(ledger))
        self._leases: dict[str, Lease] = {}
        stack.callback(lambda: [lease.release() for lease in self._leases.values()])

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found: CheckpointTuple | None = await self._reader.aget_tuple(config)
        return found

    async def alist(self, config: RunnableConfig | None, **named: Any) -> AsyncIterator[CheckpointTuple]:
        async for found in self._reader.alist(config, **named):
            yield found

    async def aput(self, config: RunnableConfig, *given: Any) -> RunnableConfig:
        with open_saver(self._ledger, self._lease(config["configurable"]["thread_id"])) as saver:
            stored: RunnableConfig = await saver.aput(config, *given)
        return stored

    async def aput_writes(self, config: RunnableConfig, *given: Any, **named: Any) -> None:
        with open_saver(self._ledger, self._lease(config["configurable"]["thread_id"])) as saver:
            await saver.aput_writes(config, *given, **named)

    async def adelete_thread(self, thread_id: str) -> None:
        with open_saver(self._ledger, self._lease(thread_id)) as saver:
            await saver.adelete_thread(thread_id)

    def _lease(self, thread: str) -> Lease:
        if thread not in self._leases:
            self._leases[thread] = acquire(self._ledger, thread, ttl_s=3600)
        return self._leases[thread]


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        found = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    else:
        found = Ledger(request.getfixturevalue("postgres_database"))
    yield found
    found.close()


def test_the_savers_pass_the_conformance_suite(ledger: Ledger) -> None:
    if importlib.util.find_spec("langgraph.checkpoint.conformance") is None:
        missing(
            "langgraph-checkpoint-conformance is not installed: install this project with its extra `dev`"
        )
    conformance = importlib.import_module("langgraph.checkpoint.conformance")

    @conformance.checkpointer_test(name="fenced")  # type: ignore[untyped-decorator]
    async def fenced() -> AsyncIterator[Everywhere]:
        with ExitStack() as stack:
            yield Everywhere(ledger, stack)

    report = asyncio.run(conformance.validate(fenced, capabilities=BASIC))
    failed = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failed == {}
    assert report.passed_all_base()
    assert sum(result.tests_passed for result in report.results.values()) > 40


def test_nothing_is_written_to_another_thread_or_after_the_lease(ledger: Ledger) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    def at(thread: str) -> RunnableConfig:
        return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}

    lease = acquire(ledger, "thread")
    with open_saver(ledger, lease) as saver:
        if not ledger.on_sqlite:
            with pytest.raises(Fenced):
                saver.prune(["thread", "other"], strategy="delete")
        first = saver.put(at("thread"), empty_checkpoint(), {"source": "input", "step": -1}, {})
        deeds = (
            lambda config: saver.put(config, empty_checkpoint(), {"source": "loop", "step": 0}, {}),
            lambda config: saver.put_writes(config, [("messages", "late")], "task"),
            lambda config: saver.delete_thread(config["configurable"]["thread_id"]),
        )
        other = {"configurable": {**first["configurable"], "thread_id": "other"}}
        for deed in deeds:
            with pytest.raises(Fenced):
                deed(other)
        lease.release()
        later = acquire(ledger, "thread")
        for deed in deeds:
            with pytest.raises(Fenced, match="taken over by process"):
                deed(first)
        (found,) = saver.list(at("thread"))
        assert found.config["configurable"]["checkpoint_id"] == first["configurable"]["checkpoint_id"]
        assert found.pending_writes == []
        assert list(saver.list(at("other"))) == []
        later.release()
