"""Takeover: a coding agent with a shell and an editor, in a sandbox that works on a copy of the repository."""

from langchain_openai import ChatOpenAI

from benchmarks.compare.arguments import work
from langgraph_takeover import SandboxSpec, open_home, run

with open_home(work / "home") as home:
    outcome = run(
        home,
        "fix-1",
        task_id="fix",
        prompt="Make the tests pass.",
        model=ChatOpenAI(model="coder"),
        sandbox=SandboxSpec(backend="host", directory=work / "repository"),
        protocol="native",
    )
(work / "result.patch").write_text(outcome.patch)
