"""Token usage of model calls, as reported or estimated; and values that can be stored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.handoff.trace.events import Usage
from langgraph_takeover.handoff.views import CHARS_PER_TOKEN
from langgraph_takeover.nodes.model.provider_fields import count_field_chars

_MAX_DEPTH = 64
_INTEGER_LIMIT = 2**63
"""The first integer that is too large for a checkpoint."""


def replace_surrogates(value: Any) -> Any:
    """Return a JSON-like value with lone surrogates replaced: UTF-8 cannot encode them."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, list):
        return [replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return value


def make_storable(value: Any, depth: int = 0) -> Any:
    """Return a value of a client library that a checkpoint can store: no lone surrogates, large integers as text.

    Raises ValueError if it is nested too deep.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH}")
    if isinstance(value, list | tuple):
        return [make_storable(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {make_storable(key, depth + 1): make_storable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        return str(value)
    return replace_surrogates(value)


UNCOUNTED_CALLS = "uncounted_calls"
"""Metadata of a reply: earlier requests of its call that may have been billed, with unknown tokens."""
_MAX_TOKEN_COUNT = 100_000_000
"""Larger than any context window."""
_MAX_CHARS_PER_TOKEN = 1_000
"""More characters than any tokenizer packs into its average token."""
_INVALID_COUNT = -1


def measure_usage(
    reply: AIMessage, messages: Sequence[BaseMessage], prompt_chars: int | None = None
) -> Usage:
    """Return the usage of a call; an estimate, marked as such, if the server reports none or an implausible one.

    `prompt_chars` are the characters of the messages, where they are known.
    """
    prompt_chars = count_chars(messages) if prompt_chars is None else prompt_chars
    estimate = Usage(
        prompt_tokens=_convert_to_tokens(prompt_chars),
        completion_tokens=estimate_tokens([reply]),
        estimated=True,
    )
    usage = parse_usage(reply.usage_metadata)
    if usage is None:
        return estimate
    # Only providers count tokens: a person or a program in the model's place costs none.
    if reply.response_metadata.get("model_provider") and any(
        counted is None or estimated is None or counted * _MAX_CHARS_PER_TOKEN < estimated * CHARS_PER_TOKEN
        for counted, estimated in (
            (usage.prompt_tokens, estimate.prompt_tokens),
            (usage.completion_tokens, estimate.completion_tokens),
        )
    ):
        return estimate
    return usage


def count_uncounted_calls(reply: AIMessage, usage: Usage) -> int:
    """Number of requests behind a reply whose tokens the endpoint did not report."""
    return int(reply.response_metadata.get(UNCOUNTED_CALLS, 0)) + usage.estimated


def parse_usage(report: Any) -> Usage | None:
    """Return the usage that a reply reports; None if it contradicts itself or cannot be true."""
    if not isinstance(report, Mapping):
        return None
    prompt, completion = _parse_count(report, "input_tokens"), _parse_count(report, "output_tokens")
    total, details = _parse_count(report, "total_tokens"), report.get("input_token_details") or {}
    cached = _parse_count(details, "cache_read") if isinstance(details, Mapping) else _INVALID_COUNT
    if prompt is None or completion is None or _INVALID_COUNT in (prompt, completion, total, cached):
        return None
    if (cached or 0) > prompt or (total is not None and total < prompt + completion):
        return None
    # Tokens in neither part were generated, such as reasoning that a server counts separately.
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion if total is None else total - prompt,
    )


def _parse_count(report: Mapping[Any, Any], name: str) -> int | None:
    """Return a number of tokens; None if it is absent."""
    value = report.get(name)
    if value is None or (type(value) is int and 0 <= value <= _MAX_TOKEN_COUNT):
        return value
    return _INVALID_COUNT


def estimate_tokens(messages: Sequence[BaseMessage]) -> int:
    """Return the tokens of messages, at four characters each."""
    return _convert_to_tokens(count_chars(messages))


def _convert_to_tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)


def count_chars(messages: Sequence[BaseMessage]) -> int:
    """Return the characters of messages, including tool calls and the additional fields of their provider."""
    return sum(
        len(message.text)
        + sum(len(str(call)) for call in getattr(message, "tool_calls", []))
        + count_field_chars(message)
        for message in messages
    )
