"""deepagents: a coding agent with a shell and file tools, which work in the repository itself."""

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI

from benchmarks.compare.arguments import work

agent = create_deep_agent(
    model=ChatOpenAI(model="coder"),
    backend=LocalShellBackend(root_dir=work / "repository", inherit_env=True),
)
agent.invoke({"messages": [("user", "Make the tests pass.")]})
