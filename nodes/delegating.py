"""How an agent that may delegate is offered the tool for it."""

from __future__ import annotations

from functools import cache

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, Field

from handoff.delegation import Assigned, Handoff
from handoff.payload import Mode
from nodes.actions import DELEGATE
from nodes.settings import AgentContext


class Asked(BaseModel):
    """What the tool takes."""

    goal: str = Field(default="", description="All that the child must know of its task.")
    handoff: Handoff | None = Field(default=None, description="Left out, it is taken from your own trace.")
    mode: Mode = Field(
        default="work", description="work: its changes come back. look: only what it says does."
    )
    tasks: list[Assigned] = Field(
        default=[], description="In place of the others: several tasks, for several agents at once."
    )


def may_delegate(context: AgentContext) -> bool:
    """Whether the agent has somebody to delegate to."""
    return context.delegation is not None and context.delegation.depth < context.delegation.max_depth


@cache
def delegate_tool() -> BaseTool:
    """The tool as its schema; the node `delegate` carries it out."""
    return StructuredTool(
        name=DELEGATE,
        description="Let other agents do a task, and wait for them.",
        args_schema=Asked,
        func=_none,
    )


def _none(**_: object) -> None:
    """Nobody calls the tool itself."""
