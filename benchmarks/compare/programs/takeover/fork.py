"""Takeover: a fork three steps back, with another model; files and shell are those of that step."""

from langchain_openai import ChatOpenAI

from benchmarks.compare.arguments import phase, work
from langgraph_takeover import SandboxSpec, open_home, resume, run

agent = {
    "sandbox": SandboxSpec(backend="host", directory=work / "repository"),
    "protocol": "native",
}
with open_home(work / "home") as home:
    if phase == "start":
        outcome = run(
            home,
            "fix-1",
            task_id="fix",
            prompt="Make the tests pass.",
            model=ChatOpenAI(model="coder"),
            **agent,
        )
    else:
        early = next(each for each in home.history("fix-1") if each.step == 2 and each.next == ("think",))
        outcome = resume(
            home, "fix-1", checkpoint=early.checkpoint, model=ChatOpenAI(model="second-coder"), **agent
        )
(work / "result.patch").write_text(outcome.patch)
