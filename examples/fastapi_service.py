"""A web service: one compiled agent, a sandbox for each thread, and commands that a person approves or edits.

Usage: REPOSITORY=path/to/repository DIRECTORY=work uvicorn --app-dir examples fastapi_service:app
"""

import gc
import os
from contextlib import asynccontextmanager
from pathlib import Path

from demo_task import CommandChat
from fastapi import FastAPI, responses
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from langgraph_takeover import open_home
from langgraph_takeover.errors import ThreadHeldError
from langgraph_takeover.integrations import Sandboxes
from langgraph_takeover.middleware import SandboxMiddleware
from langgraph_takeover.sandbox import SandboxSpec, default_backend

REPOSITORY, WORK = (Path(os.environ.get(name, ".")) for name in ("REPOSITORY", "DIRECTORY"))
MODEL = CommandChat(replies=[])  # not an LLM: it runs the command that the user sends


@asynccontextmanager
async def lifespan(app: FastAPI):
    spec = SandboxSpec(backend=default_backend(allow_process=True), directory=REPOSITORY)
    chats = AsyncSqliteSaver.from_conn_string(f"{WORK}/chats.sqlite")
    async with open_home(WORK) as home, chats as saver, Sandboxes(home, spec) as sandboxes:
        middleware = [HumanInTheLoopMiddleware({"shell": True}), SandboxMiddleware(sandboxes)]
        app.agent = create_agent(MODEL, middleware=middleware, checkpointer=sandboxes.guard(saver))
        gc.freeze()  # a full collection of what was imported would stop the event loop for 0.1 s
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/{thread}")
async def run(thread: str, given: dict):
    """Send {"text": …}, a decision such as {"type": "approve"}, or {} to resume after a crash."""
    answer = Command(resume={"decisions": [given]}) if "type" in given else None
    step = {"messages": [("user", given["text"])]} if "text" in given else answer
    await app.agent.ainvoke(step, {"configurable": {"thread_id": thread}}, durability="sync")
    return await read(thread)


@app.get("/{thread}")
async def read(thread: str):
    state = await app.agent.aget_state({"configurable": {"thread_id": thread}})
    texts = [each.text for each in state.values.get("messages", ()) if each.text]
    return {"texts": texts, "next": state.next, "questions": [each.value for each in state.interrupts]}


@app.exception_handler(ThreadHeldError)
async def refuse(_, error: ThreadHeldError):
    return responses.JSONResponse({"error": str(error)}, status_code=409)
