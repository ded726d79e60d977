"""The checkpoints of LangGraph's server, on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from langgraph_takeover.graph.checkpoints.server_saver import DATABASE_PATH, ServerSaver, open_server_saver


async def write_thread(saver: ServerSaver, thread: str, run: str) -> None:
    config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    checkpoint = {**empty_checkpoint(), "id": str(uuid6())}
    at = await saver.aput(config, checkpoint, {"run_id": run}, {})
    await saver.aput_writes(at, [("messages", run)], "task")


async def list_checkpoints(saver: ServerSaver, thread: str) -> list[CheckpointTuple]:
    return [each async for each in saver.alist({"configurable": {"thread_id": thread}})]


def test_a_rolled_back_run_leaves_nothing_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def roll_back() -> None:
        async with open_server_saver() as saver:
            await saver.adelete_for_runs(["first"])
            for run in ("first", "second", "second"):
                await write_thread(saver, "thread", run)
            await write_thread(saver, "other", "third")
            await saver.adelete_for_runs(["second", "third"])
        async with open_server_saver() as saver:
            (left,) = await list_checkpoints(saver, "thread")
            assert left.metadata["run_id"] == "first"
            assert left.pending_writes == [("task", "messages", "first")]
            assert not await list_checkpoints(saver, "other")
            async with saver.wrapped.conn.execute("SELECT count(*) FROM writes") as counted:
                assert await counted.fetchone() == (1,)

    asyncio.run(roll_back())
    assert (tmp_path / DATABASE_PATH).is_file()


def test_an_unread_thread_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def delete_run() -> None:
        async with open_server_saver() as saver:
            await saver.adelete_thread("thread")
            await write_thread(saver, "thread", "run")
            await saver.adelete_thread("thread")
            assert not await list_checkpoints(saver, "thread")

    asyncio.run(delete_run())
