"""deepagents: two runs from one checkpoint; the files are copied by code of our own."""

import shutil
import subprocess
from pathlib import Path

from deepagents import create_deep_agent
from deepagents.backends import LocalShellBackend
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from benchmarks.compare.arguments import work

repository, thread = work / "repository", {"configurable": {"thread_id": "fix-1"}}
saver = InMemorySaver()


def build(model: str, directory: Path):
    backend = LocalShellBackend(root_dir=directory, inherit_env=True)
    return create_deep_agent(model=ChatOpenAI(model=model), backend=backend, checkpointer=saver)


def ask(model: str, directory: Path, text: str, config: dict):
    agent = build(model, directory)
    agent.invoke({"messages": [("user", text)]}, config)
    return agent.get_state(thread).config


def test(attempt: str) -> int:
    return subprocess.run(["python3", "-m", "unittest", "-q"], cwd=work / attempt).returncode


prepared = ask("coder", repository, "Prepare the work.", thread)
ends = {}
for attempt in ("first", "second"):
    shutil.copytree(repository, work / attempt)
    ends[attempt] = ask(attempt, work / attempt, "Make the tests pass.", prepared)
winner, loser = sorted(ends, key=test)
shutil.rmtree(repository)
shutil.copytree(work / winner, repository)
ask("closer", repository, "Check the result.", ends[winner])
lost = build(loser, work / loser).get_state(ends[loser]).values["messages"]
stray = (work / loser / "stray.txt").read_text()
(work / "loser.txt").write_text(f"{lost}\n{stray}")
