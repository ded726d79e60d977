"""The conversation of a request: turns of several items become LangChain messages."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_takeover.nodes.external.apis.model_request import CUSTOM_ARGUMENT, RequestError, check_numbers
from langgraph_takeover.nodes.external.apis.vendor_checks import check_inline
from langgraph_takeover.nodes.model.messages.endpoint_rules import pair_results
from langgraph_takeover.nodes.model.usage import make_storable

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
