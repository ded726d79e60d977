"""The tool by which an agent delegates tasks."""

from __future__ import annotations

from functools import cache

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, Field

from langgraph_takeover.handoff.delegation.arguments import HandoffArguments, TaskArguments
from langgraph_takeover.handoff.records.payload import Mode
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.model.actions import DELEGATE_TOOL


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
