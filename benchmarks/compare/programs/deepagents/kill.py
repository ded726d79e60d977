"""deepagents: a coding agent whose conversation is saved after each step, and resumed."""

import sqlite3
import sys
from pathlib import Path

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver

work, phase = Path(sys.argv[1]), sys.argv[2]
agent = create_deep_agent(
    model=ChatOpenAI(model="coder"),
    backend=LocalShellBackend(root_dir=work / "repository", inherit_env=True),
    checkpointer=SqliteSaver(sqlite3.connect(work / "state.sqlite", check_same_thread=False)),
)
task = {"messages": [("user", "Make the tests pass.")]}
agent.invoke(task if phase == "start" else None, {"configurable": {"thread_id": "fix-1"}})
