"""Turns of a request: they alternate, begin and end with the user, and no user follows a result where that is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_takeover.nodes.model.messages.content import NO_TEXT
from langgraph_takeover.nodes.model.messages.endpoint_rules import ConversationRepair, is_mistral

_CONTINUE = "Continue."


def repair_messages(messages: Sequence[BaseMessage], model: Any) -> list[BaseMessage]:
    """Return a whole conversation as the model's endpoint accepts it; valid messages stay the same objects.

    For a graph of your own whose node calls the model: `model.invoke(repair_messages(state["messages"], model))`.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> from langgraph_takeover.integrations import repair_messages
        >>> reply = AIMessage("", tool_calls=[{"name": "shell", "args": {}, "id": "a"}])
        >>> [message.text for message in repair_messages([HumanMessage("Work."), reply], None)]
        ['Work.', '', 'No result of this call was recorded.']
    """
    return complete_turns(ConversationRepair(model).add(messages), model)


def complete_turns(messages: Sequence[BaseMessage], model: Any) -> list[BaseMessage]:
    """Return the messages of a request as strict endpoints accept their order; other messages stay the same objects.

    Consecutive messages of the user become one. A short message of the user stands before a reply that has none before it,
    and after the last reply. For Mistral, a mark stands for the reply between a result and the user.
    """
    completed: list[BaseMessage] = []
    for message in messages:
        last = completed[-1] if completed else None
        match _find_fault(last, message, model):
            case "two of the user":
                assert isinstance(last, HumanMessage)
                completed[-1] = _merge(last, cast(HumanMessage, message))
                continue
            case "no reply":
                completed.append(AIMessage(NO_TEXT))
            case "no user":
                completed.append(HumanMessage(_CONTINUE))
        completed.append(message)
    return end_with_user(completed)


def end_with_user(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a request with a short one of the user after the last reply."""
    is_ended = not messages or isinstance(messages[-1], HumanMessage | ToolMessage | SystemMessage)
    return messages if is_ended else [*messages, HumanMessage(_CONTINUE)]


def have_faults(messages: Sequence[BaseMessage], model: Any, last: BaseMessage | None) -> bool:
    """Whether `complete_turns` would change more than the end of a conversation whose last message so far is `last`."""
    pairs = zip((last, *messages), messages, strict=False)
    return any(_find_fault(earlier, later, model) for earlier, later in pairs)


def _find_fault(last: BaseMessage | None, message: BaseMessage, model: Any) -> str:
    if isinstance(message, HumanMessage):
        if isinstance(last, HumanMessage):
            return "two of the user"
        return "no reply" if isinstance(last, ToolMessage) and is_mistral(model) else ""
    is_first = isinstance(message, AIMessage) and not isinstance(last, HumanMessage | ToolMessage)
    return "no user" if is_first else ""


def _merge(first: HumanMessage, second: HumanMessage) -> HumanMessage:
    name = first.name if first.name == second.name else None
    if isinstance(first.content, str) and isinstance(second.content, str):
        return HumanMessage(f"{first.content.rstrip()}\n\n{second.content}", name=name)
    return HumanMessage([*_list_parts(first), *_list_parts(second)], name=name)


def _list_parts(message: HumanMessage) -> list[Any]:
    content = message.content
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
