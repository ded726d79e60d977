"""The tool calls of a reply: which of them runs, which are open, and the messages that answer them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage

from langgraph_takeover.nodes.state import AgentState

TOOL, RESULT_OF = "tool", "result_of"
"""Additional fields of a result in the text protocol: its tool, and the event of the action that it answers, such as `e4`.
They are not sent to the model. A name of the message would be, as that of a person."""
MAX_CALLS = 32
"""Maximum number of calls of one reply that run."""
NOT_RUN = (
    "Not run: an earlier call of the same reply was refused, did not end by itself, or handed the work over. "
    "Send the call again if it is still needed."
)
BUDGET_SPENT = "Not run: a budget of the run is spent."


def count_further_calls(reply: AIMessage) -> int:
    """Count the native calls of a reply that run after its first; none if one is unreadable or there are too many.

    The order of an unreadable call among the others is unknown, so nothing of its reply runs.
    """
    count = len(reply.tool_calls)
    return 0 if reply.invalid_tool_calls or count > MAX_CALLS else max(count - 1, 0)


def find_reply(messages: Sequence[BaseMessage]) -> BaseMessage | None:
    """Return the model's last reply; the last message of a conversation without one."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return message
    return messages[-1] if messages else None


def list_calls(reply: BaseMessage | None) -> list[Any]:
    """List the native tool calls of a reply, with the unreadable ones at the end."""
    return [*getattr(reply, "tool_calls", ()), *getattr(reply, "invalid_tool_calls", ())]


def list_open_calls(state: AgentState) -> list[Any]:
    """List the calls of the last reply that have not begun."""
    calls, count = list_calls(find_reply(state.get("messages", ()))), state.get("open_calls", 0)
    return calls[len(calls) - count :] if 0 < count < len(calls) else []


def find_native_id(state: AgentState) -> str | None:
    """Return the id of the native call that runs; None in the text protocol."""
    calls = list_calls(find_reply(state["messages"]))
    begun = calls[: len(calls) - len(list_open_calls(state))]
    return str(begun[-1]["id"]) if begun else None


def find_call_id(state: AgentState) -> str:
    """Return the id of the call that runs; in the text protocol, one from its event."""
    return find_native_id(state) or f"call_e{len(state['events']) - 1}"


def answer_action(
    state: AgentState, text: str, tool: str, *, artifact: Any = None, is_whole_reply: bool = False
) -> list[AnyMessage]:
    """Return the message that answers the action of the last event; with `is_whole_reply`, one for each of its calls.

    Every native call gets exactly one answer, because providers refuse a request that lacks one.
    """
    calls = list_calls(find_reply(state["messages"]))
    if not calls:
        extra: dict[str, Any] = {TOOL: tool, RESULT_OF: f"e{len(state['events']) - 1}"}
        if artifact is not None:
            extra["artifact"] = artifact
        return [HumanMessage(text, additional_kwargs=extra)]
    if not is_whole_reply:
        calls = calls[: len(calls) - len(list_open_calls(state))][-1:]
    return [_answer(call, text, artifact) for call in calls]


def answer_open_calls(state: AgentState, reason: str) -> list[AnyMessage]:
    """Return an answer to each call that is not run, with the reason."""
    return [_answer(call, reason) for call in list_open_calls(state)]


def _answer(call: Any, text: str, artifact: Any = None) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call["id"], name=call["name"], artifact=artifact)
