"""langgraph-swarm has one active agent at a time: LangGraph's parallel nodes, with LangChain's shell in one directory."""

from langchain.agents import create_agent
from langchain.agents.middleware import ShellToolMiddleware
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from benchmarks.compare.arguments import phase, work

workers = [f"{phase}-{number}" for number in (1, 2, 3)]
builder = StateGraph(MessagesState)
for name in (*workers, "reader"):
    shell = ShellToolMiddleware(workspace_root=work / "repository")
    builder.add_node(name, create_agent(ChatOpenAI(model=name), middleware=[shell], name=name))
for name in workers:
    builder.add_edge(START, name)
builder.add_edge(workers, "reader")
builder.compile().invoke({"messages": [("user", "Improve the documentation.")]})
