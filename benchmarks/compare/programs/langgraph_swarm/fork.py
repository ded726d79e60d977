"""langgraph-swarm: the first messages of a turn on a new thread, with another model; the files stay as they are.

An agent's turn is one step of the swarm, so the swarm's own checkpoints are before and after the whole turn.
"""

import sqlite3
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain.agents.middleware import ShellToolMiddleware
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_swarm import create_swarm

work, phase = Path(sys.argv[1]), sys.argv[2]


def build(model: str):
    shell = ShellToolMiddleware(workspace_root=work / "repository")
    coder = create_agent(ChatOpenAI(model=model), middleware=[shell], name="coder")
    saver = SqliteSaver(sqlite3.connect(work / "state.sqlite", check_same_thread=False))
    return create_swarm([coder], default_active_agent="coder").compile(checkpointer=saver)


config = {"configurable": {"thread_id": "fix-1"}}
if phase == "start":
    build("coder").invoke({"messages": [("user", "Make the tests pass.")]}, config)
else:
    app = build("second-coder")
    messages = app.get_state(config).values["messages"]
    two_steps = messages[:5]  # the task, then a call and its result per step
    app.invoke({"messages": two_steps}, {"configurable": {"thread_id": "fix-1b"}})
