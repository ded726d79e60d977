"""Content of a reply beside its text: reasoning, signatures and other blocks; and whether it is empty or truncated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable

from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.text.skeleton import remove_thoughts
from langgraph_takeover.nodes.model.provider_fields import (
    ENDPOINT,
    drop_foreign_fields,
    list_fields,
    list_sealed,
    name_endpoint,
    redact_fields,
)

HAS_THOUGHT = "has_thought"
"""Additional field of a message whose client keeps the fact of a thought, not the thought."""
THOUGHT_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
"""Fields in which servers send a model's thought beside its text."""
REASONING_TYPES = ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
"""Types of the parts of a content that are thoughts."""
THOUGHT_ONLY = "Your reply contains thought, but no text and no action."
EMPTY_REPLY = "Your reply is empty: it contains no text and no action."
CUT_OFF = "cut off at its length limit"


def is_truncated(reply: AIMessage) -> bool:
    return reply.response_metadata.get("finish_reason") == "length"


def has_thought(reply: AIMessage) -> bool:
    """Whether a reply has thought: in a field of its own, as a content part, in its text, or by its usage."""
    if any(reply.additional_kwargs.get(name) for name in (HAS_THOUGHT, *THOUGHT_FIELDS)):
        return True
    parts = reply.content if isinstance(reply.content, list) else []
    if any(isinstance(part, dict) and part.get("type") in REASONING_TYPES for part in parts):
        return True
    if remove_thoughts(reply.text) != reply.text:
        return True
    usage = reply.usage_metadata
    return usage is not None and bool((usage.get("output_token_details") or {}).get("reasoning"))


def is_empty(reply: AIMessage) -> bool:
    """Whether a reply has neither text outside its thought nor a tool call."""
    return not (remove_thoughts(reply.text).strip() or reply.tool_calls or reply.invalid_tool_calls)


def describe_empty_reply(reply: AIMessage) -> str:
    """What an empty reply has; empty for any other reply."""
    if not is_empty(reply):
        return ""
    return "thought, but no text" if has_thought(reply) else "no text"


CLIENT = "client"
"""Metadata of a reply with content of its provider: the class of the client that received it."""
WIRE_REPLY = "wire_reply"
"""Additional field of a reply: the vendor's own bytes, which the agent receives unchanged."""
_WITHHELD = "withheld"
"""Metadata of a reply without its reasoning and its calls."""
_SIGNATURE_KEYS = ("signature", "thought_signature", "encrypted_content", "extras")
_CALL_TYPES = ("tool_use", "tool_call", "function_call", "input_json_delta", "tool_call_chunk")
NO_TEXT = "…"
"""Text that stands for none, which some endpoints refuse."""
_DAMAGED = (
    "Your reasoning repeats a secret of this environment. Nothing of it can be stored, so nothing was run. "
    "Send the action again, and do not repeat secrets."
)


def withhold_damaged(reply: AIMessage, cleaned: dict[str, Any]) -> dict[str, Any]:
    """Return the cleaned fields of a reply; if cleaning changed signed reasoning, only its text.

    A provider refuses changed reasoning, and calls without the reasoning before them.
    """
    if _list_unchangeable(reply.content, reply.additional_kwargs) == _list_unchangeable(
        cleaned["content"], cleaned["additional_kwargs"]
    ):
        return cleaned
    text = AIMessage(cleaned["content"]).text
    metadata = {**cleaned["response_metadata"], _WITHHELD: True}
    return {
        **cleaned,
        "content": text or NO_TEXT,
        "tool_calls": [],
        "invalid_tool_calls": [],
        "additional_kwargs": {},
        "response_metadata": metadata,
    }


def describe_damage(reply: AIMessage) -> str:
    """Return the correction for a reply whose reasoning was withheld; empty for any other reply."""
    return _DAMAGED if reply.response_metadata.get(_WITHHELD) else ""


def redact_reply(reply: AIMessage) -> AIMessage:
    """Return a reply without keys in its texts. Signed reasoning stays as it is.

    Tool calls are not redacted: a key in them may be made up for a test.
    """
    reply = redact_fields(reply)
    if isinstance(reply.content, str):
        return reply.model_copy(update={"content": redact(reply.content)})
    return reply.model_copy(update={"content": [_redact_part(part) for part in reply.content]})


def mark_client(reply: AIMessage, model: BaseChatModel) -> AIMessage:
    """Note the client of a reply that has content of its provider, and the endpoint that sent additional fields."""
    if isinstance(reply.content, str) and all(value is None for value in reply.additional_kwargs.values()):
        return reply
    metadata = {**reply.response_metadata, CLIENT: _name_client(model)}
    if list_fields(reply):
        metadata[ENDPOINT] = name_endpoint(model)
    return reply.model_copy(update={"response_metadata": metadata})


def adapt_messages(messages: Sequence[BaseMessage], model: Runnable[Any, Any]) -> list[Any]:
    """Return a conversation as the model may receive it.

    Replies that another client received keep their text and calls only; those of another endpoint lose its fields.
    """
    client, endpoint = _name_client(model), name_endpoint(model)
    return [drop_foreign_fields(_adapt_message(each, client), endpoint) for each in messages]


def drop_calls(content: str | list[str | dict[str, Any]]) -> str | list[str | dict[str, Any]]:
    """Return content without the provider's copies of calls, which a client makes again from the message's calls."""
    if isinstance(content, str):
        return content
    return [part for part in content if isinstance(part, str) or part.get("type") not in _CALL_TYPES]


def _adapt_message(message: BaseMessage, client: str) -> BaseMessage:
    if not isinstance(message, AIMessage) or message.response_metadata.get(CLIENT, client) == client:
        return message
    has_calls = bool(message.tool_calls or message.invalid_tool_calls)
    return AIMessage(
        message.text or ("" if has_calls else NO_TEXT),
        tool_calls=message.tool_calls,
        invalid_tool_calls=message.invalid_tool_calls,
        name=message.name,
        id=message.id,
    )


def _list_unchangeable(content: Any, additional_kwargs: Mapping[str, Any]) -> list[Any]:
    signed = [*_list_signed(content), *_list_signed([*additional_kwargs.values()])]
    return [*signed, *list_sealed(additional_kwargs)]


def _list_signed(parts: Any) -> list[Any]:
    return [part for part in parts if _is_signed(part)] if isinstance(parts, list) else []


def _is_signed(part: Any) -> bool:
    return isinstance(part, Mapping) and (
        part.get("type") in REASONING_TYPES or any(name in part for name in _SIGNATURE_KEYS)
    )


def _redact_part(part: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(part, str):
        return redact(part)
    if part.get("type") != "text" or "text" not in part:
        return part
    text = redact(part["text"])
    if text == part["text"]:
        return part
    return {name: value for name, value in part.items() if name not in _SIGNATURE_KEYS} | {"text": text}


def _name_client(model: Any) -> str:
    while hasattr(model, "bound"):
        model = model.bound
    return f"{type(model).__module__}.{type(model).__qualname__}"
