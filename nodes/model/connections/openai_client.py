"""OpenAI's client for servers of other vendors: streamed calls, arguments that are objects, and additional fields."""

from __future__ import annotations

import json
import sys
from typing import Any

from langchain_core.messages import AIMessage

from langgraph_takeover.nodes.model.messages.provider_fields import add_fields, name_endpoint, read_fields

_CONVERT, _CREATE, _BUILD = (
    "_convert_chunk_to_generation_chunk",
    "_create_chat_result",
    "_get_request_payload",
)


def is_openai(model: Any) -> bool:
    # If nobody imported the library, the model is not from it.
    library = sys.modules.get("langchain_openai.chat_models.base")
    return library is not None and isinstance(model, library.BaseChatOpenAI)


def complete_client(model: Any) -> Any:
    """Return an OpenAI client that keeps what LangChain's loses; any other model unchanged.

    Streamed fragments of a call whose id changes are joined: LangChain splits the call there, and what comes before would
    run with arguments that are cut off. Arguments may be an object instead of its text. Additional fields of replies are
    kept, and sent back.
    """
    if not is_openai(model) or not hasattr(model, _CONVERT):
        return model
    convert, create, build = (getattr(type(model), name) for name in (_CONVERT, _CREATE, _BUILD))

    def convert_joined(chunk: dict[str, Any], *arguments: Any) -> Any:
        choices = chunk.get("choices") or ()
        for choice in choices:
            for fragment in (choice.get("delta") or {}).get("tool_calls") or ():
                # Only the first fragment of a call has its name.
                if not (fragment.get("function") or {}).get("name"):
                    fragment["id"] = None
                _write_arguments_as_text(fragment)
        converted = convert(model, chunk, *arguments)
        if choices and converted is not None:
            _keep_fields(converted.message, choices[0].get("delta"), is_streamed=True)
        return converted

    def create_complete(response: Any, *arguments: Any, **settings: Any) -> Any:
        choices = _get(response, "choices") or ()
        for choice in choices:
            for call in _get(_get(choice, "message"), "tool_calls") or ():
                _write_arguments_as_text(call)
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


def _write_arguments_as_text(call: Any) -> None:
    """Replace the arguments of a call, if they are an object, by its JSON text."""
    function = _get(call, "function")
    arguments = _get(function, "arguments")
    if not isinstance(arguments, dict):
        return
    text = json.dumps(arguments)
    if isinstance(function, dict):
        function["arguments"] = text
    else:
        function.arguments = text


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)
