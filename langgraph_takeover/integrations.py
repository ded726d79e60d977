"""Parts of the runtime for LangGraph graphs of your own: sandboxes that are saved with their threads, and one writer per thread."""

from langgraph_takeover.graph.checkpoints.incremental_saver import IncrementalSaver
from langgraph_takeover.graph.checkpoints.server_saver import open_server_saver
from langgraph_takeover.graph.own_graphs.agent_handoffs import acarry_sandbox_state, carry_sandbox_state
from langgraph_takeover.graph.own_graphs.forked_threads import choose_fork, fork_thread
from langgraph_takeover.graph.own_graphs.sandboxes import Sandboxes, SandboxRequest
from langgraph_takeover.graph.own_graphs.thread_hold import hold_thread
from langgraph_takeover.graph.own_graphs.thread_sandbox import (
    Act,
    SandboxState,
    ThreadSandbox,
    open_sandbox,
)
from langgraph_takeover.nodes.model.endpoint_rules import repair_messages, repair_reply
from langgraph_takeover.sandbox.snapshots.merging import BranchConflict

__all__ = [
    "Act",
    "BranchConflict",
    "IncrementalSaver",
    "SandboxRequest",
    "SandboxState",
    "Sandboxes",
    "ThreadSandbox",
    "acarry_sandbox_state",
    "carry_sandbox_state",
    "choose_fork",
    "fork_thread",
    "hold_thread",
    "open_sandbox",
    "open_server_saver",
    "repair_messages",
    "repair_reply",
]
