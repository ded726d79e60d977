"""Takeover: one agent hands over with its reasons; the other confirms, and continues in the sandbox as it was left."""

from langchain_openai import ChatOpenAI

from benchmarks.compare.arguments import work
from langgraph_takeover import SandboxSpec, deliver, hand_over, open_home, run

agent = {"sandbox": SandboxSpec(backend="host", directory=work / "repository"), "protocol": "native"}
with open_home(work / "home") as home:
    found = run(
        home,
        "find-1",
        task_id="fix",
        prompt="Make the tests pass.",
        model=ChatOpenAI(model="finder"),
        agent_name="finder",
        offer_handoff=True,
        policy="stop",
        points=("requested",),
        **agent,
    )
    handoff = hand_over(home, found.records[-1], target="fixer", source="finder")
    fixed = deliver(home, handoff.id, agent_name="fixer", model=ChatOpenAI(model="fixer"), **agent)
(work / "result.patch").write_text(fixed.outcome.diff_from_base)
