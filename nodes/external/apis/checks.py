"""What the runtime reads from requests, and changes in replies, of every API."""

from __future__ import annotations

from collections import Counter

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata

from langgraph_takeover.nodes.external.apis.model_request import ModelRequest
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
