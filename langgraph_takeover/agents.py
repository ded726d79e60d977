"""External agents, such as Codex: use one on a thread, hand over its session, or write an adapter for another."""

from langgraph_takeover.graph.continuation.capture import Capture, capture_session
from langgraph_takeover.graph.continuation.continue_record import (
    PreparedContinuation,
    prepare_continuation,
    start_continuation,
)
from langgraph_takeover.graph.continuation.undo import Removal, discard_record, undo_continuations
from langgraph_takeover.graph.usage_errors import CaptureError, ContinuationError
from langgraph_takeover.handoff.agents import ADAPTERS, find_adapter
from langgraph_takeover.handoff.agents.adapter import (
    MESSAGE,
    SESSION,
    AgentAdapter,
    AgentCommand,
    AgentOutput,
    Api,
    Asker,
    ConvertedEvent,
    Launch,
    NativeCall,
    NativeSession,
    PackagedProgram,
    ProgramFiles,
    Setup,
    TerminalCommand,
)
from langgraph_takeover.handoff.recordings.sessions import ToolResult
from langgraph_takeover.handoff.trace.conversation import History
from langgraph_takeover.handoff.trace.events import Action
from langgraph_takeover.nodes.context.agent_program import (
    AgentProgram,
    AgentProgramError,
    ExternalAgent,
    ExternalAgentError,
    external_agent,
    find_program,
)
from langgraph_takeover.nodes.external.pass_through import VendorModel

__all__ = [
    "ADAPTERS",
    "MESSAGE",
    "SESSION",
    "Action",
    "AgentAdapter",
    "AgentCommand",
    "AgentOutput",
    "AgentProgram",
    "AgentProgramError",
    "Api",
    "Asker",
    "Capture",
    "CaptureError",
    "ContinuationError",
    "ConvertedEvent",
    "ExternalAgent",
    "ExternalAgentError",
    "History",
    "Launch",
    "NativeCall",
    "NativeSession",
    "PackagedProgram",
    "PreparedContinuation",
    "ProgramFiles",
    "Removal",
    "Setup",
    "TerminalCommand",
    "ToolResult",
    "VendorModel",
    "capture_session",
    "discard_record",
    "external_agent",
    "find_adapter",
    "find_program",
    "prepare_continuation",
    "start_continuation",
    "undo_continuations",
]
