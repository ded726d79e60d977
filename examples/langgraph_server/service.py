"""The graphs of `graphs.py` as a web service of any number of processes, with checkpoints in PostgreSQL.

Usage: OPENAI_API_KEY=… DATABASE=postgresql://… uvicorn --workers 2 service:app  (in this directory)
"""

import os
from contextlib import asynccontextmanager

from fastapi import FastAPI
from graphs import agent, commands, sandboxes
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from langgraph_takeover.integrations import IncrementalSaver

OPTIONS = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@asynccontextmanager
async def lifespan(app: FastAPI):
    async with AsyncConnectionPool(os.environ["DATABASE"], kwargs=OPTIONS) as pool:
        postgres = AsyncPostgresSaver(pool)
        await postgres.setup()
        saver = sandboxes.guard(IncrementalSaver(postgres))
        app.graphs = {
            name: graph.copy({"checkpointer": saver})
            for name, graph in {"agent": agent, "commands": commands}.items()
        }
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/{name}/{thread}")
async def run(name: str, thread: str, given: dict):
    """Run a graph with an input, after the run that a killed process left; {} only resumes."""
    graph, config = app.graphs[name], {"configurable": {"thread_id": thread}}
    if (await graph.aget_state(config)).tasks:
        await graph.ainvoke(None, config, durability="sync")
    if given:
        await graph.ainvoke(given, config, durability="sync")
    values = (await graph.aget_state(config)).values
    return values.get("output") or [each.text for each in values.get("messages", ())]
