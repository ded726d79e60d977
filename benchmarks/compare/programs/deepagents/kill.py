"""deepagents: a coding agent whose conversation is saved after each step, and resumed."""

import sqlite3

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver

from benchmarks.compare.arguments import phase, work

agent = create_deep_agent(
    model=ChatOpenAI(model="coder"),
    backend=LocalShellBackend(root_dir=work / "repository", inherit_env=True),
    checkpointer=SqliteSaver(sqlite3.connect(work / "state.sqlite", check_same_thread=False)),
)
task = {"messages": [("user", "Make the tests pass.")]}
agent.invoke(task if phase == "start" else None, {"configurable": {"thread_id": "fix-1"}})
