"""Replies of models that are no LLM: an action put into words the way the protocol wants it."""

from __future__ import annotations

from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult

from nodes.actions import Action, write_action

CHARACTERS_A_TOKEN = 4
"""The estimate by which models without a tokenizer count; reports say that it is one."""


class Turn(NamedTuple):
    """One reply: what is thought, and the action that follows."""

    thought: str
    action: Action


def chat_result(messages: list[BaseMessage], turn: Turn, *, native: bool) -> ChatResult:
    if native:
        call = {"name": turn.action.tool, "args": turn.action.arguments, "id": f"call_{len(messages)}"}
        return _result(messages, AIMessage(turn.thought, tool_calls=[call]))
    return text_result(messages, f"{turn.thought}\n\n{write_action(turn.action)}".strip())


def text_result(messages: list[BaseMessage], text: str) -> ChatResult:
    return _result(messages, AIMessage(text))


def _result(messages: list[BaseMessage], reply: AIMessage) -> ChatResult:
    prompt = sum(len(message.text) for message in messages) // CHARACTERS_A_TOKEN
    completion = max(len(reply.text) // CHARACTERS_A_TOKEN, 1)
    reply.usage_metadata = UsageMetadata(
        input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion
    )
    reply.response_metadata = {"finish_reason": "stop"}
    return ChatResult(generations=[ChatGeneration(message=reply)])
