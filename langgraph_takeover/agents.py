"""External agents, such as Codex: use one on a thread, or write an adapter for another."""

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
    "ExternalAgent",
    "ExternalAgentError",
    "Launch",
    "NativeCall",
    "NativeSession",
    "ProgramFiles",
    "Setup",
    "external_agent",
    "find_adapter",
]
