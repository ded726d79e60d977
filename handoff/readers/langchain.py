"""Reader of LangChain messages: serialized lists, LangGraph states or message objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.recordings import tool_calls
from langgraph_takeover.handoff.recordings.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    extract_text,
    join_text,
    parse_usage,
    to_id,
    to_mapping,
    to_mappings,
)
from langgraph_takeover.handoff.recordings.tool_calls import CallStep, match_results
from langgraph_takeover.handoff.trace.events import count_forms

RawMessage = Mapping[str, Any]
ToolMessages = Mapping[int, RawMessage]
"""The tool messages that answer the calls of a reply, by the position of the call."""
_EXIT_CODE = re.compile(
    r"(?:exit(?:ed with)? code|returncode|return code|exit status)\W{0,3}(-?\d{1,9})", re.IGNORECASE
)
_MESSAGE_TYPES = {
    "ai",
    "human",
    "system",
    "tool",
    "function",
    "AIMessage",
    "HumanMessage",
    "SystemMessage",
    "ToolMessage",
}
_PART_TYPES = {
    "text", "thinking", "redacted_thinking", "reasoning", "reasoning_content", "image", "image_url", "audio", "input_audio",
    "file", "document", "video", "tool_use", "tool_call", "tool_call_chunk", "function_call", "custom_tool_call",
    "tool_result", "server_tool_use", "server_tool_call", "server_tool_result", "web_search_call", "web_search_tool_result",
    "web_search_result", "refusal", "output_text", "input_text",
}  # fmt: skip
"""Parts of a message that are read, or repeat what its `tool_calls` have, or do nothing in the repository."""
_REFUSAL = re.compile(
    r"^Error\b|^ERROR\b|No replacement was performed|not found in file|String not found", re.MULTILINE
)


def find_messages(data: Any) -> list[RawMessage] | None:
    """The messages of a dump as flat mappings; None if it contains no assistant message."""
    messages = list_messages(data)
    return messages if messages is not None and any(message_type(m) == "ai" for m in messages) else None


def list_messages(data: Any) -> list[RawMessage] | None:
    """The messages of a dump as flat mappings, also without an assistant message; None if it has no messages."""
    for key in ("values", "state", "output"):
        if isinstance(data, Mapping) and isinstance(data.get(key), Mapping) and "messages" in data[key]:
            data = data[key]
    if isinstance(data, Mapping):
        data = data.get("messages")
    if not isinstance(data, list) or not data:
        return None
    messages: list[RawMessage] = []
    for item in data:
        message = flatten_message(item)
        if message is None:
            return None
        messages += split_results(message)
    return messages


def has_messages(data: Any) -> bool:
    return find_messages(data) is not None


def read(data: Any, name: str) -> RecordedRun:
    """Read assistant messages with tool calls, and the tool messages with the same call ids."""
    messages = find_messages(data) or []
    calls = [
        call for message, answers in pair_tool_messages(messages) for call in read_calls(message, answers)
    ]
    task = next((extract_text(m.get("content")) for m in messages if message_type(m) == "human"), "")
    return RecordedRun(
        id=name,
        format="langchain",
        calls=calls,
        task=task,
        model=find_model(messages),
        unknown_items=count_forms(list_unknown(messages)),
    )


def list_unknown(messages: Sequence[RawMessage]) -> Iterator[str]:
    """Yield a name for each call in a form that is not read: old function calls, and unknown parts of messages."""
    for message in messages:
        if message_type(message) == "function":
            yield "function message"
        if to_mapping(message.get("additional_kwargs")).get("function_call"):
            yield "function_call"
        for part in to_mappings(message.get("content")):
            if str(part.get("type")) not in _PART_TYPES and tool_calls.may_carry_call(part):
                yield str(part.get("type"))


def pair_tool_messages(messages: Sequence[RawMessage]) -> Iterator[tuple[RawMessage, ToolMessages]]:
    """Yield every assistant message with the tool messages that answer its calls."""
    steps: list[CallStep] = []
    replies: list[tuple[RawMessage, range]] = []
    count = 0
    for number, message in enumerate(messages):
        kind = message_type(message)
        if kind == "ai":
            ids = list_call_ids(message)
            steps += [CallStep(None), *(CallStep(each, call=n) for n, each in enumerate(ids, count))]
            replies.append((message, range(count, count + len(ids))))
            count += len(ids)
        elif kind == "tool":
            steps.append(CallStep(to_id(message.get("tool_call_id")), result=number))
    results = match_results(steps)
    for message, calls in replies:
        yield message, {n: messages[results[call]] for n, call in enumerate(calls) if call in results}


def list_call_ids(message: RawMessage) -> list[str | None]:
    """The ids of the calls of an assistant message, in order."""
    return [to_id(call_id) for _, _, call_id in _list_tool_calls(message)]


def read_calls(message: RawMessage, tool_messages: ToolMessages) -> Iterator[RecordedCall]:
    """Yield the calls of one assistant message, without thoughts."""
    thought = extract_text(message.get("content"))
    usage = parse_usage(message.get("usage_metadata") or message.get("usage"))
    for position, (call_name, arguments, _) in enumerate(_list_tool_calls(message)):
        if tool_calls.is_thought(call_name):
            continue
        tool, normalized = tool_calls.normalize_call(call_name, arguments)
        answer = tool_messages.get(position)
        text = join_text(thought if position == 0 else "", normalized["command"] if tool == "shell" else "")
        yield RecordedCall(
            text, tool, normalized, _read_result(tool, normalized, answer), usage if position == 0 else None
        )


def find_model(messages: Sequence[RawMessage]) -> str:
    """The first model named in the messages."""
    names = (to_mapping(message.get("response_metadata")).get("model_name") for message in messages)
    return next((str(name) for name in names if name), "")


def _read_result(
    tool: str, arguments: Mapping[str, str], tool_message: Mapping[str, Any] | None
) -> RecordedResult | None:
    if tool_message is None:
        return None
    text = extract_text(tool_message.get("content"))
    is_error = tool_message.get("status") == "error"
    artifact = tool_message.get("artifact")
    code = next(
        (
            artifact[k]
            for k in ("exit_code", "returncode")
            if isinstance(artifact, Mapping) and isinstance(artifact.get(k), int)
        ),
        None,
    )
    if code is None and tool == "shell":
        match = _EXIT_CODE.search(text[:200]) or _EXIT_CODE.search(text[-200:])
        code = int(match[1]) if match else None
    is_edit = tool == "editor" and arguments.get("command") != "view"
    refused = (is_error and tool != "shell") or (is_edit and _REFUSAL.search(text) is not None)
    return RecordedResult(text, exit_code=code, refused=refused, output=text)


def _list_tool_calls(message: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], Any]]:
    calls = []
    raw = message.get("tool_calls") or (message.get("additional_kwargs") or {}).get("tool_calls") or []
    for call in raw:
        if not isinstance(call, Mapping):
            continue
        function = to_mapping(call.get("function")) or call
        arguments = function.get("args", function.get("arguments", {}))
        if isinstance(arguments, str):
            try:
                arguments = parse_json(arguments, strict=False)
            except ValueError:
                arguments = {}
        calls.append(
            (
                str(function.get("name") or ""),
                arguments if isinstance(arguments, Mapping) else {},
                call.get("id"),
            )
        )
    for call in message.get("invalid_tool_calls") or []:
        if isinstance(call, Mapping):
            calls.append((str(call.get("name") or ""), {}, call.get("id")))
    if not calls and isinstance(message.get("content"), Sequence) and not isinstance(message["content"], str):
        for part in message["content"]:
            if isinstance(part, Mapping) and part.get("type") == "tool_use":
                tool_input = part.get("input")
                calls.append(
                    (
                        str(part.get("name") or ""),
                        tool_input if isinstance(tool_input, Mapping) else {},
                        part.get("id"),
                    )
                )
    return calls


def flatten_message(item: Any) -> Mapping[str, Any] | None:
    """Convert a message to one mapping: from its object, its dump or the constructor form of `dumpd`."""
    if isinstance(item, BaseMessage):
        return item.model_dump()
    if not isinstance(item, Mapping):
        return None
    if item.get("type") == "constructor" and isinstance(item.get("kwargs"), Mapping):
        kind = str((item.get("id") or [""])[-1])
        return {**item["kwargs"], "type": kind}
    if isinstance(item.get("data"), Mapping) and str(item.get("type")) in _MESSAGE_TYPES:
        return {**item["data"], "type": item["type"]}
    return (
        item
        if str(item.get("type")) in _MESSAGE_TYPES
        or item.get("role") in ("assistant", "user", "system", "tool")
        else None
    )


def split_results(message: RawMessage) -> list[RawMessage]:
    """A message of a user as one message for each result of a tool in it, as Anthropic's API has them, and one for the rest."""
    content = message.get("content")
    if not isinstance(content, list) or message_type(message) != "human":
        return [message]
    results = [part for part in content if to_mapping(part).get("type") == "tool_result"]
    rest = [part for part in content if to_mapping(part).get("type") != "tool_result"]
    answers = [
        {"type": "tool", "tool_call_id": part.get("tool_use_id"), "content": part.get("content"),
         "status": "error" if part.get("is_error") is True else "success"}
        for part in results
    ]  # fmt: skip
    return [*answers, *([{**message, "content": rest}] if rest or not results else [])]


def message_type(message: RawMessage) -> str:
    """Return `ai`, `human`, `system` or `tool` for any notation of a dump."""
    kind = str(message.get("type") or "").removesuffix("Chunk")
    by_role = {"assistant": "ai", "user": "human"}
    kind = (
        kind
        if kind in _MESSAGE_TYPES
        else by_role.get(str(message.get("role")), str(message.get("role") or ""))
    )
    return kind.removesuffix("Message").lower()
