"""Checkpoints of LangGraph's development server in a database of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from langgraph_takeover.graph.checkpoints.incremental_saver import IncrementalSaver

DATABASE_PATH = Path(".langgraph_api", "checkpoints.sqlite")
"""Beside the server's other files, in its working directory."""


class ServerSaver(AsyncSqliteSaver):
    """LangGraph's SQLite saver, with what the server needs to roll back a run."""

    async def adelete_for_runs(self, run_ids: Iterable[str]) -> None:
        await self.setup()
        async with self.lock, self.conn.cursor() as cursor:
            for run_id in run_ids:
                of_run = "json_extract(CAST(metadata AS TEXT), '$.run_id') = ?"
                await cursor.execute(
                    "DELETE FROM writes WHERE (thread_id, checkpoint_ns, checkpoint_id) IN "
                    f"(SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints WHERE {of_run})",
                    (str(run_id),),
                )
                await cursor.execute(f"DELETE FROM checkpoints WHERE {of_run}", (str(run_id),))
            await self.conn.commit()

    async def adelete_thread(self, thread_id: str) -> None:
        await self.setup()  # the overridden method forgets these
        await super().adelete_thread(thread_id)


@asynccontextmanager
async def open_server_saver() -> AsyncIterator[IncrementalSaver]:
    """For the entry `checkpointer` of a `langgraph.json`: each checkpoint of `langgraph dev` is on disk at once.

    The server's own saver writes its checkpoints to disk only every ten seconds, so a kill loses the last ones.

    Example:
        >>> from langgraph_takeover.integrations import open_server_saver
        >>> config = {"checkpointer": {"path": "langgraph_takeover.integrations.open_server_saver"}}
    """
    await asyncio.to_thread(DATABASE_PATH.parent.mkdir, exist_ok=True)  # the server forbids blocking calls
    async with ServerSaver.from_conn_string(str(DATABASE_PATH)) as saver:
        yield IncrementalSaver(saver)
