"""Requests of text alone to a vendor's own endpoint, in each API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_takeover.nodes.external.apis.model_request import MODEL_PATHS, Api, WireRequest

_ANTHROPIC_VERSION = "2023-06-01"
_ROLES = {"ai": "assistant", "system": "system"}


def build_text_request(
    api: Api, model: str, messages: Sequence[BaseMessage], max_output_tokens: int
) -> WireRequest:
    """Return the streamed request that asks a model for text; of each message only its role and its text."""
    turns = [{"role": _ROLES.get(each.type, "user"), "content": each.text} for each in messages]
    system = "\n\n".join(each["content"] for each in turns if each["role"] == "system")
    others = [each for each in turns if each["role"] != "system"]
    body: dict[str, Any] = {"model": model, "stream": True}
    headers: dict[str, str] = {}
    if api == "responses":
        body |= {"input": others, "store": False, "max_output_tokens": max_output_tokens}
        body |= {"instructions": system} if system else {}
    elif api == "messages":
        body |= {"messages": others, "max_tokens": max_output_tokens}
        body |= {"system": system} if system else {}
        headers = {"anthropic-version": _ANTHROPIC_VERSION}
    else:
        body |= {"messages": turns, "max_completion_tokens": max_output_tokens}
        body |= {"stream_options": {"include_usage": True}}
    return WireRequest(MODEL_PATHS[api], headers, json.dumps(body).encode())
