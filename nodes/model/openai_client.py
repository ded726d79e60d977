"""OpenAI's client for servers of other vendors: streamed calls, ids and arguments of other types, and additional fields."""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain_core.messages import AIMessage

from langgraph_takeover.base.untrusted_input import parse_json
from langgraph_takeover.nodes.model.endpoint_rules import MALFORMED
from langgraph_takeover.nodes.model.provider_fields import add_fields, name_endpoint, read_fields

_CONVERT, _CREATE, _BUILD = (
    "_convert_chunk_to_generation_chunk",
    "_create_chat_result",
    "_get_request_payload",
)


def is_openai(model: Any) -> bool:
    # If the library is not imported, the model is not from it.
    library = sys.modules.get("langchain_openai.chat_models.base")
    return library is not None and isinstance(model, library.BaseChatOpenAI)


def complete_client(model: Any) -> Any:
    """Return an OpenAI client that keeps what LangChain's loses; any other model unchanged.

    Streamed fragments of a call whose id changes are joined: LangChain splits the call there, and what comes before would
    run with arguments that are cut off; it drops fragments without an index. Arguments may be an object instead of its
    text, or the text of its text; an id may be a number, and the role missing. Additional fields of replies are kept, and
    sent back.
    """
    if not is_openai(model) or not hasattr(model, _CONVERT):
        return model
    convert, create, build = (getattr(type(model), name) for name in (_CONVERT, _CREATE, _BUILD))
    place = -1

    def convert_joined(chunk: dict[str, Any], *arguments: Any) -> Any:
        nonlocal place
        choices = chunk.get("choices") or ()
        for choice in choices:
            for fragment in (choice.get("delta") or {}).get("tool_calls") or ():
                # Only the first fragment of a call has its name.
                if (fragment.get("function") or {}).get("name"):
                    place += 1
                else:
                    fragment["id"] = None
                if fragment.get("index") is None:
                    fragment["index"] = max(place, 0)
                _write_as_text(fragment)
        converted = convert(model, chunk, *arguments)
        if choices and converted is not None:
            _keep_fields(converted.message, choices[0].get("delta"), is_streamed=True)
        return converted

    def create_complete(response: Any, *arguments: Any, **settings: Any) -> Any:
        choices = _get(response, "choices") or ()
        for choice in choices:
            if (message := _get(choice, "message")) and not _get(message, "role"):
                _set(message, "role", "assistant")
            for call in _get(message, "tool_calls") or ():
                _write_as_text(call)
                _write_object(_get(call, "function"))
        result = create(model, response, *arguments, **settings)
        for choice, generation in zip(choices, result.generations, strict=True):
            _keep_fields(generation.message, _get(choice, "message"))
        return result

    def build_complete(input_: Any, **settings: Any) -> Any:
        payload = build(model, input_, **settings)
        if "messages" in payload:
            add_fields(payload["messages"], model._convert_input(input_).to_messages(), name_endpoint(model))
        return payload

    completed = model.model_copy()
    vars(completed).update({_CONVERT: convert_joined, _CREATE: create_complete, _BUILD: build_complete})
    return completed


def _keep_fields(message: Any, sent: Any, *, is_streamed: bool = False) -> None:
    if isinstance(message, AIMessage) and sent is not None:
        message.additional_kwargs.update(read_fields(sent, is_streamed=is_streamed))


def _write_as_text(call: Any) -> None:
    """Replace a call's id and arguments by their text, if they are of another type."""
    if isinstance(number := _get(call, "id"), int):
        _set(call, "id", str(number))
    function = _get(call, "function")
    arguments = _get(function, "arguments")
    if arguments is not None and not isinstance(arguments, str):
        _set(function, "arguments", json.dumps(arguments))


def _write_object(function: Any) -> None:
    """Replace whole arguments that are not an object: LangChain would refuse the reply, instead of the call."""
    text = _get(function, "arguments")
    if not isinstance(text, str) or text.lstrip().startswith("{"):
        return
    if isinstance(value := _decode(text), str):
        value = _decode(text := value)
    if value and not isinstance(value, dict):
        text = json.dumps({MALFORMED: text})
    _set(function, "arguments", text)


def _decode(text: str) -> Any:
    try:
        return parse_json(text, strict=False)
    except ValueError:
        return None


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _set(value: Any, name: str, text: str) -> None:
    if isinstance(value, dict):
        value[name] = text
    else:
        setattr(value, name, text)
