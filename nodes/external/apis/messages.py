"""Anthropic Messages, as Claude Code uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.nodes.external.apis.model_request import (
    ModelRequest,
    RequestParts,
    ToolList,
    list_objects,
)
from langgraph_takeover.nodes.external.apis.wire_turns import (
    Conversation,
    FinishReason,
    ReplyParts,
    VendorReply,
    WireCall,
    read_call,
)

JsonObject = dict[str, Any]
_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_MAX_MALFORMED_CHARS = 2_000


def read_request(body: JsonObject, *, accept_images: bool) -> RequestParts:
    """Return the messages and tools of a request. Raises RequestError."""
    conversation = Conversation(accept_images=accept_images)
    conversation.add_system(body.get("system"))
    for message in list_objects(body.get("messages"), "messages"):
        role, content = message.get("role"), message.get("content")
        if role == "system":
            conversation.add_system(content)
        elif role == "assistant":
            conversation.add_reply(content, _read_calls(content))
        else:
            _read_user(content, conversation)
    tools = ToolList()
    for tool in list_objects(body.get("tools"), "tools"):
        if "input_schema" in tool and tool.get("type") in (None, "custom"):
            tools.add_function(tool, tool["input_schema"])
    return RequestParts(conversation.finish(), tools.schemas)


def _read_calls(content: Any) -> tuple[Any, ...]:
    parts = content if isinstance(content, list) else []
    return tuple(
        read_call(part.get("id"), part.get("name"), part.get("input"))
        for part in parts
        if isinstance(part, dict) and part.get("type") == "tool_use"
    )


def _read_user(content: Any, conversation: Conversation) -> None:
    """Add a user message: its results first, each as a message of its own, then its text."""
    if not isinstance(content, list):
        conversation.add_user(content)
        return
    for part in content:
        if isinstance(part, dict) and part.get("type") == "tool_result":
            is_error = part.get("is_error") is True
            conversation.add_result(part.get("tool_use_id"), part.get("content"), is_error=is_error)
    conversation.add_user(content)


def write_document(request: ModelRequest, parts: ReplyParts) -> JsonObject:
    """Return a complete message."""
    text = [{"type": "text", "text": parts.text}] if parts.text else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _read_input(call)}
        for call in parts.calls
    ]
    usage = {
        "input_tokens": parts.usage.prompt - parts.usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": parts.usage.cached,
        "output_tokens": parts.usage.completion,
    }
    return {
        "id": f"msg_{parts.id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [*text, *calls],
        "stop_reason": _STOP_REASONS[parts.finish],
        "stop_sequence": None,
        "usage": usage,
    }


def _read_input(call: WireCall) -> JsonObject:
    """Return the arguments of a call. Malformed ones stay visible, so that the agent's own check refuses them."""
    try:
        arguments = parse_json(call.arguments)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return arguments
    return {"malformed_arguments": call.arguments[:_MAX_MALFORMED_CHARS]}


def write_events(request: ModelRequest, parts: ReplyParts) -> Iterator[JsonObject]:
    """Yield the events of a streamed message."""
    document = write_document(request, parts)
    usage = {**document["usage"], "output_tokens": min(parts.usage.completion, 1)}
    yield {
        "type": "message_start",
        "message": {**document, "content": [], "stop_reason": None, "usage": usage},
    }
    for index, block in enumerate(document["content"]):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": document["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": document["usage"]}
    yield {"type": "message_stop"}


def read_document(document: JsonObject) -> VendorReply:
    """Return a vendor's message as a reply; raises ModelError for an error. A whole document is a whole reply."""
    reply = _read_message(document)
    if document.get("content"):
        reply.finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    return reply


def _read_message(document: JsonObject) -> VendorReply:
    reply = VendorReply(model=document.get("model"), provider="anthropic")
    if document.get("type") == "error":
        reply.fail(document.get("error"))
    for block in document.get("content") or ():
        kind = block.get("type")
        if kind == "text":
            reply.add_text(block.get("text"))
        elif kind == "tool_use":
            arguments = block.get("input")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
            reply.add_call(block.get("id"), block.get("name"), text)
        elif "thinking" in str(kind):
            reply.has_thought = True
    usage = document.get("usage") or {}
    cached, created = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    prompt = usage.get("input_tokens")
    reply.count_tokens(
        prompt=None if prompt is None else prompt + (cached or 0) + (created or 0),
        cached=cached,
        completion=usage.get("output_tokens"),
    )
    reply.finish = _FINISH_REASONS.get(str(document.get("stop_reason")), "")
    return reply


def read_events(events: Sequence[JsonObject]) -> VendorReply:
    """Return a vendor's streamed message as a reply; raises ModelError for an error."""
    document: JsonObject = {}
    blocks: dict[int, JsonObject] = {}
    texts: dict[int, list[str]] = {}
    is_complete = False
    for event in events:
        kind = event.get("type")
        if kind == "error":
            VendorReply(provider="anthropic").fail(event.get("error"))
        elif kind == "message_start":
            document = {**event["message"]}
        elif kind == "content_block_start":
            blocks[event["index"]], texts[event["index"]] = {**event["content_block"]}, []
        elif kind == "content_block_delta":
            delta = event["delta"]
            texts[event["index"]].append(delta.get("text") or delta.get("partial_json") or "")
        elif kind == "message_delta":
            document |= {"stop_reason": event["delta"].get("stop_reason")}
            document["usage"] = {**(document.get("usage") or {}), **_drop_none(event.get("usage") or {})}
        elif kind == "message_stop":
            is_complete = True
    for index, block in blocks.items():
        field = {"text": "text", "tool_use": "input"}.get(str(block.get("type")))
        if field and (text := "".join(texts[index])):
            block[field] = text
    reply = read_document({**document, "content": [blocks[index] for index in sorted(blocks)]})
    if not is_complete:
        reply.finish = ""
    return reply


def _drop_none(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}
