"""A middleware that gives agents of `langchain.agents.create_agent` a sandbox. It needs the extra `langchain`."""

from importlib.util import find_spec

if find_spec("langchain") is None:
    raise ImportError(
        "langgraph_takeover.middleware needs langchain (pip install 'langgraph-takeover[langchain]')"
    )

from langgraph_takeover.graph.own_graphs.agent_middleware import SandboxAgentState, SandboxMiddleware
from langgraph_takeover.graph.own_graphs.agent_trace import read_events
from langgraph_takeover.graph.own_graphs.successors import complete_handoff, receive_record

__all__ = ["SandboxAgentState", "SandboxMiddleware", "complete_handoff", "read_events", "receive_record"]
