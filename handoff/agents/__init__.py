"""External agents: one adapter for each coding agent that runs by its own program, such as Codex.

To add an agent, write a module with a class that implements `AgentAdapter`, and add it to `ADAPTERS`. docs/add-your-agent.md lists
all places.
"""

from __future__ import annotations

from langgraph_takeover.handoff.agents.adapter import AgentAdapter, UnknownAgentProgramError
from langgraph_takeover.handoff.agents.claude_code import ClaudeCode
from langgraph_takeover.handoff.agents.codex import Codex
from langgraph_takeover.handoff.agents.mini_swe_agent import MiniSweAgent
from langgraph_takeover.handoff.agents.opencode import OpenCode
from langgraph_takeover.handoff.agents.qwen_code import QwenCode

ADAPTERS: dict[str, AgentAdapter] = {
    adapter.name: adapter for adapter in (Codex(), ClaudeCode(), MiniSweAgent(), QwenCode(), OpenCode())
}


def find_adapter(name: str) -> AgentAdapter:
    """Return the adapter of that name. Raises UnknownAgentProgramError."""
    if name not in ADAPTERS:
        raise UnknownAgentProgramError(f"unknown external agent {name!r:.60} (use {', '.join(ADAPTERS)})")
    return ADAPTERS[name]
