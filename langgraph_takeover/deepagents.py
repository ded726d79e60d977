"""A sandbox as the backend of deepagents. It needs the extra `deepagents`."""

try:
    import deepagents  # noqa: F401
except ImportError as error:
    raise ImportError(
        "langgraph_takeover.deepagents needs deepagents (pip install 'langgraph-takeover[deepagents]')"
    ) from error

from langgraph_takeover.graph.deepagents import SandboxBackend

__all__ = ["SandboxBackend"]
