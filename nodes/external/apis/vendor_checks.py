"""Checks of requests and replies. A request that passes on to a vendor may only call the model.

A vendor can also search the web, fetch addresses, run code, and read what its account has stored. Each of these
would give a sandbox without network access to one. The run decides the model and the fields that pass on.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata

from langgraph_takeover.nodes.external.apis.model_request import Api, ModelRequest, RequestError, list_objects
from langgraph_takeover.nodes.model.messages.endpoint_rules import NO_RESULT

_MAX_REPORTED_TOKENS = 200_000


def count_results(request: ModelRequest) -> Counter[str]:
    """Count the results in a request by the ids of their calls, which endpoints use again."""
    return Counter(
        each.tool_call_id
        for each in request.messages
        if isinstance(each, ToolMessage) and each.text != NO_RESULT
    )


def limit_usage(reply: AIMessage) -> AIMessage:
    """Return a reply whose reported prompt keeps agents from compacting: Codex does above 258,000 tokens."""
    usage = reply.usage_metadata
    if usage is None or usage["input_tokens"] <= _MAX_REPORTED_TOKENS:
        return reply
    total = _MAX_REPORTED_TOKENS + usage["output_tokens"]
    limited = UsageMetadata(
        input_tokens=_MAX_REPORTED_TOKENS, output_tokens=usage["output_tokens"], total_tokens=total
    )
    return reply.model_copy(update={"usage_metadata": limited})


_CLIENT_TOOLS: dict[Api, re.Pattern[str]] = {
    "responses": re.compile(r"function|custom|local_shell"),
    "messages": re.compile(r"custom|(?:bash|text_editor|computer|memory)_\d{1,20}"),
    "chat": re.compile(r"function|custom"),
}
"""Types of tools that the agent itself carries out."""
_VENDOR_FIELDS: dict[Api, tuple[str, ...]] = {
    "responses": ("background", "conversation", "previous_response_id", "prompt"),
    "messages": ("container", "mcp_servers"),
    "chat": ("web_search_options",),
}
_COMMON_FIELDS = (
    "metadata",
    "model",
    "service_tier",
    "stream",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
)
_OPENAI_FIELDS = (
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "stream_options",
    "top_logprobs",
    "user",
)
_PASSED_FIELDS: dict[Api, frozenset[str]] = {
    "responses": frozenset(
        (
            *_COMMON_FIELDS,
            *_OPENAI_FIELDS,
            *("client_metadata", "context_management", "include", "input", "instructions"),
            *("max_output_tokens", "store", "text", "truncation"),
        )
    ),
    "messages": frozenset(
        (
            *_COMMON_FIELDS,
            *("cache_control", "context_management", "max_tokens", "messages", "output_config"),
            *("output_format", "stop_sequences", "system", "thinking", "top_k"),
        )
    ),
    "chat": frozenset(
        (
            *_COMMON_FIELDS,
            *_OPENAI_FIELDS,
            *("chat_template_kwargs", "enable_thinking", "frequency_penalty", "logit_bias", "logprobs"),
            *("max_completion_tokens", "max_tokens", "messages", "min_p", "presence_penalty"),
            *("reasoning_effort", "repetition_penalty", "response_format", "seed", "stop"),
            *("thinking", "thinking_budget", "top_k", "verbosity"),
        )
    ),
}
"""The fields that change how the model answers, and nothing else; servers of other vendors search by fields of their own."""
_OVERWRITTEN_FIELDS: dict[Api, dict[str, Any]] = {"responses": {"store": False}, "messages": {}, "chat": {}}
_NORMAL_TIERS = (None, "auto", "default", "standard_only")
_SMALL_MODEL = re.compile(r"claude-(?:[\d-]{1,10})?haiku[\w.-]{0,50}")
"""Claude Code uses the vendor's cheapest model for side tasks."""
_FORBIDDEN = 403


def check_vendor_request(request: ModelRequest, model: str | None) -> None:
    """Raise RequestError if a request needs more of the vendor than its model.

    Args:
        model: the run's model; None if the run decides none.
    """
    body = request.body
    if model is not None and request.model != model and not _SMALL_MODEL.fullmatch(request.model):
        raise RequestError(f"the request is for another model than the run's, {model}", _FORBIDDEN)
    for name in _VENDOR_FIELDS[request.api]:
        if body.get(name):
            raise RequestError(f"`{name}` is not available in the sandbox", _FORBIDDEN)
    if body.get("service_tier") not in _NORMAL_TIERS:
        raise RequestError("`service_tier` must be the default", _FORBIDDEN)
    _check_tools(request.api, body.get("tools"))
    if request.api == "responses" and isinstance(body.get("input"), list):
        for item in body["input"]:
            kind = item.get("type")
            if kind == "item_reference" or (kind is None and "role" not in item):
                raise RequestError("references to stored items are not available in the sandbox", _FORBIDDEN)
            _check_tools(request.api, item.get("tools"))


def select_vendor_fields(request: ModelRequest, body: bytes) -> bytes:
    """Return a request's body with the fields that pass on; the same bytes if it has no others."""
    overwritten = _OVERWRITTEN_FIELDS[request.api]
    kept = {name: value for name, value in request.body.items() if name in _PASSED_FIELDS[request.api]}
    if len(kept) == len(request.body) and all(kept.get(name) is value for name, value in overwritten.items()):
        return body
    return json.dumps(kept | overwritten).encode()


def _check_tools(api: Api, tools: Any) -> None:
    for tool in list_objects(tools, "tools"):
        kind = str(tool.get("type", "custom"))
        if api == "responses" and kind == "namespace":
            _check_tools(api, tool.get("tools"))
        elif not _CLIENT_TOOLS[api].fullmatch(kind):
            raise RequestError(f"the vendor's tool {kind[:50]!r} is not available in the sandbox", _FORBIDDEN)


def check_inline(part: Any) -> None:
    """Raise RequestError if an image or a file is an address or a stored file, which the vendor would fetch."""
    if isinstance(part, list):
        for each in part:
            check_inline(each)
    if not isinstance(part, dict):
        return
    for name, value in part.items():
        is_address = isinstance(value, str) and name in ("url", "image_url", "file_url", "video_url")
        if (is_address and not value.startswith("data:")) or (name == "file_id" and value):
            raise RequestError("an image or file must be in the request itself", _FORBIDDEN)
        check_inline(value)
