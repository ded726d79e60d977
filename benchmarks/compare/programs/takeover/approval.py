"""Takeover: LangChain's middleware asks a person; the sandbox and the question are saved together."""

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_openai import ChatOpenAI
from langgraph.types import Command

from benchmarks.compare.arguments import phase, work
from langgraph_takeover import SandboxSpec, open_home
from langgraph_takeover.integrations import open_sandbox
from langgraph_takeover.middleware import SandboxMiddleware

repository = SandboxSpec(backend="host", directory=work / "repository")
ask = HumanInTheLoopMiddleware(
    {
        "shell": {
            "allowed_decisions": ["approve", "reject"],
            "when": lambda request: "rm " in request.tool_call["args"]["command"],
        }
    }
)
task = {"messages": [("user", "Make the tests pass.")]}
approval = Command(resume={"decisions": [{"type": "approve"}]})
with open_home(work / "home") as home, open_sandbox(home, "fix-1", sandbox=repository) as sandbox:
    agent = create_agent(
        ChatOpenAI(model="coder"), middleware=[ask, SandboxMiddleware(sandbox)], checkpointer=sandbox.saver
    )
    end = agent.invoke(task if phase == "start" else approval, {"configurable": {"thread_id": "fix-1"}})
    changed = sandbox.enter(end["sandbox_state"]).inspect("git add -A; git diff --cached")
(work / "result.patch").write_text(changed.output)
