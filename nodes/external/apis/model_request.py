"""A model request of an external agent, and the HTTP reply to it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from langchain_core.messages import BaseMessage

from langgraph_takeover.base.takeover_error import TakeoverError

Api = Literal["responses", "messages", "chat"]
"""OpenAI Responses, Anthropic Messages, OpenAI chat completions."""
MODEL_PATHS: dict[Api, str] = {
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "chat": "/v1/chat/completions",
}
CUSTOM_ARGUMENT = "input"
"""The one argument of a custom tool, whose calls have free text instead of JSON."""
_MAX_ITEMS = 20_000
"""Messages, content parts and tools of a request: each becomes an object of about 2 kB."""
_MAX_TOOLS = 512
_MAX_NAME_CHARS = 200
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


class RequestError(TakeoverError, ValueError):
    """A request cannot be read or answered; `status` is the HTTP status of the refusal."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class HttpReply(NamedTuple):
    """A complete HTTP reply."""

    content_type: str
    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers."""


class WireRequest(NamedTuple):
    """A request as an agent sent it."""

    target: str
    """Path and query, such as `/v1/messages?beta=true`."""
    headers: Mapping[str, str]
    """With names in lower case, without keys and cookies."""
    body: bytes


@dataclass(frozen=True)
class ModelRequest:
    """A model request in the terms of LangChain."""

    api: Api
    model: str
    messages: list[BaseMessage]
    """A system message first, if there is system text."""
    tools: tuple[dict[str, Any], ...]
    """OpenAI's function schemas, for `bind_tools`."""
    stream: bool
    body: dict[str, Any] = field(repr=False)
    """The parsed JSON body."""
    custom_tools: frozenset[str] = frozenset()
    """Tools whose calls have free text; here they are functions with one argument."""
    wire: WireRequest | None = field(default=None, repr=False)
    """The request as it was sent, for an endpoint of the vendor; None if it was not received by a bridge."""


class RequestParts(NamedTuple):
    """What the reader of an API finds in a body."""

    messages: list[BaseMessage]
    tools: tuple[dict[str, Any], ...]
    custom_tools: frozenset[str] = frozenset()


class ToolList:
    """The tools of a request, as function schemas."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, Any]] = {}
        self._custom: set[str] = set()

    def add_function(self, tool: Mapping[str, Any], parameters: Any) -> None:
        """Add a function. Raises RequestError for an invalid name or schema."""
        name, description = tool.get("name"), tool.get("description")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise RequestError(f"a tool has the invalid name {str(name)[:_MAX_NAME_CHARS]!r}")
        if parameters is None:
            parameters = {"type": "object", "properties": {}}
        if not isinstance(parameters, dict):
            raise RequestError(f"the parameters of tool {name!r} must be a JSON schema")
        check_numbers(parameters)
        function = {
            "name": name,
            "description": description if isinstance(description, str) else "",
            "parameters": parameters,
        }
        self._schemas.setdefault(name, {"type": "function", "function": function})
        if len(self._schemas) > _MAX_TOOLS:
            raise RequestError(f"the request has more than {_MAX_TOOLS} tools")

    def add_custom(self, tool: Mapping[str, Any]) -> None:
        """Add a custom tool as a function with one argument; its grammar becomes part of the description."""
        form = tool.get("format")
        grammar = form.get("definition") if isinstance(form, dict) else None
        text = tool.get("description")
        parts = [text if isinstance(text, str) else ""]
        if isinstance(grammar, str):
            parts.append(f"The argument `{CUSTOM_ARGUMENT}` follows this grammar:\n{grammar}")
        properties = {CUSTOM_ARGUMENT: {"type": "string", "description": "The complete text of the call."}}
        parameters = {"type": "object", "properties": properties, "required": [CUSTOM_ARGUMENT]}
        self.add_function(
            {"name": tool.get("name"), "description": "\n\n".join(filter(None, parts))}, parameters
        )
        self._custom.add(tool["name"])

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._schemas.values())

    @property
    def custom(self) -> frozenset[str]:
        return frozenset(self._custom)


def check_numbers(value: Any) -> None:
    """Raise RequestError for a number that JSON cannot express: endpoints refuse such a request."""
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError("a number of the request is too large")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_numbers(item)


def list_objects(value: Any, name: str) -> list[dict[str, Any]]:
    """Return a field that must be a list of objects; an absent one is empty. Raises RequestError."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RequestError(f"`{name}` must be a list of objects")
    if len(value) > _MAX_ITEMS:
        raise RequestError(f"`{name}` has more than {_MAX_ITEMS:,} items", status=413)
    return value


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
