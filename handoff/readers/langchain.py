"""Runs kept as LangChain messages: serialised lists, LangGraph states, or the message objects themselves."""

from __future__ import annotations

import json
import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_takeover.handoff.readers import tool_names
from langgraph_takeover.handoff.readers.recorded_run import (
    RecordedCall,
    RecordedResult,
    RecordedRun,
    extract_text,
    join_text,
    parse_usage,
    to_id,
    to_mapping,
)

RawMessage = Mapping[str, Any]
ToolMessages = Mapping[str | None, RawMessage]
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
_REFUSAL = re.compile(
    r"^Error\b|^ERROR\b|No replacement was performed|not found in file|String not found", re.MULTILINE
)


def find_messages(data: Any) -> list[RawMessage] | None:
    """The messages of a dump, each a flat mapping; None if it is none."""
    kept = list_messages(data)
    return kept if kept is not None and any(message_type(m) == "ai" for m in kept) else None


def list_messages(data: Any) -> list[RawMessage] | None:
    """The same, also where no assistant has spoken yet."""
    for key in ("values", "state", "output"):
        if isinstance(data, Mapping) and isinstance(data.get(key), Mapping) and "messages" in data[key]:
            data = data[key]
    if isinstance(data, Mapping):
        data = data.get("messages")
    if not isinstance(data, list) or not data:
        return None
    found = [_flatten_message(item) for item in data]
    if any(message is None for message in found):
        return None
    return [message for message in found if message is not None]


def has_messages(data: Any) -> bool:
    return find_messages(data) is not None


def read(data: Any, name: str) -> RecordedRun:
    """Assistant messages with tool calls, answered by tool messages of the same call id."""
    messages = find_messages(data) or []
    calls = [
        call for message, answers in pair_tool_messages(messages) for call in read_calls(message, answers)
    ]
    task = next((extract_text(m.get("content")) for m in messages if message_type(m) == "human"), "")
    return RecordedRun(id=name, format="langchain", calls=calls, task=task, model=find_model(messages))


def pair_tool_messages(messages: Sequence[RawMessage]) -> Iterator[tuple[RawMessage, ToolMessages]]:
    """Every message of an assistant, with the tool messages that may answer its calls."""
    # Some servers count the calls of each reply anew: only an id that is called once is looked for anywhere.
    ids = Counter(to_id(call[2]) for m in messages if message_type(m) == "ai" for call in _list_tool_calls(m))
    anywhere = {to_id(m.get("tool_call_id")): m for m in messages if message_type(m) == "tool"}
    once = {name: answer for name, answer in anywhere.items() if ids[name] == 1}
    for place, message in enumerate(messages):
        if message_type(message) == "ai":
            later = (messages[n] for n in range(place + 1, len(messages)))
            near = takewhile(lambda m: message_type(m) != "ai", later)
            own = {to_id(m.get("tool_call_id")): m for m in near if message_type(m) == "tool"}
            yield message, ChainMap(own, once)


def read_calls(message: RawMessage, tool_messages: ToolMessages) -> Iterator[RecordedCall]:
    """What one message of an assistant calls; thoughts are no calls."""
    thought = extract_text(message.get("content"))
    usage = parse_usage(message.get("usage_metadata") or message.get("usage"))
    for position, (call_name, arguments, call_id) in enumerate(_list_tool_calls(message)):
        if tool_names.is_thought(call_name):
            continue
        tool, ours = tool_names.normalize_call(call_name, arguments)
        answer = tool_messages.get(to_id(call_id))
        text = join_text(thought if position == 0 else "", ours["command"] if tool == "shell" else "")
        yield RecordedCall(
            text, tool, ours, _read_result(tool, ours, answer), usage if position == 0 else None
        )


def find_model(messages: Sequence[RawMessage]) -> str:
    """The model that the messages name first."""
    told = (to_mapping(message.get("response_metadata")).get("model_name") for message in messages)
    return next((str(name) for name in told if name), "")


def _read_result(
    tool: str, arguments: Mapping[str, str], tool_message: Mapping[str, Any] | None
) -> RecordedResult | None:
    if tool_message is None:
        return None
    text = extract_text(tool_message.get("content"))
    failed = tool_message.get("status") == "error"
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
        found = _EXIT_CODE.search(text[:200]) or _EXIT_CODE.search(text[-200:])
        code = int(found[1]) if found else None
    edits = tool == "editor" and arguments.get("command") != "view"
    refused = (failed and tool != "shell") or (edits and _REFUSAL.search(text) is not None)
    return RecordedResult(text, exit_code=code, refused=refused, output=text)


def _list_tool_calls(message: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], Any]]:
    found = []
    raw = message.get("tool_calls") or (message.get("additional_kwargs") or {}).get("tool_calls") or []
    for call in raw:
        if not isinstance(call, Mapping):
            continue
        function = to_mapping(call.get("function")) or call
        arguments = function.get("args", function.get("arguments", {}))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments, strict=False)
            except ValueError:
                arguments = {}
        found.append(
            (
                str(function.get("name") or ""),
                arguments if isinstance(arguments, Mapping) else {},
                call.get("id"),
            )
        )
    for call in message.get("invalid_tool_calls") or []:
        if isinstance(call, Mapping):
            found.append((str(call.get("name") or ""), {}, call.get("id")))
    if not found and isinstance(message.get("content"), Sequence) and not isinstance(message["content"], str):
        for part in message["content"]:
            if isinstance(part, Mapping) and part.get("type") == "tool_use":
                given = part.get("input")
                found.append(
                    (str(part.get("name") or ""), given if isinstance(given, Mapping) else {}, part.get("id"))
                )
    return found


def _flatten_message(item: Any) -> Mapping[str, Any] | None:
    """A message as one mapping, from its object, its dump, or the constructor form of `dumpd`."""
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


def message_type(message: RawMessage) -> str:
    """`ai`, `human`, `system` or `tool`, however a dump says so."""
    kind = str(message.get("type") or "").removesuffix("Chunk")
    by_role = {"assistant": "ai", "user": "human"}
    kind = (
        kind
        if kind in _MESSAGE_TYPES
        else by_role.get(str(message.get("role")), str(message.get("role") or ""))
    )
    return kind.removesuffix("Message").lower()
