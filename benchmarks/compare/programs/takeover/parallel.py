"""Takeover: agents in parallel nodes, each in a fork of the sandbox; the next node sees the merge."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from benchmarks.compare.arguments import phase, work
from langgraph_takeover import SandboxSpec, open_home
from langgraph_takeover.integrations import Sandboxes, SandboxState
from langgraph_takeover.middleware import SandboxMiddleware


class TeamState(MessagesState, SandboxState):
    pass


repository = SandboxSpec(backend="host", directory=work / "repository")
workers = [f"{phase}-{number}" for number in (1, 2, 3)]
with open_home(work / "home") as home, Sandboxes(home, repository, merge="markers") as sandboxes:
    builder = StateGraph(TeamState)
    for name in (*workers, "reader"):
        agent = create_agent(ChatOpenAI(model=name), middleware=[SandboxMiddleware(sandboxes)], name=name)
        builder.add_node(name, agent)
    for name in workers:
        builder.add_edge(START, name)
    builder.add_edge(workers, "reader")
    graph = builder.compile(checkpointer=InMemorySaver())
    task = {"messages": [("user", "Improve the documentation.")]}
    end = graph.invoke(task, {"configurable": {"thread_id": phase}})
    with sandboxes.open(phase) as held:
        changed = held.enter(end["sandbox_state"]).inspect("git add -A; git diff --cached")
(work / "result.patch").write_text(changed.output)
