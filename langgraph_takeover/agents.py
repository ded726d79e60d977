"""External agents, such as Codex: use one on a thread, hand over its session, or write an adapter for another."""

from langgraph_takeover.graph.continuation.capture import Capture, capture_session
from langgraph_takeover.graph.continuation.preparation import (
    PreparedContinuation,
    prepare_continuation,
    start_continuation,
)
from langgraph_takeover.graph.continuation.undo import Removal, discard_record, undo_continuations
from langgraph_takeover.graph.errors import CaptureError, ContinuationError
from langgraph_takeover.handoff.agents import ADAPTERS, find_adapter
from langgraph_takeover.handoff.agents.adapter import (
    AgentAdapter,
    AgentCommand,
    AgentOutput,
    Launch,
    NativeCall,
    NativeSession,
    ProgramFiles,
    Setup,
)
from langgraph_takeover.nodes.context.agent_program import AgentProgram, AgentProgramError
from langgraph_takeover.nodes.context.external_agent import ExternalAgent, ExternalAgentError, external_agent

__all__ = [
    "ADAPTERS",
    "AgentAdapter",
    "AgentCommand",
    "AgentOutput",
    "AgentProgram",
    "AgentProgramError",
    "Capture",
    "CaptureError",
    "ContinuationError",
    "ExternalAgent",
    "ExternalAgentError",
    "Launch",
    "NativeCall",
    "NativeSession",
    "PreparedContinuation",
    "ProgramFiles",
    "Removal",
    "Setup",
    "capture_session",
    "discard_record",
    "external_agent",
    "find_adapter",
    "prepare_continuation",
    "start_continuation",
    "undo_continuations",
]
