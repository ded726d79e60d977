"""An agent and a graph for LangGraph's server, each thread with its own sandbox.

Usage: OPENAI_API_KEY=… langgraph dev --no-reload  (in this directory, with your repository in ./repository)
"""

import atexit
from contextlib import ExitStack
from pathlib import Path

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

from langgraph_takeover import SandboxSpec, open_home
from langgraph_takeover.integrations import Sandboxes, SandboxState
from langgraph_takeover.middleware import SandboxMiddleware
from langgraph_takeover.sandbox import default_backend

resources = ExitStack()
atexit.register(resources.close)
home = resources.enter_context(open_home("work"))
spec = SandboxSpec(backend=default_backend(), directory=Path("repository"))
sandboxes = resources.enter_context(Sandboxes(home, spec))

model = ChatOpenAI(model="gpt-5")
agent = create_agent(model, middleware=[SandboxMiddleware(sandboxes)])


class State(SandboxState, total=False):
    command: str
    output: str


async def run(state: State) -> State:
    work = await sandboxes.acurrent()
    act = await work.aact(
        "run",
        lambda sandbox: sandbox.run(state["command"], timeout_s=600).output,
        state=state.get("sandbox_state"),
    )
    return {"output": act.value, "sandbox_state": act.state}


commands = StateGraph(State).add_node(run).add_edge(START, "run").compile()
