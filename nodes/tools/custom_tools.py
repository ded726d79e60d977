"""Custom tools: the embedding program's own, called as LangChain's contracts describe, and the one that recalls events."""

from __future__ import annotations

import asyncio
import contextvars
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt, is_invalid_resume
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import BaseModel, Field, ValidationError

from langgraph_takeover.base.texts import escape_surrogates
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.views import VIEWS_WITH_RECALL
from langgraph_takeover.handoff.views.common import recall_events
from langgraph_takeover.nodes.context.settings import AgentContext, SettingsError, get_agent_context
from langgraph_takeover.nodes.model.actions import DELEGATE_TOOL, RECALL_TOOL
from langgraph_takeover.nodes.model.calls import find_api_keys
from langgraph_takeover.nodes.model.tool_schemas import InjectedParameter, list_injected_parameters
from langgraph_takeover.nodes.model.usage import make_storable
from langgraph_takeover.nodes.session.observation import Observation
from langgraph_takeover.nodes.state import AgentState, InputError
from langgraph_takeover.nodes.state_events import clip_text, find_call_id, last_action
from langgraph_takeover.nodes.tools.execution import run_action
from langgraph_takeover.sandbox.interface import Sandbox

MAX_ARTIFACT_CHARS = 100_000
"""Limit of an artifact, as JSON; a larger one is not stored."""
_BLOCK_TYPES = frozenset(
    {"text", "image", "image_url", "audio", "video", "file", "document", "resource", "search_result"}
)
_SAVER_KEYS = ("__pregel_checkpointer", "__pregel_durability")
"""LangGraph's names for the saver in a configuration, and for how it saves."""


class ToolInvocation(NamedTuple):
    """The values that a call gets from the run."""

    state: AgentState
    runtime: Runtime[AgentContext]
    call_id: str
    sandbox: Sandbox
    key: str
    """The idempotency key: the same when the call is repeated after a crash or an interrupt."""


def run_tool(tool: BaseTool, arguments: Mapping[str, Any], call: ToolInvocation) -> Observation:
    """Call a tool; the model sees wrong arguments and refusals, the caller sees bugs.

    Raises SettingsError for a result that a run cannot use, InputError for an answer that an `interrupt` refuses, and
    GraphInterrupt if the tool asks a question.
    """
    injected = list_injected_parameters(tool)
    hidden = {each.name for each in injected}
    given = {name: value for name, value in arguments.items() if name not in hidden}
    if problem := _check_schema(tool.args_schema, given, hidden):
        return Observation(text=f"Not done: {problem}", refused=True)
    config = _build_config(call)
    given |= _build_values(injected, config, call)
    try:
        return _observe(tool, _invoke(tool, given, config, call.call_id, injected))
    except ValidationError as error:
        if is_invalid_resume(error):
            raise InputError(f"answer: {_describe_errors(error)} (resume with another answer)") from None
        schema = tool.args_schema
        if not isinstance(schema, type) or error.title != schema.__name__:
            raise  # raised inside the tool: a bug, not a wrong argument
        return Observation(text=f"Not done: {_describe_errors(error)}", refused=True)
    except ToolException as error:
        return Observation(text=f"Not done: {error}", refused=True)


def _describe_errors(error: ValidationError) -> str:
    return "; ".join(
        ": ".join(part for part in (".".join(map(str, each["loc"])), each["msg"]) if part)
        for each in error.errors()[:5]
    )


def _check_schema(schema: Any, arguments: Mapping[str, Any], hidden: set[str]) -> str:
    """Return the first error of arguments under a JSON schema, which LangChain does not check; empty if valid."""
    if not isinstance(schema, dict):
        return ""
    required = (name for name in schema.get("required", ()) if name not in hidden)
    missing = [f"{name}: Field required" for name in required if name not in arguments]
    known = schema.get("properties", {})
    unknown = [] if schema.get("additionalProperties") else [name for name in arguments if name not in known]
    return "; ".join([*missing, *(f"{name[:100]}: unknown argument" for name in unknown)][:5])


def _build_config(call: ToolInvocation) -> RunnableConfig:
    """Return the node's configuration, by which `interrupt` works, with the sandbox and the key.

    The saver is left out: a graph that a tool runs begins again with the tool, as the sandbox does.
    """
    configurable = get_config().get("configurable", {})
    inherited = {name: value for name, value in configurable.items() if name not in _SAVER_KEYS}
    return {"configurable": {**inherited, "sandbox": call.sandbox, "idempotency_key": call.key}}


def _build_values(
    injected: Sequence[InjectedParameter], config: RunnableConfig, call: ToolInvocation
) -> dict[str, Any]:
    """Return the values of the parameters that the run fills; LangChain fills the configuration."""
    values: dict[str, Any] = {}
    for name, kind, field, is_required in injected:
        if kind == "state" and field is None:
            values[name] = _copy_state(call.state)
        elif kind == "state" and (field in call.state or is_required):
            values[name] = _copy_state(call.state).get(str(field))
        elif kind == "call_id":
            values[name] = call.call_id
        elif kind == "runtime":
            from langgraph.prebuilt import ToolRuntime  # the import takes half a second

            values[name] = ToolRuntime(
                state=_copy_state(call.state),
                context=None,
                config=config,
                stream_writer=call.runtime.stream_writer,
                tool_call_id=call.call_id,
                store=None,
            )
    return values


def _copy_state(state: AgentState) -> dict[str, Any]:
    """Return a copy, because a tool that changed the state's lists would change the run's memory."""
    return {
        name: list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value
        for name, value in state.items()
    }


def _invoke(
    tool: BaseTool,
    arguments: dict[str, Any],
    config: RunnableConfig,
    call_id: str,
    injected: Sequence[InjectedParameter],
) -> Any:
    call: Any = arguments
    # Only a whole call has an id and an artifact. Arguments that look like one must not pass for one.
    is_whole = tool.response_format == "content_and_artifact" or arguments.get("type") == "tool_call"
    if is_whole or any(each.kind in ("call_id", "runtime") for each in injected):
        call = {"type": "tool_call", "name": tool.name, "args": arguments, "id": call_id}
    is_async_only = getattr(tool, "coroutine", None) is not None and getattr(tool, "func", None) is None
    if not is_async_only:
        return tool.invoke(call, config=config)
    # In a thread of its own: an event loop may be running in this one.
    with ThreadPoolExecutor(1) as executor:
        context = contextvars.copy_context()
        return executor.submit(context.run, asyncio.run, tool.ainvoke(call, config=config)).result()


def _observe(tool: BaseTool, result: Any) -> Observation:
    results = result if isinstance(result, list | tuple) else (result,)
    if any(isinstance(each, Command) for each in results):
        raise SettingsError(
            f"tools: tool {tool.name!r} returned a Command, which cannot change a run's state (return its result)"
        )
    if not isinstance(result, ToolMessage):
        return Observation(text=_format_result(result))
    return Observation(
        text=_format_result(result.content),
        refused=result.status == "error",
        artifact=_make_artifact(result.artifact),
    )


def _make_artifact(artifact: Any) -> Any:
    """Return an artifact as JSON; None if it is not JSON, or too large."""
    try:
        text = json.dumps(artifact, ensure_ascii=False, allow_nan=False)
        return make_storable(json.loads(text)) if len(text) <= MAX_ARTIFACT_CHARS else None
    except (TypeError, ValueError, RecursionError):
        return None


def _format_result(result: Any) -> str:
    if isinstance(result, str):
        return result
    if _is_content(result):
        return "\n".join(
            str(part["text"]) if part["type"] == "text" else f"[{part['type']}: not shown]" for part in result
        )
    try:
        return json.dumps(result, default=str, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(result)  # keys that are not text, or an object that contains itself


def _is_content(result: Any) -> bool:
    """Whether a result is a list of content blocks."""
    return (
        isinstance(result, list)
        and bool(result)
        and all(
            isinstance(part, dict)
            and part.get("type") in _BLOCK_TYPES
            and (part["type"] != "text" or "text" in part)
            for part in result
        )
    )


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
