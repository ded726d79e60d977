"""A middleware that gives agents of `langchain.agents.create_agent` a sandbox. It needs the extra `langchain`."""

try:
    import langchain.agents  # noqa: F401
except ImportError as error:
    raise ImportError(
        "langgraph_takeover.middleware needs langchain (pip install 'langgraph-takeover[langchain]')"
    ) from error

from langgraph_takeover.graph.middleware import (
    EarlierCallError,
    SandboxAgentState,
    SandboxMiddleware,
    receive_record,
)

__all__ = ["EarlierCallError", "SandboxAgentState", "SandboxMiddleware", "receive_record"]
