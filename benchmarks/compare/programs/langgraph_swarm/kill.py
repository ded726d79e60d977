"""langgraph-swarm: a coding agent whose conversation is saved after each step, and resumed."""

import sqlite3

from langchain.agents import create_agent
from langchain.agents.middleware import ShellToolMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_swarm import create_swarm

from benchmarks.compare.arguments import phase, work


@tool
def edit_file(file_path: str, old_string: str, new_string: str) -> str:
    """Replace a text in a file."""
    file = work / "repository" / file_path.lstrip("/")
    file.write_text(file.read_text().replace(old_string, new_string))
    return "done"


coder = create_agent(
    ChatOpenAI(model="coder"),
    tools=[edit_file],
    middleware=[ShellToolMiddleware(workspace_root=work / "repository")],
    name="coder",
)
saver = SqliteSaver(sqlite3.connect(work / "state.sqlite", check_same_thread=False))
app = create_swarm([coder], default_active_agent="coder").compile(checkpointer=saver)
task = {"messages": [("user", "Make the tests pass.")]}
app.invoke(task if phase == "start" else None, {"configurable": {"thread_id": "fix-1"}})
