"""The tool by which a successor looks up what its view only points to."""

from __future__ import annotations

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, Field

from handoff.recall import recall_events
from handoff.record import RecordStore
from handoff.views import VIEWS_WITH_RECALL
from nodes.actions import RECALL_TOOL
from nodes.settings import AgentContext
from nodes.state import AgentState


class RecallArguments(BaseModel):
    """What the tool takes."""

    what: str = Field(description="Names of events, such as 'e12 e14-e16', or words to search for.")


def list_extra_tools(state: AgentState, context: AgentContext) -> tuple[BaseTool, ...]:
    """The tools beside the built-in ones that a run has: the embedding program's, and what its view comes with."""
    if state.get("view") in VIEWS_WITH_RECALL and "record" in state:
        return (*context.tools, build_recall_tool(context.session.records, state["record"]))
    return context.tools


def build_recall_tool(records: RecordStore, record_id: str) -> BaseTool:
    """The tool that shows events of one record's trace. It touches no machine."""

    def recall(what: str) -> str:
        return recall_events(records.load(record_id).trace, what)

    return StructuredTool(
        name=RECALL_TOOL,
        description="Show events of the earlier work, by their names or by words that stand in them.",
        args_schema=RecallArguments,
        func=recall,
    )
