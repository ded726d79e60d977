"""Handoffs inside other graphs: the messages of langgraph-swarm's agents become a record, and the next agent gets a view."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import InjectedState
from langgraph.pregel import Pregel
from langgraph.types import Command, StateSnapshot
from pydantic import ValidationError

from langgraph_takeover.graph.own_graphs.agent_handoffs import DESTINATION, read_field
from langgraph_takeover.graph.own_graphs.successors import find_sandbox
from langgraph_takeover.handoff.interop.swarm_records import (
    attach_record,
    build_latest_record,
    from_swarm,
    load_earlier_events,
)
from langgraph_takeover.handoff.names import ViewName
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordStore
from langgraph_takeover.handoff.views import VIEWS_WITH_NOTES, Recipient, find_view
from langgraph_takeover.handoff.views.common import recall_events
from langgraph_takeover.nodes.context.settings import SettingsError, describe_validation_error
from langgraph_takeover.nodes.context.team_members import name_model
from langgraph_takeover.nodes.model.actions import RECALL_TOOL
from langgraph_takeover.nodes.model.note_calls import MODEL_TIMEOUT_S, complete_notes
from langgraph_takeover.sandbox.interface import Snapshot

_WINDOW_TOKENS = 128_000
_MAX_WAIT_S = 10.0
"""Longest wait for an endpoint that asks for one: neither a stop nor Ctrl-C ends a tool's thread."""


def create_handoff_tool(
    *,
    agent_name: str,
    name: str | None = None,
    description: str | None = None,
    view: str = "structured",
    window_tokens: int = _WINDOW_TOKENS,
    records: RecordStore | None = None,
    model: BaseChatModel | None = None,
    patch: Callable[[], str] | None = None,
) -> BaseTool:
    """Build a handoff tool like `langgraph_swarm.create_handoff_tool` that passes a view instead of all messages.

    The record behind the view travels with the view's messages, or is stored in `records`; the next handoff starts
    from it. `model` writes the notes for views that show notes. `patch` returns the repository's difference from its
    base commit. Raises UnknownViewError and SettingsError.
    """
    shown, recipient = find_view(view), _recipient(window_tokens)
    tool_name = name or "transfer_to_" + re.sub(r"\s+", "_", agent_name.strip()).lower()

    @tool(tool_name, description=description or f"Ask agent '{agent_name}' for help")
    def handoff_to_agent(
        state: Annotated[Any, InjectedState],
        tool_call_id: Annotated[str, InjectedToolCallId],
        config: RunnableConfig,
    ) -> Command[Any]:
        done = ToolMessage(
            f"Successfully transferred to {agent_name}", name=tool_name, tool_call_id=tool_call_id
        )
        sandbox = find_sandbox(state, tool_call_id)
        record = build_latest_record(
            [*_messages(state), *(sandbox.results if sandbox else ()), done],
            thread_id=_thread(config),
            records=records,
            patch=patch() if patch else "",
            sandbox=sandbox,
        )
        if model is not None and view in VIEWS_WITH_NOTES:
            record = complete_notes(
                record,
                model,
                name_model(model),
                records=records,
                timeout_s=MODEL_TIMEOUT_S,
                max_wait_s=_MAX_WAIT_S,
            )
        seen = attach_record(shown(record, recipient), record, is_stored=records is not None)
        update = {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *seen], "active_agent": agent_name}
        return Command(goto=agent_name, graph=Command.PARENT, update=update)

    handoff_to_agent.metadata = {DESTINATION: agent_name}
    return handoff_to_agent


def create_recall_tool(*, records: RecordStore | None = None) -> BaseTool:
    """Build the tool that the view `cited` refers to: it shows events from before the last handoff."""

    @tool(
        RECALL_TOOL,
        description="Show events of the earlier work, by name or by words to search for.",
    )
    def recall(what: str, state: Annotated[Any, InjectedState], config: RunnableConfig) -> str:
        record = None if isinstance(state, list) else read_field(state, "record")  # of `receive_record`
        if isinstance(record, str) and records is not None:
            return recall_events(records.load(record).trace, what)
        return recall_events(
            load_earlier_events(_messages(state), thread_id=_thread(config), records=records), what
        )

    return recall


def to_swarm(
    record: HandoffRecord,
    view: ViewName = "structured",
    *,
    active_agent: str,
    window_tokens: int = _WINDOW_TOKENS,
) -> dict[str, Any]:
    """Build the input of a compiled swarm whose agent continues from a record, on a new thread.

    Raises UnknownViewError, SettingsError and RecordError.
    """
    record.verify()
    seen = find_view(view)(record, _recipient(window_tokens))
    return {"messages": attach_record(seen, record, is_stored=False), "active_agent": active_agent}


def import_records(
    graph: Pregel[Any, Any, Any, Any],
    config: RunnableConfig,
    *,
    records: RecordStore | None = None,
    base_commit: str | None = None,
    snapshot: Snapshot | None = None,
    patch: str | None = None,
) -> tuple[HandoffRecord, ...]:
    """Return the records of a swarm's thread, read from its checkpointer, including an agent's work in progress.

    Arguments: `handoff.interop.swarm_records.from_swarm`. Raises TraceError and RecordError.
    """
    now = graph.get_state(config, subgraphs=True)
    thread, placed = _thread(config), now.config.get("configurable", {})
    return from_swarm(
        _innermost_values(now),
        id=re.sub(r"[^\w+-]", "_", thread, flags=re.ASCII)[:100] or "swarm",
        thread_id=thread,
        checkpoint_id=str(placed.get("checkpoint_id") or ""),
        records=records,
        base_commit=base_commit or "",
        snapshot=snapshot,
        patch=patch or "",
    )


def _innermost_values(state: StateSnapshot) -> dict[str, Any]:
    """Return the state with the messages of the agent that is working."""
    values: dict[str, Any] = dict(state.values)
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot) and task.state.values.get("messages"):
            values["messages"] = _innermost_values(task.state)["messages"]
    return values


def _recipient(window_tokens: int) -> Recipient:
    try:
        return Recipient(protocol="native", window_tokens=window_tokens)
    except ValidationError as error:
        raise SettingsError(describe_validation_error(error, Recipient)) from None


def _messages(state: Any) -> list[BaseMessage]:
    return list(state["messages"] if isinstance(state, dict) else state.messages)


def _thread(config: RunnableConfig) -> str:
    return str(config.get("configurable", {}).get("thread_id") or "")
