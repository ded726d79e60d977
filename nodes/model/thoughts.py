"""Replies of thinking models: whether a reply has thought, and whether it has anything else."""

from __future__ import annotations

import re

from langchain_core.messages import AIMessage

HAS_THOUGHT = "has_thought"
"""Additional field of a message whose client keeps the fact of a thought, not the thought."""
THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which servers send a model's thought beside its text."""
THOUGHT_ONLY = "Your reply contains thought, but no text and no action."
EMPTY_REPLY = "Your reply is empty: it contains no text and no action."
CUT_OFF = "cut off at its length limit"
_THOUGHT = re.compile(r"<(think|thinking)>.*?(?:</\1>|\Z)", re.DOTALL)
_THOUGHT_ENDS = ("</think>", "</thinking>")
"""A server may send the end of a thought whose beginning is in the prompt."""


def is_truncated(reply: AIMessage) -> bool:
    return reply.response_metadata.get("finish_reason") == "length"


def has_thought(reply: AIMessage) -> bool:
    """Whether a reply has thought: in a field of its own, as a content part, in its text, or by its usage."""
    if any(reply.additional_kwargs.get(name) for name in (HAS_THOUGHT, *THOUGHT_FIELDS)):
        return True
    parts = reply.content if isinstance(reply.content, list) else []
    if any(isinstance(part, dict) and "thinking" in str(part.get("type", "")) for part in parts):
        return True
    if any(isinstance(part, dict) and part.get("type") == "reasoning" for part in parts):
        return True
    if _THOUGHT.search(reply.text) or any(end in reply.text for end in _THOUGHT_ENDS):
        return True
    usage = reply.usage_metadata
    return usage is not None and bool((usage.get("output_token_details") or {}).get("reasoning"))


def is_empty(reply: AIMessage) -> bool:
    """Whether a reply has neither text outside its thought nor a tool call."""
    text = _THOUGHT.sub("", reply.text)
    for end in _THOUGHT_ENDS:
        text = text.rpartition(end)[2]
    return not text.strip() and not reply.tool_calls and not reply.invalid_tool_calls


def describe_empty_reply(reply: AIMessage) -> str:
    """What an empty reply has; empty for any other reply."""
    if not is_empty(reply):
        return ""
    return "thought, but no text" if has_thought(reply) else "no text"
