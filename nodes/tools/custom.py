"""Custom tools: the embedding program's own, and the one that recalls events of a record."""

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
    """Arguments of the recall tool."""

    what: str = Field(description="Names of events, such as 'e12 e14-e16', or words to search for.")


def list_extra_tools(state: AgentState, context: AgentContext) -> tuple[BaseTool, ...]:
    """Return a run's tools beside the built-in ones: custom tools, and the recall tool if its view needs it."""
    if state.get("view") in VIEWS_WITH_RECALL and "record" in state:
        return (*context.tools, build_recall_tool(context.session.records, state["record"]))
    return context.tools


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

    The tool finds the sandbox as `config["configurable"]["sandbox"]`. After a crash it may be called again, with the
    same `config["configurable"]["idempotency_key"]`. Raises SettingsError if the run was resumed without the tool.
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

    def call_tool(sandbox: Sandbox) -> Observation:
        started = time.monotonic()
        observation = _run_tool(
            chosen, json.loads(action.arguments["arguments"]), {"sandbox": sandbox, "idempotency_key": key}
        )
        return observation.model_copy(
            update={
                "text": clip_text(escape_surrogates(observation.text), context.observation_chars),
                "changes": sandbox.changes(),
                "seconds": time.monotonic() - started,
            }
        )

    return run_action(state, runtime, call_tool, "nothing" if chosen.name == RECALL_TOOL else "anything")


def _run_tool(tool_to_call: BaseTool, arguments: dict[str, Any], configurable: dict[str, Any]) -> Observation:
    if problem := _check_schema(tool_to_call.args_schema, arguments):
        return Observation(text=f"Not done: {problem}", refused=True)
    try:
        result = _invoke_tool(tool_to_call, arguments, {"configurable": configurable})
    except ValidationError as error:
        schema = tool_to_call.args_schema
        if not isinstance(schema, type) or error.title != schema.__name__:
            raise  # raised inside the tool: a bug, not a wrong argument
        problem = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]
        )
        return Observation(text=f"Not done: {problem}", refused=True)
    except ToolException as error:
        return Observation(text=f"Not done: {error}", refused=True)
    return Observation(text=_format_result(result))


def _check_schema(schema: Any, arguments: dict[str, Any]) -> str:
    """Return what is wrong with arguments under a JSON schema, which LangChain does not check; empty if nothing is."""
    if not isinstance(schema, dict):
        return ""
    missing = [f"{name}: Field required" for name in schema.get("required", ()) if name not in arguments]
    known = schema.get("properties", {})
    unknown = [] if schema.get("additionalProperties") else [name for name in arguments if name not in known]
    return "; ".join([*missing, *(f"{name[:100]}: unknown argument" for name in unknown)][:5])


def _invoke_tool(tool_to_call: BaseTool, arguments: dict[str, Any], config: Any) -> Any:
    is_async_only = (
        getattr(tool_to_call, "coroutine", None) is not None and getattr(tool_to_call, "func", None) is None
    )
    if not is_async_only:
        return tool_to_call.invoke(arguments, config=config)
    # In a thread of its own: an event loop may be running in this one.
    with ThreadPoolExecutor(1) as executor:
        context = contextvars.copy_context()
        return executor.submit(
            context.run, asyncio.run, tool_to_call.ainvoke(arguments, config=config)
        ).result()


def _format_result(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, default=str, ensure_ascii=False)
    except (
        TypeError,
        ValueError,
        RecursionError,
    ):  # keys that are not text, or an object that contains itself
        return str(result)
