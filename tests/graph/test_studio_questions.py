"""A question of a custom tool in a served graph: Studio shows it as an interrupt, and its answer continues the tool."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from langgraph_sdk.runtime import _ExecutionRuntime
from pydantic import BaseModel

from langgraph_takeover.errors import TakeoverError
from langgraph_takeover.graph.home import Home
from langgraph_takeover.graph.studio_factory import (
    HOME_VARIABLE,
    INPUT_ONLY,
    ServedRequest,
    ServedRunSetup,
    serve,
)
from langgraph_takeover.nodes.state import AgentState

from ..nodes.tools.test_custom import textual
from .conftest import DONE, EDIT, SHOW, RunHarness, get_shown_lines, scripted_model


class TaskForm(BaseModel):
    title: Annotated[str, INPUT_ONLY] = "t"


class NoChoices(BaseModel):
    policy: str = "record"


class ReviewRefusedError(TakeoverError, ValueError):
    pass


@tool
def ask(question: str, config: RunnableConfig) -> str:
    """Ask a person."""
    config["configurable"]["sandbox"].run("echo asked >>notes.txt", timeout_s=10)
    return str(interrupt(question))


def refuse_answer(answer: Any) -> None:
    raise ReviewRefusedError(f"no review: {answer}")


class Server:
    """Runs a served graph as LangGraph's server does: one factory call and one lease per run."""

    def __init__(self, bench: RunHarness, *replies: str, **settings: Any) -> None:
        model = scripted_model(*replies)
        self.saver = InMemorySaver()

        def build_setup(home: Home, request: ServedRequest) -> ServedRunSetup:
            return ServedRunSetup(
                model=model,
                model_name="scripted",
                sandbox=bench.spec,
                run_id="run",
                settings={"tools": (ask,), "points": (), **settings},
                initial_state=AgentState(task={"id": "t", "prompt": "Do it."}),
            )

        self.factory = serve("agent", TaskForm, NoChoices, build_setup, refuse_answer)

    async def run(self, graph_input: Any) -> Any:
        runtime: Any = _ExecutionRuntime(access_context="threads.create_run", store=InMemoryStore())
        async with self.factory(runtime) as graph:
            graph.checkpointer = self.saver
            config: RunnableConfig = {"configurable": {"thread_id": "served"}}
            return await graph.ainvoke(graph_input, config, context=NoChoices())


@pytest.fixture(autouse=True)
def _serve_from(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "served"))


def test_an_answer_is_not_checked_as_a_review(bench: RunHarness) -> None:
    server = Server(bench, textual("ask", question="Deploy?"), SHOW, DONE)

    async def use() -> Any:
        waiting = await server.run({"title": "t"})
        assert [each.value for each in waiting["__interrupt__"]] == ["Deploy?"]
        return await server.run(Command(resume="yes"))

    state = asyncio.run(use())
    assert state["stop_reason"] == "finished"
    assert get_shown_lines(state) == ["asked"]


def test_a_secret_in_an_answer_is_not_stored(bench: RunHarness) -> None:
    server = Server(bench, textual("ask", question="Which key?"), DONE)

    async def use() -> Any:
        await server.run({"title": "t"})
        return await server.run(Command(resume="sk-abcdefghijklmnop1234567890, the second"))

    state = asyncio.run(use())
    assert any("[redacted], the second" in message.text for message in state["messages"])
    assert "sk-abc" not in repr((server.saver.storage, server.saver.writes, server.saver.blobs))


def test_an_answer_to_a_review_is_checked(bench: RunHarness) -> None:
    server = Server(bench, EDIT, DONE, points=("first_source_edit",), policy="review")

    async def use() -> None:
        waiting = await server.run({"title": "t"})
        assert waiting["__interrupt__"]
        with pytest.raises(ReviewRefusedError):
            await server.run(Command(resume="yes"))

    asyncio.run(use())
