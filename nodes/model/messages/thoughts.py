"""Replies of thinking models: whether a reply has thought, and whether it has anything else."""

from __future__ import annotations

from langchain_core.messages import AIMessage

from langgraph_takeover.handoff.text.thoughts import remove_thoughts

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
