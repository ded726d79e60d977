"""deepagents: one agent delegates to a subagent, which gets a description and works in the same directory."""

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI

from benchmarks.compare.arguments import work

fixer = {
    "name": "fixer",
    "description": "Fixes a fault that you have found.",
    "system_prompt": "You fix faults.",
    "model": ChatOpenAI(model="fixer"),
}
agent = create_deep_agent(
    model=ChatOpenAI(model="finder"),
    subagents=[fixer],
    backend=LocalShellBackend(root_dir=work / "repository", inherit_env=True),
)
agent.invoke({"messages": [("user", "Make the tests pass.")]})
