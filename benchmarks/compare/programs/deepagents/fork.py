"""deepagents: a fork from an earlier checkpoint, with another model; the files stay as they are."""

import sqlite3

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks.compare.arguments import phase, work

config = {"configurable": {"thread_id": "fix-1"}}


def build(model: str):
    return create_deep_agent(
        model=ChatOpenAI(model=model),
        backend=LocalShellBackend(root_dir=work / "repository", inherit_env=True),
        checkpointer=SqliteSaver(sqlite3.connect(work / "state.sqlite", check_same_thread=False)),
    )


if phase == "start":
    build("coder").invoke({"messages": [("user", "Make the tests pass.")]}, config)
else:
    agent = build("second-coder")
    two_steps = ["human", "ai", "tool", "ai", "tool"]
    history = agent.get_state_history(config)
    early = next(each for each in history if [m.type for m in each.values.get("messages", [])] == two_steps)
    agent.invoke(None, early.config)
