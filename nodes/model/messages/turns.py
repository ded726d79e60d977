"""Turns of a request: they alternate, begin and end with the user, and no user follows a result where that is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        if isinstance(message, HumanMessage):
            if isinstance(last, HumanMessage):
                completed[-1] = _merge(last, message)
                continue
            if isinstance(last, ToolMessage) and is_mistral(model):
                completed.append(AIMessage(NO_TEXT))
        elif isinstance(message, AIMessage) and not isinstance(last, HumanMessage | ToolMessage):
            completed.append(HumanMessage(_CONTINUE))
        completed.append(message)
    if completed and not isinstance(completed[-1], HumanMessage | ToolMessage | SystemMessage):
        completed.append(HumanMessage(_CONTINUE))
    return completed


def _merge(first: HumanMessage, second: HumanMessage) -> HumanMessage:
    name = first.name if first.name == second.name else None
    if isinstance(first.content, str) and isinstance(second.content, str):
        return HumanMessage(f"{first.content.rstrip()}\n\n{second.content}", name=name)
    return HumanMessage([*_list_parts(first), *_list_parts(second)], name=name)


def _list_parts(message: HumanMessage) -> list[Any]:
    content = message.content
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
