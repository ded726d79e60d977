"""How an agent that may delegate is offered the tool for it."""

from __future__ import annotations

from functools import cache

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, Field

from langgraph_takeover.handoff.delegation.request import HandoffArguments, TaskArguments
from langgraph_takeover.handoff.records.payload import Mode
from langgraph_takeover.nodes.context.settings import AgentContext
from langgraph_takeover.nodes.model.actions import DELEGATE_TOOL


class DelegateArguments(BaseModel):
    """What the tool takes."""

    goal: str = Field(default="", description="All that the child must know of its task.")
    handoff: HandoffArguments | None = Field(
        default=None, description="Left out, it is taken from your own trace."
    )
    mode: Mode = Field(
        default="work", description="work: its changes come back. look: only what it says does."
    )
    tasks: list[TaskArguments] = Field(
        default=[], description="In place of the others: several tasks, for several agents at once."
    )


def can_delegate(context: AgentContext) -> bool:
    """Whether the agent has somebody to delegate to."""
    return context.delegation is not None and context.delegation.depth < context.delegation.max_depth


@cache
def build_delegate_tool() -> BaseTool:
    """The tool as its schema; the node `delegate` carries it out."""
    return StructuredTool(
        name=DELEGATE_TOOL,
        description="Let other agents do a task, and wait for them.",
        args_schema=DelegateArguments,
        func=_do_nothing,
    )


def _do_nothing(**_: object) -> None:
    """Nobody calls the tool itself."""
