"""Turns of a request and replies to it as LangChain messages, checked."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata

from langgraph_takeover.nodes.external.apis.model_request import (
    CUSTOM_ARGUMENT,
    Api,
    HttpReply,
    ModelRequest,
    RequestError,
    check_numbers,
    list_objects,
)
from langgraph_takeover.nodes.model.endpoint_rules import NO_RESULT, pair_results
from langgraph_takeover.nodes.model.message_content import HAS_THOUGHT, WIRE_REPLY
from langgraph_takeover.nodes.model.model_errors import ModelError, classify_code, format_error_line
from langgraph_takeover.nodes.model.refusals import list_texts
from langgraph_takeover.nodes.model.usage import make_storable, measure_usage

_MAX_REPORTED_TOKENS = 200_000


def count_results(request: ModelRequest) -> Counter[str]:
    """Count the results in a request by the ids of their calls, which endpoints use again."""
    return Counter(
        each.tool_call_id
        for each in request.messages
        if isinstance(each, ToolMessage) and each.text != NO_RESULT
    )


def limit_usage(reply: AIMessage) -> AIMessage:
    """Return a reply whose reported prompt keeps agents from compacting: Codex does above 258,000 tokens."""
    usage = reply.usage_metadata
    if usage is None or usage["input_tokens"] <= _MAX_REPORTED_TOKENS:
        return reply
    total = _MAX_REPORTED_TOKENS + usage["output_tokens"]
    limited = UsageMetadata(
        input_tokens=_MAX_REPORTED_TOKENS, output_tokens=usage["output_tokens"], total_tokens=total
    )
    return reply.model_copy(update={"usage_metadata": limited})


_CLIENT_TOOLS: dict[Api, re.Pattern[str]] = {
    "responses": re.compile(r"function|custom|local_shell"),
    "messages": re.compile(r"custom|(?:bash|text_editor|computer|memory)_\d{1,20}"),
    "chat": re.compile(r"function|custom"),
}
"""Types of tools that the agent itself carries out."""
_VENDOR_FIELDS: dict[Api, tuple[str, ...]] = {
    "responses": ("background", "conversation", "previous_response_id", "prompt"),
    "messages": ("container", "mcp_servers"),
    "chat": ("web_search_options",),
}
_COMMON_FIELDS = (
    "metadata",
    "model",
    "service_tier",
    "stream",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
)
_OPENAI_FIELDS = (
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "stream_options",
    "top_logprobs",
    "user",
)
_PASSED_FIELDS: dict[Api, frozenset[str]] = {
    "responses": frozenset(
        (
            *_COMMON_FIELDS,
            *_OPENAI_FIELDS,
            *("client_metadata", "context_management", "include", "input", "instructions"),
            *("max_output_tokens", "store", "text", "truncation"),
        )
    ),
    "messages": frozenset(
        (
            *_COMMON_FIELDS,
            *("cache_control", "context_management", "max_tokens", "messages", "output_config"),
            *("output_format", "stop_sequences", "system", "thinking", "top_k"),
        )
    ),
    "chat": frozenset(
        (
            *_COMMON_FIELDS,
            *_OPENAI_FIELDS,
            *("chat_template_kwargs", "enable_thinking", "frequency_penalty", "logit_bias", "logprobs"),
            *("max_completion_tokens", "max_tokens", "messages", "min_p", "presence_penalty"),
            *("reasoning_effort", "repetition_penalty", "response_format", "seed", "stop"),
            *("thinking", "thinking_budget", "top_k", "verbosity"),
        )
    ),
}
"""The fields that change how the model answers, and nothing else; servers of other vendors search by fields of their own."""
_OVERWRITTEN_FIELDS: dict[Api, dict[str, Any]] = {"responses": {"store": False}, "messages": {}, "chat": {}}
_NORMAL_TIERS = (None, "auto", "default", "standard_only")
_SMALL_MODEL = re.compile(r"claude-(?:[\d-]{1,10})?haiku[\w.-]{0,50}")
"""Claude Code uses the vendor's cheapest model for side tasks."""
_FORBIDDEN = 403


def check_vendor_request(request: ModelRequest, model: str | None) -> None:
    """Raise RequestError if a request needs more of the vendor than its model.

    Args:
        model: the run's model; None if the run decides none.
    """
    body = request.body
    if model is not None and request.model != model and not _SMALL_MODEL.fullmatch(request.model):
        raise RequestError(f"the request is for another model than the run's, {model}", _FORBIDDEN)
    for name in _VENDOR_FIELDS[request.api]:
        if body.get(name):
            raise RequestError(f"`{name}` is not available in the sandbox", _FORBIDDEN)
    if body.get("service_tier") not in _NORMAL_TIERS:
        raise RequestError("`service_tier` must be the default", _FORBIDDEN)
    _check_tools(request.api, body.get("tools"))
    if request.api == "responses" and isinstance(body.get("input"), list):
        for item in body["input"]:
            kind = item.get("type")
            if kind == "item_reference" or (kind is None and "role" not in item):
                raise RequestError("references to stored items are not available in the sandbox", _FORBIDDEN)
            _check_tools(request.api, item.get("tools"))


def select_vendor_fields(request: ModelRequest, body: bytes) -> bytes:
    """Return a request's body with the fields that pass on; the same bytes if it has no others."""
    overwritten = _OVERWRITTEN_FIELDS[request.api]
    kept = {name: value for name, value in request.body.items() if name in _PASSED_FIELDS[request.api]}
    if len(kept) == len(request.body) and all(kept.get(name) is value for name, value in overwritten.items()):
        return body
    return json.dumps(kept | overwritten).encode()


def _check_tools(api: Api, tools: Any) -> None:
    for tool in list_objects(tools, "tools"):
        kind = str(tool.get("type", "custom"))
        if api == "responses" and kind == "namespace":
            _check_tools(api, tool.get("tools"))
        elif not _CLIENT_TOOLS[api].fullmatch(kind):
            raise RequestError(f"the vendor's tool {kind[:50]!r} is not available in the sandbox", _FORBIDDEN)


def check_inline(part: Any) -> None:
    """Raise RequestError if an image or a file is an address or a stored file, which the vendor would fetch."""
    if isinstance(part, list):
        for each in part:
            check_inline(each)
    if not isinstance(part, dict):
        return
    for name, value in part.items():
        is_address = isinstance(value, str) and name in ("url", "image_url", "file_url", "video_url")
        if (is_address and not value.startswith("data:")) or (name == "file_id" and value):
            raise RequestError("an image or file must be in the request itself", _FORBIDDEN)
        check_inline(value)


_TEXT_PARTS = ("text", "input_text", "output_text", "summary_text", "refusal")
_IMAGE_PARTS = ("image", "input_image", "image_url")
_FILE_PARTS = ("document", "input_file", "file", "input_audio", "audio", "video_url")
_MAX_ID_CHARS = 200


class Call(NamedTuple):
    """A tool call; `arguments` is JSON text, or None if `args` holds them."""

    id: str
    name: str
    args: dict[str, Any] | None
    arguments: str = ""
    """The text of arguments that are not a JSON object."""


class Conversation:
    """The messages of a request, in order.

    Args:
        accept_images: replace images and files by a marker, because the request itself is passed on unchanged.
    """

    def __init__(self, *, accept_images: bool) -> None:
        self._accept_images = accept_images
        self._system: list[str] = []
        self._messages: list[BaseMessage] = []
        self._texts: list[str] = []
        """Text of the assistant's turn that is being read."""
        self._calls: list[Call] = []
        """Calls of that turn."""

    def add_system(self, content: Any) -> None:
        """Add system text. After the first turn it is a user message, because many endpoints accept one system message."""
        text = self.read_text(content)
        if text and (self._messages or self._texts or self._calls):
            self.add_user(text)
        elif text:
            self._system.append(text)

    def add_user(self, content: Any) -> None:
        """Add a message of the user, unless it has no text."""
        text = self.read_text(content)
        if text:
            self._end_turn()
            self._messages.append(HumanMessage(text))

    def add_reply(self, content: Any = None, calls: tuple[Call, ...] = ()) -> None:
        """Add text and calls of the assistant. Until another message follows, they belong to one turn."""
        text = self.read_text(content)
        if text:
            self._texts.append(text)
        self._calls += calls

    def add_result(self, call_id: Any, content: Any, *, is_error: bool = False) -> None:
        """Add the result of a call. Raises RequestError for an invalid id."""
        self._end_turn()
        status: Any = "error" if is_error else "success"
        self._messages.append(
            ToolMessage(self.read_text(content), tool_call_id=check_id(call_id), status=status)
        )

    def finish(self) -> list[BaseMessage]:
        """Return the messages: system text first, and after each call its result."""
        self._end_turn()
        system = [SystemMessage("\n\n".join(self._system))] if self._system else []
        return [*system, *pair_results(self._messages)]

    def read_text(self, content: Any) -> str:
        """Return the text of a content, which is text or a list of parts; thoughts are left out. Raises RequestError."""
        if content is None or isinstance(content, str):
            return content or ""
        if not isinstance(content, list):
            raise RequestError("`content` must be text or a list of parts")
        return "\n".join(text for text in map(self._read_part, content) if text)

    def _read_part(self, part: Any) -> str:
        if isinstance(part, str):
            return part
        if not isinstance(part, dict):
            raise RequestError("a part of `content` must be an object")
        kind = part.get("type")
        if kind in (*_IMAGE_PARTS, *_FILE_PARTS):
            article, name = ("an", "image") if kind in _IMAGE_PARTS else ("a", "file")
            if self._accept_images:
                check_inline(part)
                return f"[{name}]"
            raise RequestError(
                f"the request has {article} {name}, which the runtime does not translate"
                " (use text only, or pass requests through to the vendor's endpoint)"
            )
        text = part.get("refusal") if kind == "refusal" else part.get("text")
        return text if kind in _TEXT_PARTS and isinstance(text, str) else ""

    def _end_turn(self) -> None:
        if self._texts or self._calls:
            self._messages.append(build_reply("\n".join(self._texts), self._calls))
            self._texts, self._calls = [], []


def build_reply(text: str, calls: list[Call], **fields: Any) -> AIMessage:
    """Return a reply; a call whose arguments are no JSON object becomes an invalid tool call."""
    return AIMessage(
        content=text,
        tool_calls=[
            {"name": call.name, "args": call.args, "id": call.id, "type": "tool_call"}
            for call in calls
            if call.args is not None
        ],
        invalid_tool_calls=[
            {
                "name": call.name,
                "args": call.arguments,
                "id": call.id,
                "error": "the arguments are not a JSON object",
                "type": "invalid_tool_call",
            }
            for call in calls
            if call.args is None
        ],
        **fields,
    )


def read_call(call_id: Any, name: Any, arguments: Any) -> Call:
    """Return a call whose arguments are an object or JSON text. Raises RequestError."""
    call_id, name = check_id(call_id), check_id(name)
    if isinstance(arguments, dict):
        check_numbers(arguments)
        return Call(call_id, name, arguments)
    text = arguments if isinstance(arguments, str) else ""
    try:
        args = json.loads(text, strict=False, parse_constant=_refuse_constant) if text.strip() else {}
        args = make_storable(args)
        check_numbers(args)
    except (ValueError, RecursionError):
        return Call(call_id, name, None, text)
    return Call(call_id, name, args) if isinstance(args, dict) else Call(call_id, name, None, text)


def read_custom_call(call_id: Any, name: Any, text: Any) -> Call:
    """Return a call with free text. Raises RequestError."""
    return Call(check_id(call_id), check_id(name), {CUSTOM_ARGUMENT: text if isinstance(text, str) else ""})


def check_id(value: Any) -> str:
    """Return the id of a call or the name of a tool. Raises RequestError."""
    if not isinstance(value, str) or not value or len(value) > _MAX_ID_CHARS:
        raise RequestError("a tool call or result has no valid id or name")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


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
