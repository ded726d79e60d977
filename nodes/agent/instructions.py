"""The system message of an agent."""

from __future__ import annotations

import json
from collections.abc import Sequence

from langchain_core.messages import SystemMessage
from langchain_core.tools import BaseTool

from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.delegation.tool import can_delegate
from langgraph_takeover.nodes.model.tool_schemas import build_custom_schema


def build_instructions(context: AgentContext, tools: Sequence[BaseTool]) -> SystemMessage:
    """Return the system message, which says how to act, and the limits of a command."""
    names: list[str] = []
    if can_delegate(context):
        names.append("delegate")
    if context.protocol == "text":
        if can_delegate(context):
            names.append("delegate_text")
        if context.offer_handoff:
            names.append("handoff")
        if tools:
            names.append("tools")
    several = context.protocol == "native" and context.parallel_tool_calls
    protocol = load_prompt("native_parallel" if several else context.protocol, "nodes").format(
        command_timeout_s=f"{context.command_timeout_s:g}", observation_chars=f"{context.observation_chars:,}"
    )
    text = protocol + "".join(load_prompt(name, "nodes") for name in names)
    if context.protocol == "text" and tools:
        text += "".join(map(_describe_tool, tools)) + "\n"
    if context.member:
        text += f"\n{context.member.build_instructions(context.protocol)}\n"
    return SystemMessage(text)


def _describe_tool(tool: BaseTool) -> str:
    function = build_custom_schema(tool)["function"]
    arguments = json.dumps(function.get("parameters", {}).get("properties", {}))
    return f"\n- `{tool.name}`: {' '.join(tool.description.split())} Arguments: {arguments}"
