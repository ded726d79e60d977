"""A backend and a middleware that give deepagents' agents a sandbox. It needs the extra `deepagents`."""

from importlib.util import find_spec

if find_spec("deepagents") is None:
    raise ImportError(
        "langgraph_takeover.deepagents needs deepagents (pip install 'langgraph-takeover[deepagents]')"
    )

from langgraph_takeover.graph.own_graphs.deep_agents import (
    SandboxBackend,
    SandboxFilesystemMiddleware,
    SavedSandbox,
)

__all__ = ["SandboxBackend", "SandboxFilesystemMiddleware", "SavedSandbox"]
