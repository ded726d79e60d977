"""Replies on both sides: those to an agent, and those of a vendor."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata

from langgraph_takeover.nodes.external.apis.conversation import Call, build_reply, read_call
from langgraph_takeover.nodes.external.apis.model_request import (
    CUSTOM_ARGUMENT,
    HttpReply,
    ModelRequest,
    RequestError,
)
from langgraph_takeover.nodes.model.errors import ModelError, classify_code, format_error_line
from langgraph_takeover.nodes.model.messages.content import HAS_THOUGHT, WIRE_REPLY
from langgraph_takeover.nodes.model.refusals.overflow import list_texts
from langgraph_takeover.nodes.model.usage import measure_usage

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", ""]
_MAX_WIRE_BYTES = 64 * 1024**2


class WireCall(NamedTuple):
    """A tool call as an agent receives it."""

    id: str
    name: str
    arguments: str
    """JSON text; of a custom call its free text."""
    is_custom: bool


class TokenCounts(NamedTuple):
    """Tokens of a reply; the cached ones are part of the prompt."""

    prompt: int
    cached: int
    completion: int


class ReplyParts(NamedTuple):
    """What a reply consists of, in every API."""

    id: str
    """The same for the same reply to the same request, so that a repeated delivery is equal."""
    text: str
    calls: tuple[WireCall, ...]
    finish: FinishReason
    usage: TokenCounts


def read_reply(request: ModelRequest, reply: AIMessage) -> ReplyParts:
    """Return the parts of a model's reply."""
    calls = [_read_call(request, call["id"], call["name"], call["args"]) for call in reply.tool_calls]
    calls += [
        WireCall(call["id"] or "", call["name"] or "", call["args"] or "", False)
        for call in reply.invalid_tool_calls
    ]
    finish: FinishReason = "tool_calls" if calls else "stop"
    if reply.response_metadata.get("finish_reason") in ("length", "content_filter"):
        finish = reply.response_metadata["finish_reason"]
    usage = measure_usage(reply, request.messages)
    counts = TokenCounts(usage.prompt_tokens or 0, usage.cached_tokens or 0, usage.completion_tokens or 0)
    source = json.dumps([len(request.messages), reply.text, calls])
    reply_id = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return ReplyParts(reply_id, reply.text, tuple(calls), finish, counts)


def _read_call(request: ModelRequest, call_id: str | None, name: str, args: dict[str, Any]) -> WireCall:
    if name in request.custom_tools:
        text = args.get(CUSTOM_ARGUMENT)
        return WireCall(call_id or "", name, text if isinstance(text, str) else json.dumps(args), True)
    return WireCall(call_id or "", name, json.dumps(args), False)


def pack_wire_reply(content_type: str, body: bytes) -> dict[str, str]:
    """Return a vendor's reply for `additional_kwargs`; compressed, because a stream repeats itself."""
    return {"content_type": content_type, "body": base64.b64encode(zlib.compress(body)).decode()}


def unpack_wire_reply(reply: AIMessage) -> HttpReply | None:
    """Return the vendor's own bytes, if the reply has them."""
    packed = reply.additional_kwargs.get(WIRE_REPLY)
    if not isinstance(packed, dict):
        return None
    body = zlib.decompressobj().decompress(base64.b64decode(packed["body"]), _MAX_WIRE_BYTES)
    return HttpReply(packed["content_type"], body)


@dataclass
class VendorReply:
    """A vendor's reply while it is read."""

    provider: str
    model: Any = None
    finish: FinishReason = ""
    """Empty if the reply was cut off."""
    texts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    usage: UsageMetadata | None = None
    has_thought: bool = False

    def add_text(self, text: Any) -> None:
        if isinstance(text, str) and text:
            self.texts.append(text)

    def add_call(self, call_id: Any, name: Any, arguments: Any) -> None:
        try:
            self.calls.append(read_call(call_id, name, arguments))
        except RequestError as error:
            raise ModelError(f"the endpoint's answer is malformed: {error}") from None

    def count_tokens(self, *, prompt: Any, cached: Any, completion: Any, reasoning: Any = None) -> None:
        if not all(isinstance(count, int) for count in (prompt, completion)):
            return
        self.usage = UsageMetadata(
            input_tokens=prompt,
            output_tokens=completion,
            total_tokens=prompt + completion,
            input_token_details=InputTokenDetails(cache_read=cached) if cached else InputTokenDetails(),
            output_token_details=OutputTokenDetails(reasoning=reasoning)
            if reasoning
            else OutputTokenDetails(),
        )

    def fail(self, error: Any) -> NoReturn:
        """Raise the error that the vendor sent instead of a reply."""
        details = error if isinstance(error, dict) else {"message": str(error)}
        code = str(details.get("code") or details.get("type") or "")
        line = format_error_line(str(details.get("message") or code), ())
        raise classify_code(code, list_texts(details), line)

    def build_message(self) -> AIMessage:
        """Return the reply as a message. Raises ModelError if it was cut off."""
        if not self.finish:
            raise ModelError("the reply was cut off: it ended without a finish reason")
        metadata: dict[str, Any] = {"finish_reason": self.finish, "model_provider": self.provider}
        if isinstance(self.model, str):
            metadata["model_name"] = self.model
        return build_reply(
            "\n".join(self.texts) if self.provider == "anthropic" else "".join(self.texts),
            self.calls,
            response_metadata=metadata,
            usage_metadata=self.usage,
            additional_kwargs={HAS_THOUGHT: True} if self.has_thought else {},
        )
