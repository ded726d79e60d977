"""Parts of the runtime for LangGraph graphs of your own: a sandbox that is saved with the thread."""

from langgraph_takeover.graph.own_graphs.thread_sandbox import (
    Act,
    SandboxState,
    ThreadSandbox,
    open_sandbox,
)

__all__ = ["Act", "SandboxState", "ThreadSandbox", "open_sandbox"]
