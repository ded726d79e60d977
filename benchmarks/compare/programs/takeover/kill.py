"""Takeover: a coding agent whose conversation and sandbox are saved after each step, and resumed together."""

from langchain_openai import ChatOpenAI

from benchmarks.compare.arguments import phase, work
from langgraph_takeover import SandboxSpec, open_home, resume, run

agent = {
    "model": ChatOpenAI(model="coder"),
    "sandbox": SandboxSpec(backend="host", directory=work / "repository"),
    "protocol": "native",
}
with open_home(work / "home") as home:
    if phase == "start":
        outcome = run(home, "fix-1", task_id="fix", prompt="Make the tests pass.", **agent)
    else:
        outcome = resume(home, "fix-1", **agent)
(work / "result.patch").write_text(outcome.patch)
