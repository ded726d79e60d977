"""deepagents: a risky command waits for a person; the question is saved with the conversation."""

import sqlite3

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from benchmarks.compare.arguments import phase, work

agent = create_deep_agent(
    model=ChatOpenAI(model="coder"),
    backend=LocalShellBackend(root_dir=work / "repository", inherit_env=True),
    checkpointer=SqliteSaver(sqlite3.connect(work / "state.sqlite", check_same_thread=False)),
    interrupt_on={
        "execute": {
            "allowed_decisions": ["approve", "reject"],
            "when": lambda request: "rm " in request.tool_call["args"]["command"],
        }
    },
)
task = {"messages": [("user", "Make the tests pass.")]}
approval = Command(resume={"decisions": [{"type": "approve"}]})
agent.invoke(task if phase == "start" else approval, {"configurable": {"thread_id": "fix-1"}})
