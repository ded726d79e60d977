"""OpenAI chat completions, as mini-swe-agent, Qwen Code and opencode use it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from langgraph_takeover.nodes.external.apis.model_request import (
    CUSTOM_ARGUMENT,
    ModelRequest,
    RequestError,
    RequestParts,
    ToolList,
    list_objects,
)
from langgraph_takeover.nodes.external.apis.wire_turns import (
    Call,
    Conversation,
    FinishReason,
    ReplyParts,
    VendorReply,
    WireCall,
    read_call,
    read_custom_call,
)
from langgraph_takeover.nodes.model.message_content import THOUGHT_FIELDS

JsonObject = dict[str, Any]
_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
}


def read_request(body: JsonObject, *, accept_images: bool) -> RequestParts:
    """Return the messages and tools of a request. Raises RequestError."""
    conversation = Conversation(accept_images=accept_images)
    for message in list_objects(body.get("messages"), "messages"):
        role, content = message.get("role"), message.get("content")
        if role in ("system", "developer"):
            conversation.add_system(content)
        elif role == "assistant":
            calls = list_objects(message.get("tool_calls"), "tool_calls")
            conversation.add_reply(content, tuple(map(_read_call, calls)))
        elif role == "tool":
            conversation.add_result(message.get("tool_call_id"), content)
        else:
            conversation.add_user(content)
    tools = ToolList()
    for tool in list_objects(body.get("tools"), "tools"):
        kind = tool.get("type")
        if kind == "function":
            function = _get_object(tool, "function")
            tools.add_function(function, function.get("parameters"))
        elif kind == "custom":
            tools.add_custom(_get_object(tool, "custom"))
    return RequestParts(conversation.finish(), tools.schemas, tools.custom)


def _read_call(call: JsonObject) -> Call:
    if call.get("type") == "custom":
        custom = _get_object(call, "custom")
        return read_custom_call(call.get("id"), custom.get("name"), custom.get("input"))
    function = _get_object(call, "function")
    return read_call(call.get("id"), function.get("name"), function.get("arguments"))


def _get_object(value: JsonObject, name: str) -> JsonObject:
    found = value.get(name)
    if not isinstance(found, dict):
        raise RequestError(f"`{name}` of a tool or call must be an object")
    return found


def _write_calls(calls: Sequence[WireCall]) -> list[JsonObject]:
    return [
        {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
        if call.is_custom
        else {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]


def _build_head(request: ModelRequest, parts: ReplyParts, kind: str) -> JsonObject:
    return {
        "id": f"chatcmpl-{parts.id}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def _build_usage(parts: ReplyParts) -> JsonObject:
    return {
        "prompt_tokens": parts.usage.prompt,
        "completion_tokens": parts.usage.completion,
        "total_tokens": parts.usage.prompt + parts.usage.completion,
        "prompt_tokens_details": {"cached_tokens": parts.usage.cached},
    }


def write_document(request: ModelRequest, parts: ReplyParts) -> JsonObject:
    """Return a complete chat completion."""
    message: JsonObject = {"role": "assistant", "content": parts.text or None}
    if parts.calls:
        message["tool_calls"] = _write_calls(parts.calls)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": parts.finish}
    return {
        **_build_head(request, parts, "chat.completion"),
        "choices": [choice],
        "usage": _build_usage(parts),
    }


def write_events(request: ModelRequest, parts: ReplyParts) -> Iterator[JsonObject]:
    """Yield the chunks of a streamed chat completion."""
    head = _build_head(request, parts, "chat.completion.chunk")

    def build_chunk(delta: JsonObject, finish: str | None = None) -> JsonObject:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield build_chunk({"role": "assistant", "content": ""})
    if parts.text:
        yield build_chunk({"content": parts.text})
    for index, call in enumerate(_write_calls(parts.calls)):
        yield build_chunk({"tool_calls": [{"index": index, **call}]})
    yield build_chunk({}, parts.finish)
    options = request.body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield {**head, "choices": [], "usage": _build_usage(parts)}


def read_document(document: JsonObject) -> VendorReply:
    """Return a vendor's chat completion as a reply; raises ModelError for an error.

    A whole document is a whole reply, whether it states a finish reason or not.
    """
    reply = _read_completion(document)
    if document.get("choices"):
        reply.finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    return reply


def _read_completion(document: JsonObject) -> VendorReply:
    reply = VendorReply(model=document.get("model"), provider="openai")
    if document.get("error"):
        reply.fail(document["error"])
    choice: JsonObject = next(iter(document.get("choices") or ()), {})
    message = choice.get("message") or {}
    reply.add_text(message.get("content") or message.get("refusal"))
    reply.has_thought = any(message.get(name) for name in THOUGHT_FIELDS)
    for call in message.get("tool_calls") or ():
        if "custom" in call:
            text = json.dumps({CUSTOM_ARGUMENT: call["custom"].get("input") or ""})
            reply.add_call(call.get("id"), call["custom"].get("name"), text)
        else:
            reply.add_call(call.get("id"), call["function"].get("name"), call["function"].get("arguments"))
    usage = document.get("usage") or {}
    reply.count_tokens(
        prompt=usage.get("prompt_tokens"),
        cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        completion=usage.get("completion_tokens"),
        reasoning=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens"),
    )
    if reason := choice.get("finish_reason"):
        # Some servers have reasons of their own, such as `eos_token`.
        reply.finish = _FINISH_REASONS.get(str(reason), "tool_calls" if reply.calls else "stop")
    return reply


def read_events(events: Sequence[JsonObject]) -> VendorReply:
    """Return a vendor's streamed chat completion as a reply; raises ModelError for an error."""
    texts: list[str] = []
    calls: dict[int, JsonObject] = {}
    arguments: dict[int, list[str]] = {}
    message: JsonObject = {}
    document: JsonObject = {}
    finish: str | None = None
    for event in events:
        if event.get("error"):
            VendorReply(provider="openai").fail(event["error"])
        document |= {name: event[name] for name in ("model", "usage") if event.get(name)}
        for choice in event.get("choices") or ():
            delta, finish = choice.get("delta") or {}, choice.get("finish_reason") or finish
            texts.append(delta.get("content") or delta.get("refusal") or "")
            message |= {name: True for name in THOUGHT_FIELDS if delta.get(name)}
            for part in delta.get("tool_calls") or ():
                _add_call_part(part, calls, arguments)
    for index, call in calls.items():
        field = "input" if "custom" in call else "arguments"
        call["custom" if "custom" in call else "function"][field] = "".join(arguments[index])
    message |= {"content": "".join(texts), "tool_calls": [calls[index] for index in sorted(calls)]}
    return _read_completion({**document, "choices": [{"message": message, "finish_reason": finish}]})


def _add_call_part(part: JsonObject, calls: dict[int, JsonObject], arguments: dict[int, list[str]]) -> None:
    """Add one chunk of a call: id and name come first, the arguments in pieces."""
    kind = "custom" if "custom" in part else "function"
    piece = part.get(kind) or {}
    index = part.get("index")
    if index is None:  # as Gemini sends it: a name begins a call
        index = max(len(calls) - (not piece.get("name")), 0)
    call = calls.setdefault(index, {"id": part.get("id"), kind: {"name": piece.get("name")}})
    call["id"] = call["id"] or part.get("id")
    named = call.get(kind) or {}
    named["name"] = named.get("name") or piece.get("name")
    text = piece.get("input") or piece.get("arguments") or ""
    arguments.setdefault(index, []).append(json.dumps(text) if isinstance(text, dict) else text)
