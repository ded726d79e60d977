"""Model requests and replies in the three wire formats, for the scripted endpoint of the contract."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_takeover.handoff.agents.adapter import Api, NativeCall


class ScriptedReply(NamedTuple):
    """A scripted reply: text, calls by id, or an HTTP error."""

    text: str = ""
    calls: Mapping[str, NativeCall] = {}
    status: int = 200


class SeenCall(NamedTuple):
    """A call in a conversation, with its result; None if the conversation has none."""

    name: str
    arguments: Mapping[str, Any]
    result: str | None


def read_messages(api: Api, body: Mapping[str, Any]) -> list[BaseMessage]:
    """Return the conversation of a request, without its system prompts."""
    items = body["input"] if api == "responses" else body["messages"]
    merged: list[BaseMessage] = []
    for item in items:
        for message in _READERS[api](item):
            last = merged[-1] if merged else None
            if isinstance(message, AIMessage) and isinstance(last, AIMessage):
                merged[-1] = AIMessage(
                    "\n".join(filter(None, (last.text, message.text))),
                    tool_calls=[*last.tool_calls, *message.tool_calls],
                )
            else:
                merged.append(message)
    return [each for each in merged if not isinstance(each, SystemMessage)]


def list_calls(messages: list[BaseMessage]) -> list[SeenCall]:
    """List the calls of a conversation in order."""
    results = {each.tool_call_id: each.text for each in messages if isinstance(each, ToolMessage)}
    return [
        SeenCall(call["name"], call["args"], results.get(str(call["id"])))
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]


def write_reply(api: Api, body: Mapping[str, Any], reply: ScriptedReply) -> tuple[str, bytes]:
    """Return the content type and the body of a reply, in one piece or as a stream."""
    if api == "chat" and not body.get("stream"):
        return "application/json", json.dumps(_chat_completion(reply)).encode()
    if api == "messages" and not body.get("stream"):
        return "application/json", json.dumps(_message(reply)).encode()
    events = {"responses": _stream_response, "messages": _stream_message, "chat": _stream_chat}[api](reply)
    return "text/event-stream", "".join(events).encode()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or () if isinstance(part, dict))


def _read_responses_item(item: dict[str, Any]) -> Iterator[BaseMessage]:
    kind = item.get("type", "message")
    if kind == "message":
        yield _by_role(item["role"], _text(item["content"]))
    elif kind in ("function_call", "custom_tool_call"):
        arguments = json.loads(item["arguments"]) if "arguments" in item else {"input": item["input"]}
        yield AIMessage("", tool_calls=[{"name": item["name"], "args": arguments, "id": item["call_id"]}])
    elif kind in ("function_call_output", "custom_tool_call_output"):
        yield ToolMessage(_text(item["output"]), tool_call_id=item["call_id"])


def _read_messages_item(item: dict[str, Any]) -> Iterator[BaseMessage]:
    content = item["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for part in parts:
        if part["type"] == "tool_result":
            yield ToolMessage(_text(part.get("content")), tool_call_id=part["tool_use_id"])
    calls = [
        {"name": part["name"], "args": part["input"], "id": part["id"]}
        for part in parts
        if part["type"] == "tool_use"
    ]
    text = _text([part for part in parts if part["type"] == "text"])
    if item["role"] == "assistant":
        yield AIMessage(text, tool_calls=calls)
    elif text:
        yield _by_role(item["role"], text)


def _read_chat_item(item: dict[str, Any]) -> Iterator[BaseMessage]:
    if item["role"] == "tool":
        yield ToolMessage(_text(item["content"]), tool_call_id=item["tool_call_id"])
        return
    if item["role"] != "assistant":
        yield _by_role(item["role"], _text(item["content"]))
        return
    calls = [
        {
            "name": call["function"]["name"],
            "args": json.loads(call["function"]["arguments"]),
            "id": call["id"],
        }
        for call in item.get("tool_calls") or ()
    ]
    yield AIMessage(_text(item.get("content")), tool_calls=calls)


_READERS = {"responses": _read_responses_item, "messages": _read_messages_item, "chat": _read_chat_item}


def _by_role(role: str, text: str) -> BaseMessage:
    if role == "assistant":
        return AIMessage(text)
    return HumanMessage(text) if role == "user" else SystemMessage(text)


def _event(data: Mapping[str, Any]) -> str:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n"


def _stream_response(reply: ScriptedReply) -> Iterator[str]:
    items: list[dict[str, Any]] = []
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "id": "msg_1", "content": content})
    for call_id, call in reply.calls.items():
        kind = "custom_tool_call" if call.is_custom else "function_call"
        value = (
            {"input": call.arguments["input"]}
            if call.is_custom
            else {"arguments": json.dumps(call.arguments)}
        )
        if call.namespace:
            value["namespace"] = call.namespace
        items.append({"type": kind, "name": call.name, "call_id": call_id, "id": f"fc_{call_id}", **value})
    yield _event({"type": "response.created", "response": {"id": "resp_1"}})
    for index, item in enumerate(items):
        yield _event({"type": "response.output_item.done", "output_index": index, "item": item})
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    yield _event(
        {
            "type": "response.completed",
            "response": {"id": "resp_1", "status": "completed", "output": items, "usage": usage},
        }
    )


def _message(reply: ScriptedReply) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    content += [
        {"type": "tool_use", "id": call_id, "name": call.name, "input": dict(call.arguments)}
        for call_id, call in reply.calls.items()
    ]
    return {
        "id": f"msg_{abs(hash((reply.text, *reply.calls)))}",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "stop_reason": "tool_use" if reply.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def _stream_message(reply: ScriptedReply) -> Iterator[str]:
    message = _message(reply)
    yield _event({"type": "message_start", "message": {**message, "content": [], "stop_reason": None}})
    for index, block in enumerate(message["content"]):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        yield _event({"type": "content_block_start", "index": index, "content_block": empty})
        yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}})
    yield _event({"type": "message_stop"})


def _chat_message(reply: ScriptedReply) -> dict[str, Any]:
    calls = [
        {
            "index": index,
            "id": call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for index, (call_id, call) in enumerate(reply.calls.items())
    ]
    return {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}


def _chat_completion(
    reply: ScriptedReply, kind: str = "chat.completion", part: str = "message"
) -> dict[str, Any]:
    choice = {
        "index": 0,
        part: _chat_message(reply),
        "finish_reason": "tool_calls" if reply.calls else "stop",
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    head = {"id": "chatcmpl-1", "object": kind, "created": 1, "model": "scripted"}
    return {**head, "choices": [choice], "usage": usage}


def _stream_chat(reply: ScriptedReply) -> Iterator[str]:
    chunk = _chat_completion(reply, "chat.completion.chunk", "delta")
    finish = chunk["choices"][0].pop("finish_reason")
    usage = chunk.pop("usage")
    yield f"data: {json.dumps(chunk)}\n\n"
    end = {"index": 0, "delta": {}, "finish_reason": finish}
    yield f"data: {json.dumps({**chunk, 'choices': [end], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"
