"""Custom tools: the embedding program's own, and the one that recalls events of a record."""

from __future__ import annotations

import json
import time

from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphInterrupt
from langgraph.runtime import Runtime
from pydantic import BaseModel, Field

from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.views import VIEWS_WITH_RECALL
from langgraph_takeover.handoff.views.recall import recall_events
from langgraph_takeover.nodes.context.settings import AgentContext, SettingsError, get_agent_context
from langgraph_takeover.nodes.events import clip_text, escape_surrogates, find_call_id, last_action
from langgraph_takeover.nodes.model.actions import DELEGATE_TOOL, RECALL_TOOL
from langgraph_takeover.nodes.model.attempts import find_api_keys
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.tools.execution import run_action
from langgraph_takeover.nodes.tools.invocation import ToolInvocation, run_tool
from langgraph_takeover.sandbox.interface import Sandbox


class RecallArguments(BaseModel):
    """Arguments of the recall tool."""

    what: str = Field(description="Names of events, such as 'e12 e14-e16', or words to search for.")


def list_extra_tools(state: AgentState, context: AgentContext) -> tuple[BaseTool, ...]:
    """Return a run's tools beside the built-in ones: custom tools, and the recall tool if its view needs it."""
    if state.get("view") in VIEWS_WITH_RECALL and "record" in state:
        return (*context.tools, build_recall_tool(context.session.records, state["record"]))
    return context.tools


def list_tool_names(state: AgentState, context: AgentContext) -> list[str]:
    """Return the names of tools that are parsed: at the maximum depth, the delegate tool itself refuses the call."""
    delegate_tool = (DELEGATE_TOOL,) if context.delegation is not None else ()
    return [*(tool.name for tool in list_extra_tools(state, context)), *delegate_tool]


def build_recall_tool(records: RecordStore, record_id: str) -> BaseTool:
    """Return the tool that shows events of a record's trace; it does not use the sandbox."""

    def recall(what: str) -> str:
        return recall_events(records.load(record_id).trace, what)

    return StructuredTool(
        name=RECALL_TOOL,
        description="Show events of the earlier work, by their names or by words that they contain.",
        args_schema=RecallArguments,
        func=recall,
    )


def tool(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Call a custom tool with the model's arguments. The model sees wrong arguments and refusals; bugs are raised.

    The tool finds the sandbox as `config["configurable"]["sandbox"]`. After a crash or an `interrupt` it is called again,
    in the sandbox before its first call, with the same `config["configurable"]["idempotency_key"]`. Raises SettingsError
    if the run was resumed without the tool, or if it asks a question that cannot be answered here.
    """
    context = get_agent_context(runtime)
    action = last_action(state)
    chosen = next((each for each in list_extra_tools(state, context) if each.name == action.tool), None)
    if chosen is None:
        raise SettingsError(
            f"tools: the thread resumes at a call of {action.tool!r:.60}, which is missing; pass it as before"
        )
    execution = runtime.execution_info
    key = f"{context.session.thread}/{execution.task_id if execution else ''}/{action.index}"

    # Without a snapshot of the state before it, a call that asks a question can only be repeated if it changed nothing.
    can_undo = context.session.can_restore_state(state["sandbox_state"])
    is_unchanged = False

    def call_tool(sandbox: Sandbox) -> Observation:
        nonlocal is_unchanged
        started = time.monotonic()
        shell_before = None if can_undo else sandbox.shell_state()
        call = ToolInvocation(state, runtime, find_call_id(state), sandbox, key)
        try:
            observation = run_tool(chosen, json.loads(action.arguments["arguments"]), call)
        except GraphInterrupt:
            is_unchanged = not can_undo and not sandbox.changes() and sandbox.shell_state() == shell_before
            raise
        return observation.model_copy(
            update={
                "text": clip_text(escape_surrogates(observation.text), context.observation_chars),
                "changes": sandbox.changes(),
                "seconds": time.monotonic() - started,
            }
        )

    try:
        return run_action(state, runtime, call_tool, "nothing" if chosen.name == RECALL_TOOL else "anything")
    except GraphInterrupt as error:
        for question in error.args[0]:
            question.value = redact(question.value, find_api_keys(*context.models))
        _require_answerable(context, chosen.name, can_undo or is_unchanged)
        if is_unchanged:
            context.session.keep_state(state["sandbox_state"])
        raise


def _require_answerable(context: AgentContext, name: str, can_repeat: bool) -> None:
    """Raise SettingsError if the question of a tool cannot be answered."""
    if context.delegation is not None and context.delegation.depth > 0:
        raise SettingsError(
            f"tools: tool {name!r} called interrupt() in a child agent, which nobody can answer "
            "(give children other tools: Delegation(tools=…))"
        )
    if not can_repeat:
        raise SettingsError(
            f"tools: tool {name!r} called interrupt() after it had changed the sandbox, which cannot be undone without "
            "a snapshot (call interrupt() first, or use snapshot_every='step')"
        )
