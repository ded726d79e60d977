"""An agent of deepagents for LangGraph's server (needs langgraph-takeover[deepagents])."""

from deepagents import create_deep_agent
from graphs import model, sandboxes

from langgraph_takeover.deepagents import SandboxBackend, SandboxFilesystemMiddleware

backend = SandboxBackend(sandboxes)
deep = create_deep_agent(model, backend=backend, middleware=[SandboxFilesystemMiddleware(backend)])
