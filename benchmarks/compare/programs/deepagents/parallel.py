"""deepagents: the agent calls several subagents in one reply; they work at once, in one directory."""

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI

from benchmarks.compare.arguments import phase, work

workers = [
    {
        "name": f"worker-{number}",
        "description": "Improves the documentation.",
        "system_prompt": "You improve documentation.",
        "model": ChatOpenAI(model=f"{phase}-{number}"),
    }
    for number in (1, 2, 3)
]
agent = create_deep_agent(
    model=ChatOpenAI(model="lead"),
    subagents=workers,
    backend=LocalShellBackend(root_dir=work / "repository", inherit_env=True),
)
agent.invoke({"messages": [("user", "Improve the documentation.")]})
