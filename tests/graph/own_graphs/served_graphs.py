"""Further graphs for LangGraph's server, on the sandboxes of the example. `test_langgraph_server.py` serves them."""

from __future__ import annotations

import time
from typing import Any

from graphs import State, model, run, sandboxes
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from langgraph_takeover.middleware import SandboxMiddleware


def run_synchronously(state: State) -> State:
    act = sandboxes.current().act(
        "run",
        lambda sandbox: sandbox.run(state["command"], timeout_s=60).output,
        state=state.get("sandbox_state"),
    )
    return {"output": act.value, "sandbox_state": act.state}


def prepare(state: State) -> State:
    return run_synchronously({**state, "command": "echo prepared >> log; y=kept"})


def left(state: State) -> State:
    end = run_synchronously({**state, "command": "echo left > left"})
    return {"sandbox_state": end["sandbox_state"]}


async def right(state: State) -> State:
    end = await run({**state, "command": "echo right > right"})
    return {"sandbox_state": end["sandbox_state"]}


async def block(state: State) -> None:
    time.sleep(0.1)


def _build(*steps: Any) -> Any:
    return StateGraph(State).add_sequence(steps).add_edge(START, steps[0].__name__).compile()


def ask(state: State) -> State:
    return {"command": interrupt("which command?")}


synchronous = _build(run_synchronously)
asking = _build(prepare, ask, run)
blocking = _build(block)
reviewed = create_agent(
    model, middleware=[HumanInTheLoopMiddleware({"shell": True}), SandboxMiddleware(sandboxes)]
)
branches = (
    StateGraph(State)
    .add_node(left)
    .add_node(right)
    .add_node(run)
    .add_edge(START, "left")
    .add_edge(START, "right")
    .add_edge(["left", "right"], "run")
    .compile()
)
