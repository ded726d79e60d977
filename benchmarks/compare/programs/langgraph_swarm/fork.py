"""langgraph-swarm: a fork from an earlier checkpoint of the agent, with another model; the files stay as they are."""

import sqlite3

from langchain.agents import create_agent
from langchain.agents.middleware import ShellToolMiddleware
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_swarm import create_swarm

from benchmarks.compare.arguments import phase, work


def build(model: str):
    shell = ShellToolMiddleware(workspace_root=work / "repository")
    # With checkpointer=True the agent's own steps have a history; otherwise a whole turn is one step of the swarm.
    coder = create_agent(ChatOpenAI(model=model), middleware=[shell], name="coder", checkpointer=True)
    saver = SqliteSaver(sqlite3.connect(work / "state.sqlite", check_same_thread=False))
    return create_swarm([coder], default_active_agent="coder").compile(checkpointer=saver)


if phase == "start":
    task = {"messages": [("user", "Make the tests pass.")]}
    build("coder").invoke(task, {"configurable": {"thread_id": "fix-1"}})
else:
    app = build("second-coder")
    history = app.get_state_history({"configurable": {"thread_id": "fix-1", "checkpoint_ns": "coder"}})
    two_steps = ["human", "ai", "tool", "ai", "tool"]
    early = next(each for each in history if [m.type for m in each.values.get("messages", [])] == two_steps)
    app.invoke(None, early.config)
