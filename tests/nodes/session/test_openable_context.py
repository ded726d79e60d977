"""`async with` closes its resource once, whenever the task is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from langgraph_takeover.nodes.session.workers import OpenableContext, Workers


class Gate:
    """A context manager whose beginning and end wait for the test."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.may_open, self.may_close = threading.Event(), threading.Event()

    @contextmanager
    def open(self) -> Iterator[str]:
        self.seen.append("opening")
        self.may_open.wait(30)
        self.seen.append("open")
        try:
            yield "value"
        finally:
            self.seen.append("closing")
            self.may_close.wait(30)
            self.seen.append("closed")

    async def reach(self, moment: str) -> None:
        while moment not in self.seen:
            await asyncio.sleep(0.01)


def start(gate: Gate) -> asyncio.Task[None]:
    async def use() -> None:
        async with OpenableContext(gate.open(), Workers()):
            await asyncio.sleep(30)

    return asyncio.create_task(use())


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.sleep(0.05)


def test_cancelled_while_it_opens() -> None:
    async def work(gate: Gate) -> None:
        gate.may_close.set()
        task = start(gate)
        await gate.reach("opening")
        await cancel(task)
        assert not task.done(), "the task ended while its thread worked"
        gate.may_open.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.seen == ["opening", "open", "closing", "closed"]

    asyncio.run(work(Gate()))


def test_cancelled_again_while_it_closes() -> None:
    async def work(gate: Gate) -> None:
        gate.may_open.set()
        task = start(gate)
        await gate.reach("open")
        await cancel(task)
        await gate.reach("closing")
        await cancel(task)
        assert not task.done(), "the task ended while its thread worked"
        gate.may_close.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.seen == ["opening", "open", "closing", "closed"]

    asyncio.run(work(Gate()))


def test_cancelled_before_a_thread_closes_it() -> None:
    async def work(gate: Gate) -> None:
        workers, is_blocked = Workers(), threading.Event()
        gate.may_open.set()
        gate.may_close.set()

        async def use() -> None:
            async with OpenableContext(gate.open(), workers):
                blocked = [
                    asyncio.ensure_future(workers.run("lifecycle", lambda: is_blocked.wait(30)))
                    for _ in range(4)
                ]
                await asyncio.sleep(0)
            await asyncio.gather(*blocked)

        task = asyncio.create_task(use())
        await gate.reach("open")
        await asyncio.sleep(0.05)
        await cancel(task)
        is_blocked.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.seen == ["opening", "open", "closing", "closed"]

    asyncio.run(work(Gate()))
