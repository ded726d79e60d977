"""OpenAI Responses, as Codex uses it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph_takeover.nodes.external.apis.model_request import (
    CUSTOM_ARGUMENT,
    ModelRequest,
    RequestParts,
    ToolList,
    list_objects,
)
from langgraph_takeover.nodes.external.apis.wire_turns import (
    Conversation,
    ReplyParts,
    VendorReply,
    WireCall,
    read_call,
    read_custom_call,
)

SCRIPT_TOOL = "exec"
_CELL_TOOL = "wait"
"""It waits for a script."""
_NAMESPACE = "functions"
"""The namespace whose tools are called by their names alone."""
_DECLARATION = re.compile(r"^### `(\w{1,100})`\s*$", re.M)
_PATCH_FORMAT = """\
Edit files with a patch in this form, without a code fence:
*** Begin Patch
*** Update File: src/a.py
@@ def total(prices):
 an unchanged line
-a removed line
+an added line
*** Add File: src/b.py
+a line of the new file
*** Delete File: src/c.py
*** End Patch
Paths are relative. Show three unchanged lines around each change; `@@` names the function or class that holds it."""
_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}
_LIMITS: dict[str, dict[str, Any]] = {
    "yield_time_ms": {**_INTEGER, "description": "Wait so long for output, at most 30000."},
    "max_output_tokens": {**_INTEGER, "description": "Tokens of output to return; 10000 by default."},
}
_FUNCTIONS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "exec_command": (
        "Run a shell command. Returns its output with its exit code, or with a session ID if it still runs.",
        {
            "cmd": {**_STRING, "description": "Shell command."},
            "workdir": {**_STRING, "description": "Directory; the repository by default."},
            **_LIMITS,
        },
        ["cmd"],
    ),
    "write_stdin": (
        "Write to a running command, or read its new output, and return it.",
        {
            "session_id": {**_INTEGER, "description": "Session ID of the running command."},
            "chars": {**_STRING, "description": "Text to write; empty to read only."},
            **_LIMITS,
        },
        ["session_id"],
    ),
}


def list_tools(tools: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the tools of a request, those of the main namespace, and those behind `exec` instead of it.

    `exec` remains where none of the tools behind it is known.
    """
    flat = [each for tool in tools for each in _open_namespace(tool)]
    nested = [each for tool in flat for each in _list_nested(tool)]
    for tool in flat:
        if not nested or tool.get("name") not in (SCRIPT_TOOL, _CELL_TOOL):
            yield tool
    yield from nested


def _open_namespace(tool: dict[str, Any]) -> list[dict[str, Any]]:
    if tool.get("type") != "namespace" or tool.get("name") != _NAMESPACE:
        return [tool]
    inner = tool.get("tools")
    return [each for each in inner if isinstance(each, dict)] if isinstance(inner, list) else []


def _list_nested(tool: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    description = tool.get("description")
    if tool.get("type") != "custom" or tool.get("name") != SCRIPT_TOOL or not isinstance(description, str):
        return
    for name in dict.fromkeys(_DECLARATION.findall(description)):
        if name == "apply_patch":
            yield {"type": "custom", "name": name, "description": _PATCH_FORMAT}
        elif name in _FUNCTIONS:
            text, properties, required = _FUNCTIONS[name]
            parameters = {"type": "object", "properties": properties, "required": required}
            yield {"type": "function", "name": name, "description": text, "parameters": parameters}


JsonObject = dict[str, Any]


def read_request(body: JsonObject, *, accept_images: bool) -> RequestParts:
    """Return the messages and tools of a request. Raises RequestError."""
    conversation, items = Conversation(accept_images=accept_images), body.get("input")
    conversation.add_system(body.get("instructions"))
    offered = list_objects(body.get("tools"), "tools")
    if isinstance(items, str):
        conversation.add_user(items)
    else:
        for item in list_objects(items, "input"):
            if item.get("type") == "additional_tools":
                offered = [*offered, *list_objects(item.get("tools"), "tools")]
            else:
                _read_item(item, conversation)
    tools = ToolList()
    for tool in list_tools(offered):
        if tool.get("type") == "function":
            tools.add_function(tool, tool.get("parameters"))
        elif tool.get("type") == "custom":
            tools.add_custom(tool)
    return RequestParts(conversation.finish(), tools.schemas, tools.custom)


def _read_item(item: JsonObject, conversation: Conversation) -> None:
    """Add an item; reasoning and the vendor's own tools are left out."""
    kind, role = item.get("type", "message"), item.get("role")
    if kind == "message" and role in ("system", "developer"):
        conversation.add_system(item.get("content"))
    elif kind == "message" and role == "assistant":
        conversation.add_reply(item.get("content"))
    elif kind == "message":
        conversation.add_user(item.get("content"))
    elif kind == "function_call":
        conversation.add_reply(
            calls=(read_call(item.get("call_id"), item.get("name"), item.get("arguments")),)
        )
    elif kind == "custom_tool_call":
        call = read_custom_call(item.get("call_id"), item.get("name"), item.get("input"))
        conversation.add_reply(calls=(call,))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        conversation.add_result(item.get("call_id"), item.get("output"))


def write_document(request: ModelRequest, parts: ReplyParts) -> JsonObject:
    """Return a complete response object."""
    items = [_build_message(parts.text, parts.id)] if parts.text else []
    items += [_build_call(call, parts.id, index) for index, call in enumerate(parts.calls)]
    return _build_response(request, parts, items, "incomplete" if parts.finish == "length" else "completed")


def _build_message(text: str, reply_id: str) -> JsonObject:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": f"msg_{reply_id}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def _build_call(call: WireCall, reply_id: str, index: int) -> JsonObject:
    kind = ("custom_tool_call", "ctc", "input") if call.is_custom else ("function_call", "fc", "arguments")
    return {
        "type": kind[0],
        "id": f"{kind[1]}_{reply_id}_{index}",
        "call_id": call.id,
        "name": call.name,
        kind[2]: call.arguments,
        "status": "completed",
    }


def _build_response(
    request: ModelRequest, parts: ReplyParts, items: Sequence[JsonObject], status: str
) -> JsonObject:
    usage = {
        "input_tokens": parts.usage.prompt,
        "input_tokens_details": {"cached_tokens": parts.usage.cached},
        "output_tokens": parts.usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": parts.usage.prompt + parts.usage.completion,
    }
    return {
        "id": f"resp_{parts.id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": request.model,
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None if status == "in_progress" else usage,
        "metadata": {},
    }


def write_events(request: ModelRequest, parts: ReplyParts) -> Iterator[JsonObject]:
    """Yield the events of a streamed response."""
    document = write_document(request, parts)
    started = _build_response(request, parts, [], "in_progress")
    events = [
        {"type": "response.created", "response": started},
        {"type": "response.in_progress", "response": started},
        *(
            event
            for index, item in enumerate(document["output"])
            for event in _write_item_events(item, index)
        ),
        {"type": f"response.{document['status']}", "response": document},
    ]
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _write_item_events(item: JsonObject, index: int) -> Iterator[JsonObject]:
    place: JsonObject = {"output_index": index}
    name = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"], "content")
    empty = {**item, "status": "in_progress", name: [] if name == "content" else ""}
    yield {"type": "response.output_item.added", **place, "item": empty}
    place["item_id"] = item["id"]
    if name == "content":
        place["content_index"] = 0
        part = item["content"][0]
        yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        yield {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []}
        yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}
    else:
        kind = "function_call_arguments" if name == "arguments" else "custom_tool_call_input"
        yield {"type": f"response.{kind}.delta", **place, "delta": item[name]}
        yield {"type": f"response.{kind}.done", **place, name: item[name]}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def read_document(document: JsonObject, streamed_items: Sequence[JsonObject] = ()) -> VendorReply:
    """Return a vendor's response object as a reply; raises ModelError for a failed one."""
    reply = VendorReply(model=document.get("model"), provider="openai")
    if document.get("error"):
        reply.fail(document["error"])
    for item in document.get("output") or streamed_items:
        _read_output(item, reply)
    usage = document.get("usage") or {}
    reply.count_tokens(
        prompt=usage.get("input_tokens"),
        cached=(usage.get("input_tokens_details") or {}).get("cached_tokens"),
        completion=usage.get("output_tokens"),
        reasoning=(usage.get("output_tokens_details") or {}).get("reasoning_tokens"),
    )
    status = document.get("status")
    if status == "completed":
        reply.finish = "tool_calls" if reply.calls else "stop"
    elif status == "incomplete":
        reason = (document.get("incomplete_details") or {}).get("reason")
        reply.finish = "content_filter" if reason == "content_filter" else "length"
    return reply


def _read_output(item: JsonObject, reply: VendorReply) -> None:
    kind = item.get("type")
    if kind == "message":
        for part in item.get("content") or ():
            reply.add_text(part.get("text") or part.get("refusal"))
    elif kind == "function_call":
        reply.add_call(item.get("call_id"), item.get("name"), item.get("arguments"))
    elif kind == "custom_tool_call":
        text = json.dumps({CUSTOM_ARGUMENT: item.get("input") or ""})
        reply.add_call(item.get("call_id"), item.get("name"), text)
    elif kind == "reasoning":
        reply.has_thought = True


def read_events(events: Sequence[JsonObject]) -> VendorReply:
    """Return a vendor's streamed response as a reply; raises ModelError for a failed one."""
    items = [event["item"] for event in events if event.get("type") == "response.output_item.done"]
    for event in events:
        kind = event.get("type")
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            return read_document(event["response"], items)
        if kind == "error":
            VendorReply(provider="openai").fail(event.get("error") or event)
    return VendorReply(provider="openai")
