"""langgraph-swarm: LangChain's middleware asks a person; the question is saved with the conversation."""

import sqlite3

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ShellToolMiddleware
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from langgraph_swarm import create_swarm

from benchmarks.compare.arguments import phase, work

ask = HumanInTheLoopMiddleware(
    {
        "shell": {
            "allowed_decisions": ["approve", "reject"],
            "when": lambda request: "rm " in request.tool_call["args"]["command"],
        }
    }
)
shell = ShellToolMiddleware(workspace_root=work / "repository")
coder = create_agent(ChatOpenAI(model="coder"), middleware=[ask, shell], name="coder")
saver = SqliteSaver(sqlite3.connect(work / "state.sqlite", check_same_thread=False))
app = create_swarm([coder], default_active_agent="coder").compile(checkpointer=saver)
task = {"messages": [("user", "Make the tests pass.")]}
approval = Command(resume={"decisions": [{"type": "approve"}]})
app.invoke(task if phase == "start" else approval, {"configurable": {"thread_id": "fix-1"}})
