"""Spans of model calls and tools, named as in the GenAI conventions of OpenTelemetry."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from langgraph_takeover.base.failures import ObserverErrors
from langgraph_takeover.base.telemetry import (
    IGNORED_SPAN,
    ActiveSpan,
    builds_span,
    has_provider,
    record_value,
    start_span,
)
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.events import Event, Usage

CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURING_VALUES = ("true", "span_only", "span_and_event")
_MAX_CONTENT_CHARS = 32_768
"""Limit of the texts in one attribute."""
_MAX_CONTENT_MESSAGES = 200
_REDACTION_MARGIN = 10_000
"""Characters before a cut that are left out after redaction: half a secret is not recognized."""
_PROVIDERS = {
    "langchain_openai": "openai",
    "langchain_anthropic": "anthropic",
    "langchain_aws": "aws.bedrock",
    "langchain_cohere": "cohere",
    "langchain_deepseek": "deepseek",
    "langchain_google_genai": "gcp.gemini",
    "langchain_google_vertexai": "gcp.vertex_ai",
    "langchain_groq": "groq",
    "langchain_mistralai": "mistral_ai",
    "langchain_perplexity": "perplexity",
    "langchain_xai": "x_ai",
}
_ROLES = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system"}


@builds_span
def start_chat_span(model: Any) -> ActiveSpan:
    """Return the span of a call of a chat model, bound or not, with all its attempts."""
    if not has_provider():
        return IGNORED_SPAN
    name = find_model_name(model)
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": find_provider(model),
        "gen_ai.request.model": name,
    }
    return start_span(f"chat {name}", attributes, is_client=True)


@ObserverErrors("telemetry")
def describe_request(span: ActiveSpan, messages: Sequence[BaseMessage], secrets: Collection[str]) -> None:
    """Set the messages of a call, if content is captured."""
    if captures_content(span):
        span.set({"gen_ai.input.messages": _format_messages(messages, secrets)})


def describe_reply(
    span: ActiveSpan, model: Any, reply: AIMessage, usage: Usage, cost: float | None, secrets: Collection[str]
) -> None:
    """Set what a reply reports, and count its tokens. Only tokens that the endpoint reported enter the metric."""
    metadata = reply.response_metadata
    reason = metadata.get("finish_reason") or metadata.get("stop_reason")
    span.set(
        {
            "gen_ai.response.id": _as_text(metadata.get("id") or reply.id),
            "gen_ai.response.model": _as_text(metadata.get("model_name")),
            "gen_ai.response.finish_reasons": None if reason is None else (str(reason),),
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "takeover.usage.estimated": True if usage.estimated else None,
            "takeover.cost": cost,
        }
    )
    if captures_content(span):
        span.set({"gen_ai.output.messages": _format_messages([reply], secrets)})
    labels = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": find_provider(model),
        "gen_ai.request.model": find_model_name(model),
    }
    for kind, tokens in (("input", usage.prompt_tokens), ("output", usage.completion_tokens)):
        if tokens is not None and not usage.estimated:
            record_value("gen_ai.client.token.usage", tokens, labels | {"gen_ai.token.type": kind})
    if cost is not None:
        record_value("takeover.chat.cost", cost, labels)


@builds_span
def start_tool_span(action: Event, call_id: str | None, secrets: Collection[str]) -> ActiveSpan:
    """Return the span of the execution of an action; `call_id` is that of the native call, if it is one."""
    if not has_provider():
        return IGNORED_SPAN
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": action.tool,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call_id,
        "takeover.event": action.index,
    }
    if _is_capture_on():
        attributes["gen_ai.tool.call.arguments"] = json.dumps(
            _bound_texts(dict(action.arguments), secrets), ensure_ascii=False
        )
    return start_span(f"execute_tool {action.tool}", attributes)


@ObserverErrors("telemetry")
def describe_result(
    span: ActiveSpan,
    text: str,
    secrets: Collection[str],
    *,
    exit_code: int | None,
    refused: bool,
    timed_out: bool,
    changed_files: int,
) -> None:
    """Set the result of an action. A command that fails is a result, not an error of the span."""
    span.set(
        {
            "takeover.tool.exit_code": exit_code,
            "takeover.tool.refused": refused or None,
            "takeover.tool.timed_out": timed_out or None,
            "takeover.tool.changed_files": changed_files,
        }
    )
    if captures_content(span):
        span.set({"gen_ai.tool.call.result": _bound_text(text, _MAX_CONTENT_CHARS, secrets)})


def captures_content(span: ActiveSpan) -> bool:
    """Whether content belongs in the span: only if a variable of the environment says so."""
    return span.is_recording and _is_capture_on()


def find_model_name(model: Any) -> str:
    """Return the name by which an endpoint knows the model; else that of its class."""
    model = _unbind(model)
    names = (getattr(model, name, None) for name in ("model_name", "model"))
    return next((name for name in names if isinstance(name, str) and name), type(model).__name__)


def find_provider(model: Any) -> str:
    """Return the provider as the conventions name it; for other models, their kind in LangChain."""
    model = _unbind(model)
    if type(model).__name__.startswith("AzureChat"):
        return "azure.ai.openai"
    if getattr(model, "passes_requests_on", False):
        return "anthropic" if model.api == "messages" else "openai"
    known = _PROVIDERS.get(type(model).__module__.split(".")[0])
    return known or str(getattr(model, "_llm_type", "_OTHER"))


def _unbind(model: Any) -> Any:
    while hasattr(model, "bound"):
        model = model.bound
    return model


def _is_capture_on() -> bool:
    return os.environ.get(CAPTURE_VARIABLE, "").strip().lower() in _CAPTURING_VALUES


def _format_messages(messages: Sequence[BaseMessage], secrets: Collection[str]) -> str:
    """Return the newest messages that fit the limit, as JSON in the form of the conventions, without secrets."""
    formatted: list[dict[str, Any]] = []
    left = _MAX_CONTENT_CHARS
    for message in reversed(messages[-_MAX_CONTENT_MESSAGES:]):
        if left <= 0:
            break
        one = _format_message(message, left, secrets)
        left -= sum(len(str(part)) for part in one["parts"])
        formatted.insert(0, one)
    return json.dumps(formatted, ensure_ascii=False)


def _format_message(message: BaseMessage, limit: int, secrets: Collection[str]) -> dict[str, Any]:
    text = _bound_text(message.text, limit, secrets)
    if isinstance(message, ToolMessage):
        parts: list[dict[str, Any]] = [
            {"type": "tool_call_response", "id": message.tool_call_id[:100], "response": text}
        ]
    else:
        parts = [{"type": "text", "content": text}] if text else []
    for call in getattr(message, "tool_calls", ()):
        arguments = _bound_texts(call["args"], secrets, limit)
        parts.append(
            {
                "type": "tool_call",
                "id": str(call["id"])[:100],
                "name": str(call["name"])[:100],
                "arguments": arguments,
            }
        )
    formatted: dict[str, Any] = {"role": _ROLES.get(message.type, message.type), "parts": parts}
    if isinstance(message, AIMessage):
        metadata = message.response_metadata
        formatted["finish_reason"] = str(
            metadata.get("finish_reason") or metadata.get("stop_reason") or "stop"
        )[:100]
    return formatted


def _bound_texts(
    arguments: Mapping[str, Any], secrets: Collection[str], limit: int = _MAX_CONTENT_CHARS
) -> Any:
    """Return the arguments of a call without secrets; if they are long, as a text that is cut."""
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    return redact(dict(arguments), secrets) if len(text) <= limit else _bound_text(text, limit, secrets)


def _bound_text(text: str, limit: int, secrets: Collection[str]) -> str:
    """Return the beginning of a text without secrets."""
    if len(text) <= limit + _REDACTION_MARGIN:
        return redact(text, secrets)[:limit]
    return redact(text[: limit + _REDACTION_MARGIN], secrets)[:-_REDACTION_MARGIN][:limit]


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
