"""The system message of an agent, and the tool by which it delegates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from langchain_core.messages import SystemMessage
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, Field

from langgraph_takeover.handoff.delegation.arguments import HandoffArguments, TaskArguments
from langgraph_takeover.handoff.prompts import load_prompt
from langgraph_takeover.handoff.records.payload import Mode
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.model.actions import DELEGATE_TOOL
from langgraph_takeover.nodes.model.tool_schemas import build_custom_schema


class DelegateArguments(BaseModel):
    """Arguments of the tool."""

    goal: str = Field(default="", description="Everything that the child must know about its task.")
    handoff: HandoffArguments | None = Field(
        default=None, description="Default: selected from your own trace."
    )
    mode: Mode = Field(
        default="work",
        description="work: its changes are merged into your repository. look: only its report is returned.",
    )
    tasks: list[TaskArguments] = Field(
        default=[], description="Instead of the other arguments: several tasks, for several agents at once."
    )


def can_delegate(context: AgentContext) -> bool:
    """Whether the agent may delegate: delegation is set up, and the maximum depth is not reached."""
    return context.delegation is not None and context.delegation.depth < context.delegation.max_depth


@cache
def build_delegate_tool() -> BaseTool:
    """Return the tool as a schema; the node `delegate` executes its calls."""
    return StructuredTool(
        name=DELEGATE_TOOL,
        description="Delegate a task to other agents, and wait for their results.",
        args_schema=DelegateArguments,
        func=_do_nothing,
    )


def _do_nothing(**_: object) -> None:
    """Never called: the node `delegate` executes the calls."""


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
