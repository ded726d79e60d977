"""Reading and writing of requests, replies and errors in each API's form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.handoff.views import CHARS_PER_TOKEN
from langgraph_takeover.nodes.external.apis import chat, messages, responses
from langgraph_takeover.nodes.external.apis.model_request import (
    Api,
    HttpReply,
    ModelRequest,
    RequestError,
    RequestParts,
)
from langgraph_takeover.nodes.external.apis.wire_turns import (
    ReplyParts,
    VendorReply,
    read_reply,
    unpack_wire_reply,
)
from langgraph_takeover.nodes.model.model_errors import ContextWindowError, ModelError
from langgraph_takeover.nodes.model.usage import count_chars, make_storable

JSON_TYPE = "application/json"
EVENT_STREAM_TYPE = "text/event-stream"
MAX_REQUEST_VALUES = 200_000
"""JSON values of a request: a history of some 20,000 steps has as many."""
_MAX_KEYS = 1_000
_MAX_MODEL_CHARS = 200
_OPENAI_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_ANTHROPIC_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class _ApiFormat(NamedTuple):
    """The functions of one API."""

    read_request: Callable[..., RequestParts]
    write_document: Callable[[ModelRequest, ReplyParts], dict[str, Any]]
    write_events: Callable[[ModelRequest, ReplyParts], Iterator[dict[str, Any]]]
    read_document: Callable[[dict[str, Any]], VendorReply]
    read_events: Callable[[Sequence[dict[str, Any]]], VendorReply]


_FORMATS: dict[Api, _ApiFormat] = {
    "responses": _ApiFormat(
        responses.read_request,
        responses.write_document,
        responses.write_events,
        responses.read_document,
        responses.read_events,
    ),
    "messages": _ApiFormat(
        messages.read_request,
        messages.write_document,
        messages.write_events,
        messages.read_document,
        messages.read_events,
    ),
    "chat": _ApiFormat(
        chat.read_request, chat.write_document, chat.write_events, chat.read_document, chat.read_events
    ),
}


def parse_request(api: Api, body: bytes, *, accept_images: bool = False) -> ModelRequest:
    """Return a model request, whatever the bytes are. Raises RequestError with an HTTP status.

    Args:
        accept_images: replace images and files by a marker; for requests that are passed on unchanged.
    """
    try:
        document = make_storable(
            parse_json(
                body, max_values=MAX_REQUEST_VALUES, max_keys=_MAX_KEYS, nan_as_none=True, unique_keys=True
            )
        )
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the request is not JSON within the limits: {_describe(error)}") from None
    if not isinstance(document, dict):
        raise RequestError("the request is not a JSON object")
    model = document.get("model")
    if not isinstance(model, str) or len(model) > _MAX_MODEL_CHARS:
        raise RequestError("`model` must be the name of a model")
    parts = _FORMATS[api].read_request(document, accept_images=accept_images)
    if not parts.messages:
        raise RequestError("the request has no messages")
    return ModelRequest(
        api=api,
        model=model,
        messages=parts.messages,
        tools=parts.tools,
        stream=document.get("stream") is True,
        body=document,
        custom_tools=parts.custom_tools,
    )


def _describe(error: Exception) -> str:
    """Return the reason without any text of the request."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)[:200] if isinstance(error, ValueError) else f"{type(error).__name__} while reading it"


def write_reply(request: ModelRequest, reply: AIMessage) -> HttpReply:
    """Return a reply in the form that the request asks for; a vendor's own bytes are returned unchanged."""
    wire = unpack_wire_reply(reply)
    if wire is not None:
        return wire
    form, parts = _FORMATS[request.api], read_reply(request, reply)
    if not request.stream:
        return HttpReply(JSON_TYPE, json.dumps(form.write_document(request, parts)).encode())
    lines = []
    for event in form.write_events(request, parts):
        if request.api != "chat":
            lines.append(f"event: {event['type']}\n")
        lines.append(f"data: {json.dumps(event)}\n\n")
    if request.api == "chat":
        lines.append("data: [DONE]\n\n")
    return HttpReply(EVENT_STREAM_TYPE, "".join(lines).encode())


def write_error(api: Api, status: int, message: str, *, code: str | None = None) -> HttpReply:
    """Return an error in the API's form."""
    if api == "messages":
        default = "invalid_request_error" if status < 500 else "api_error"
        details = {"type": _ANTHROPIC_ERROR_TYPES.get(status, default), "message": message}
        return HttpReply(JSON_TYPE, json.dumps({"type": "error", "error": details}).encode(), status)
    kind = _OPENAI_ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"message": message, "type": kind, "param": None, "code": code}
    return HttpReply(JSON_TYPE, json.dumps({"error": error}).encode(), status)


def estimate_request_tokens(request: ModelRequest) -> int:
    """Return the tokens of a request's messages and tools, at four characters each."""
    chars = count_chars(request.messages) + sum(len(json.dumps(tool)) for tool in request.tools)
    return -(-chars // CHARS_PER_TOKEN)


def parse_reply(api: Api, content_type: str, body: bytes) -> AIMessage:
    """Return a vendor's own reply. Raises ModelError if it is malformed, was cut off, or reports an error."""
    form = _FORMATS[api]
    try:
        if content_type.partition(";")[0].strip().lower() == EVENT_STREAM_TYPE:
            return form.read_events(_parse_events(body)).build_message()
        document = make_storable(parse_json(body))
        if not isinstance(document, dict):
            raise ModelError("the endpoint's answer is malformed: it is not a JSON object")
        return form.read_document(document).build_message()
    except ContextWindowError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        # A field of another type than the API's; the readers raise these for no other reason.
        raise ModelError(f"the endpoint's answer is malformed: {_describe(error)}") from None


def _parse_events(body: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of an event stream; the last event counts only if a blank line ends it."""
    events = []
    data: list[str] = []
    for line in body.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            text = "\n".join(data)
            data = []
            if text.strip() != "[DONE]":
                event = make_storable(parse_json(text))
                if not isinstance(event, dict):
                    raise ModelError("the endpoint's answer is malformed: an event is not a JSON object")
                events.append(event)
    return events
