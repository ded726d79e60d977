"""Handoffs between the agents of one graph: the next agent continues in the sandbox's state of the one before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, Send

from langgraph_takeover.graph.own_graphs.thread_sandbox import ThreadSandbox
from langgraph_takeover.graph.usage_errors import SandboxStateLostError

CHANNEL = "sandbox_state"
DESTINATION = "__handoff_destination"
"""The metadata key by which `langgraph_swarm.create_swarm` finds a tool's target."""
_NAMESPACE_SEPARATOR = "|"
"""Between the names of nested graphs in a checkpoint's namespace."""


def carry_sandbox_state(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
    """Wrap the tool calls of an agent, so that a handoff to another agent passes on the sandbox's state.

    A handoff tool returns `Command(graph=Command.PARENT)`, which leaves the agent's own state behind. The state of the
    parent graph must inherit from `SandboxState`. `SandboxMiddleware` does this by itself; this function is for agents
    with a `ToolNode`, such as those of `create_react_agent`. Raises SandboxStateLostError.

    Example:
        >>> from langgraph.prebuilt import ToolNode
        >>> from langgraph_swarm import create_handoff_tool
        >>> from langgraph_takeover.integrations import acarry_sandbox_state, carry_sandbox_state
        >>> tools = ToolNode(
        ...     [create_handoff_tool(agent_name="tester")],
        ...     wrap_tool_call=carry_sandbox_state,
        ...     awrap_tool_call=acarry_sandbox_state,
        ... )
    """
    return pass_on_state(handler(request), request.state, _read_state(request.state))


async def acarry_sandbox_state(
    request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
) -> Any:
    """Like `carry_sandbox_state`, for async calls.

    Example:
        >>> from langgraph_takeover.integrations import acarry_sandbox_state
        >>> acarry_sandbox_state.__name__
        'acarry_sandbox_state'
    """
    return pass_on_state(await handler(request), request.state, _read_state(request.state))


def is_handoff(result: Any) -> bool:
    """Whether the result of a tool leaves the agent for another node of the parent graph."""
    if isinstance(result, list):
        return any(map(is_handoff, result))
    return isinstance(result, Command) and result.graph == Command.PARENT


def is_handoff_tool(tool: BaseTool | None) -> bool:
    """Whether `langgraph_swarm.create_swarm` would take a tool for a handoff tool."""
    return tool is not None and DESTINATION in (tool.metadata or {})


def pass_on_state(result: Any, agent_state: Any, sandbox_state: str | None) -> Any:
    """Return the result of a tool; if it is a handoff, with the state of the sandbox.

    A state that the tool itself changed stays. Raises SandboxStateLostError.
    """
    if isinstance(result, list):
        return [pass_on_state(each, agent_state, sandbox_state) for each in result]
    if sandbox_state is None or not is_handoff(result):
        return result
    before = _read_state(agent_state)
    goto = [result.goto] if isinstance(result.goto, (str, Send)) else list(result.goto)
    return replace(
        result,
        update=_add_to_update(result.update, before, sandbox_state),
        goto=[_add_to_send(each, before, sandbox_state) for each in goto],
    )


def require_shared_state(work: ThreadSandbox, messages: Sequence[Any], tools: Collection[str]) -> None:
    """Raise SandboxStateLostError if other agents of the graph used the sandbox; call it when its state is missing.

    Their results of the sandbox's tools are among the messages, or, under a supervisor, only their last messages.
    """
    is_nested = _NAMESPACE_SEPARATOR in get_config()["configurable"].get("checkpoint_ns", "")
    if is_nested and any(
        each.id in work.last_messages or (isinstance(each, ToolMessage) and each.name in tools)
        for each in messages
    ):
        raise SandboxStateLostError(
            f"thread {work.thread!r}: earlier agents used the sandbox, but the parent graph has no channel for its "
            "state (inherit the graph's state from SandboxState, and pass it as state_schema)"
        )


def _add_to_update(update: Any, before: str | None, state: str) -> Any:
    if update is None:
        return {CHANNEL: state}
    if isinstance(update, Mapping):
        return update if update.get(CHANNEL, before) != before else {**update, CHANNEL: state}
    if isinstance(update, Sequence) and all(isinstance(each, tuple) for each in update):
        kept = [each for each in update if each[0] != CHANNEL or each[1] != before]
        return kept if any(name == CHANNEL for name, _ in kept) else [*kept, (CHANNEL, state)]
    raise SandboxStateLostError(
        f"a handoff with an update of type {type(update).__name__} cannot pass on the sandbox's state "
        "(return Command(graph=Command.PARENT, update={...}) from the tool)"
    )


def _add_to_send(target: Any, before: str | None, state: str) -> Any:
    if isinstance(target, Send) and isinstance(target.arg, Mapping):
        return Send(target.node, _add_to_update(target.arg, before, state))
    return target


def read_field(agent_state: Any, name: str) -> Any:
    """Return a field of an agent's state, which may be of any form; None if it is missing."""
    if isinstance(agent_state, Mapping):
        return agent_state.get(name)
    return getattr(agent_state, name, None)


def _read_state(agent_state: Any) -> str | None:
    found = read_field(agent_state, CHANNEL)
    return str(found) if found else None
