"""The tool by which a successor looks up what its view only points to."""

from __future__ import annotations

import asyncio
import contextvars
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.runtime import Runtime
from pydantic import BaseModel, Field, ValidationError

from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.views import VIEWS_WITH_RECALL
from langgraph_takeover.handoff.views.recall import recall_events
from langgraph_takeover.nodes.context.settings import AgentContext, SettingsError, get_agent_context
from langgraph_takeover.nodes.events import clip_text, escape_surrogates, last_action
from langgraph_takeover.nodes.model.actions import RECALL_TOOL
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState
from langgraph_takeover.nodes.tools.execution import run_action
from langgraph_takeover.sandbox.interface import Sandbox


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


def tool(state: AgentState, runtime: Runtime[AgentContext]) -> AgentState:
    """Call the tool with what the model gave it; a tool that refuses or is called wrongly is told to the model.

    It finds the machine as `config["configurable"]["sandbox"]` and, because it may be called once more after a
    crash, the call's own key as `config["configurable"]["idempotency_key"]`. A bug of the tool's goes through.
    Raises SettingsError where the run was resumed without the tool.
    """
    context = get_agent_context(runtime)
    action = last_action(state)
    chosen = next((each for each in list_extra_tools(state, context) if each.name == action.tool), None)
    if chosen is None:
        raise SettingsError(
            f"tools: the thread goes on with a call of {action.tool!r:.60}, which is not among them; give it again"
        )
    placed = runtime.execution_info
    key = f"{context.session.thread}/{placed.task_id if placed else ''}/{action.index}"

    def call_tool(sandbox: Sandbox) -> Observation:
        started = time.monotonic()
        seen = _run_tool(
            chosen, json.loads(action.arguments["arguments"]), {"sandbox": sandbox, "idempotency_key": key}
        )
        return seen.model_copy(
            update={
                "text": clip_text(escape_surrogates(seen.text), context.observation_chars),
                "changes": sandbox.changes(),
                "seconds": time.monotonic() - started,
            }
        )

    return run_action(state, runtime, call_tool, "nothing" if chosen.name == RECALL_TOOL else "anything")


def _run_tool(tool_to_call: BaseTool, arguments: dict[str, Any], configurable: dict[str, Any]) -> Observation:
    if wrong := _check_schema(tool_to_call.args_schema, arguments):
        return Observation(text=f"Not done: {wrong}", refused=True)
    try:
        result = _invoke_tool(tool_to_call, arguments, {"configurable": configurable})
    except ValidationError as error:
        schema = tool_to_call.args_schema
        if not isinstance(schema, type) or error.title != schema.__name__:
            raise  # the tool's own, and no fault of the model's
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        return Observation(text=f"Not done: {wrong}", refused=True)
    except ToolException as error:
        return Observation(text=f"Not done: {error}", refused=True)
    return Observation(text=_format_result(result))


def _check_schema(schema: Any, arguments: dict[str, Any]) -> str:
    """What is wrong with arguments where only a JSON schema tells, which nobody else looks at."""
    if not isinstance(schema, dict):
        return ""
    missing = [f"{name}: Field required" for name in schema.get("required", ()) if name not in arguments]
    known = schema.get("properties", {})
    unknown = [] if schema.get("additionalProperties") else [name for name in arguments if name not in known]
    return "; ".join([*missing, *(f"{name[:100]}: there is no such argument" for name in unknown)][:5])


def _invoke_tool(tool_to_call: BaseTool, arguments: dict[str, Any], config: Any) -> Any:
    has_only_a_coroutine = (
        getattr(tool_to_call, "coroutine", None) is not None and getattr(tool_to_call, "func", None) is None
    )
    if not has_only_a_coroutine:
        return tool_to_call.invoke(arguments, config=config)
    # In a thread of its own, because a loop may run in this one.
    with ThreadPoolExecutor(1) as aside:
        context = contextvars.copy_context()
        return aside.submit(context.run, asyncio.run, tool_to_call.ainvoke(arguments, config=config)).result()


def _format_result(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, default=str, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, or an object that holds itself
        return str(result)
