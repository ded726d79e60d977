"""Fields beside the text and the calls of a chat completion, which its server wants back: reasoning and signatures.

OpenAI's client drops them in both directions. Here they are kept in `additional_kwargs`, under the names that the server
uses; `call_fields` has those of calls, as `{"call": position, name: value}`. Only the server that sent a field gets it back.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_takeover.handoff.text.redaction import redact

ENDPOINT = "endpoint"
"""Metadata of a reply with such fields: a digest of the address and the model that sent it."""
_TEXTS = ("reasoning_content", "reasoning")
"""DeepSeek, Moonshot, Qwen, SGLang; vLLM, Groq, Cerebras, OpenRouter."""
_LISTS = ("reasoning_details", "thinking_blocks")
"""OpenRouter; LiteLLM."""
_OBJECTS = ("extra_content", "provider_specific_fields")
"""Gemini and LiteLLM, with the signatures of thoughts."""
CALL_FIELDS = "call_fields"
NAMES = (*_TEXTS, *_LISTS, *_OBJECTS, CALL_FIELDS)
_PART = "part"
"""The only key of a streamed part, which LangChain would merge in its own way."""
_GROWING = ("text", "thinking", "summary", "data")
_SEALS = ("signature", "data")
"""Keys of reasoning that must not be changed, because it is signed or encrypted."""
_UNSIGNED = {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
"""What Gemini accepts in calls that another model made."""
_NO_REASONING = " "
"""What DeepSeek and Moonshot accept in replies that were made without reasoning; an empty text they refuse."""
_NAMED = re.compile(
    r"(?<!\w)(?:reasoning_content|reasoning_details|reasoning|thinking_blocks|extra_content"
    r"|provider_specific_fields|thought_signature)(?!\w)"
)
_WANTED = re.compile(r"must be passed|missing|required")
_MAX_REFUSAL_CHARS = 2000
_lessons: dict[str, set[str]] = {}
"""What the refusals of each endpoint said: a field that its replies need, or `_REFUSES`."""
_REFUSES = "refuses"


def read_fields(message: Any, *, is_streamed: bool = False) -> dict[str, Any]:
    """Return the additional fields of a reply, or of a part of one, as a server sent it."""
    fields: dict[str, Any] = {name: _get(message, name) for name in (*_TEXTS, *_LISTS, *_OBJECTS)}
    kept = {name: value for name, value in fields.items() if _is_valid(name, value)}
    calls = _get(message, "tool_calls")
    call_fields = []
    for position, call in enumerate(calls if isinstance(calls, list) else ()):
        own = {name: value for name in _OBJECTS if isinstance(value := _get(call, name), dict) and value}
        if own:
            number = _get(call, "index") if is_streamed else position
            call_fields.append({"call": number, "id": _get(call, "id"), **own})
    if call_fields:
        kept[CALL_FIELDS] = call_fields
    if is_streamed:
        return {
            name: value if name in _TEXTS else [{_PART: each} for each in _as_list(value)]
            for name, value in kept.items()
        }
    return kept


def complete_fields(reply: AIMessage) -> AIMessage:
    """Return a reply whose streamed parts are joined, and whose fields of calls have the positions of the calls."""
    kwargs = reply.additional_kwargs
    if not any(name in kwargs for name in (*_LISTS, *_OBJECTS, CALL_FIELDS)):
        return reply
    completed: dict[str, Any] = {}
    for name, value in kwargs.items():
        is_streamed = isinstance(value, list) and any(
            isinstance(each, dict) and _PART in each for each in value
        )
        parts = [each.get(_PART, each) for each in value if isinstance(each, dict)] if is_streamed else value
        if name in _OBJECTS and is_streamed:
            completed[name] = {key: item for part in parts for key, item in part.items()}
        elif name in _LISTS and is_streamed:
            completed[name] = _join_parts(parts, has_index=name == "reasoning_details")
        elif name == CALL_FIELDS:
            completed[name] = _find_calls(reply, parts)
        else:
            completed[name] = value
    if completed.get("reasoning_details"):
        completed.pop("reasoning", None)  # the same in another form
    return reply.model_copy(update={"additional_kwargs": completed})


def list_fields(message: BaseMessage) -> dict[str, Any]:
    """Return the additional fields of a message."""
    return {name: message.additional_kwargs[name] for name in NAMES if name in message.additional_kwargs}


def drop_foreign_fields(message: BaseMessage, endpoint: str) -> BaseMessage:
    """Return a message without the fields that another endpoint or model sent."""
    if message.response_metadata.get(ENDPOINT, endpoint) == endpoint or not list_fields(message):
        return message
    own = {name: value for name, value in message.additional_kwargs.items() if name not in NAMES}
    return message.model_copy(update={"additional_kwargs": own})


def take_fields(messages: Iterable[BaseMessage], stored: Iterable[BaseMessage]) -> list[BaseMessage]:
    """Return an agent's messages; its calls get the fields that the stored reply with the same ids has."""
    known = {
        tuple(call["id"] for call in each.tool_calls): each
        for each in stored
        if isinstance(each, AIMessage) and each.tool_calls and list_fields(each)
    }

    def take(message: BaseMessage) -> BaseMessage:
        reply = (
            known.get(tuple(call["id"] for call in message.tool_calls))
            if isinstance(message, AIMessage)
            else None
        )
        if reply is None:
            return message
        endpoint = (
            {ENDPOINT: reply.response_metadata[ENDPOINT]} if ENDPOINT in reply.response_metadata else {}
        )
        return message.model_copy(
            update={
                "additional_kwargs": {**message.additional_kwargs, **list_fields(reply)},
                "response_metadata": {**message.response_metadata, **endpoint},
            }
        )

    return [take(each) for each in messages] if known else list(messages)


def count_field_chars(message: BaseMessage) -> int:
    return sum(len(str(value)) for value in list_fields(message).values()) if message.additional_kwargs else 0


def redact_fields(reply: AIMessage) -> AIMessage:
    """Return a reply without keys in its reasoning, except where that is signed or encrypted."""
    kwargs = dict(reply.additional_kwargs)
    for name in _TEXTS:
        if name in kwargs:
            kwargs[name] = redact(kwargs[name])
    for name in _LISTS:
        if isinstance(kwargs.get(name), list):
            kwargs[name] = [part if is_sealed(part) else redact(part) for part in kwargs[name]]
    return (
        reply if kwargs == reply.additional_kwargs else reply.model_copy(update={"additional_kwargs": kwargs})
    )


def list_sealed(additional_kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the values that must not be changed."""
    sealed = [additional_kwargs.get(name) for name in (*_OBJECTS, CALL_FIELDS)]
    for name in _LISTS:
        parts = additional_kwargs.get(name)
        sealed += [part for part in parts if is_sealed(part)] if isinstance(parts, list) else []
    return sealed


def is_sealed(part: Any) -> bool:
    return isinstance(part, Mapping) and any(part.get(name) for name in _SEALS)


def add_fields(payload: Sequence[dict[str, Any]], messages: Sequence[BaseMessage], endpoint: str) -> None:
    """Add the fields of each message to the message that the client sends."""
    lessons = _lessons.get(endpoint, set())
    for sent, message in zip(payload, messages, strict=True):
        if not isinstance(message, AIMessage):
            continue
        fields = {} if _REFUSES in lessons else list_fields(drop_foreign_fields(message, endpoint))
        calls = sent.get("tool_calls") or ()
        for own in fields.pop(CALL_FIELDS, None) or ():
            if isinstance(position := own.get("call"), int) and position < len(calls):
                calls[position].update({name: own[name] for name in _OBJECTS if name in own})
        if "reasoning_content" in lessons:
            fields.setdefault("reasoning_content", _NO_REASONING)
        if calls and "thought_signature" in lessons and not any("extra_content" in call for call in calls):
            calls[0].update(_UNSIGNED)
        sent.update(fields)
        if "reasoning_content" in fields and sent.get("content") is None:
            sent["content"] = ""  # DeepSeek refuses null beside reasoning


@contextlib.contextmanager
def obey_refusal(error: Exception, messages: Iterable[BaseMessage], model: Any) -> Iterator[None]:
    """Build this request again, and later ones, as the server's refusal asks; raise it if it asks for nothing new.

    A server that wants a field names it as missing. One that sends a field and refuses it names it, too, such as
    DeepSeek's first reasoner, Groq and Cerebras. What did not help is forgotten.
    """
    endpoint = name_endpoint(model)
    lesson = _find_lesson(error, messages)
    lessons = _lessons.setdefault(endpoint, set())
    if not endpoint or not lesson or lesson in lessons:
        raise error
    lessons.add(lesson)
    try:
        yield
    except Exception:
        lessons.discard(lesson)
        raise


def _find_lesson(error: Any, messages: Iterable[BaseMessage]) -> str:
    text = str(error)[:_MAX_REFUSAL_CHARS].lower()
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    if status not in (400, 422) or not _NAMED.search(text):
        return ""
    if _WANTED.search(text):
        return "thought_signature" if "thought_signature" in text else "reasoning_content"
    return _REFUSES if any(list_fields(each) for each in messages) else ""


def name_endpoint(model: Any) -> str:
    """Return a digest of the address and the model of a client; empty if the client has no address."""
    while hasattr(model, "bound"):
        model = model.bound
    if not hasattr(model, "openai_api_base"):
        return ""
    source = f"{model.openai_api_base} {getattr(model, 'model_name', '')}"
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _is_valid(name: str, value: Any) -> bool:
    if name in _TEXTS:
        return isinstance(value, str)
    if name in _LISTS:
        return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
    return isinstance(value, dict) and bool(value)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _join_parts(parts: Iterable[Mapping[str, Any]], *, has_index: bool) -> list[dict[str, Any]]:
    """Return whole blocks: a block grows by the parts with its index, or until its signature."""
    blocks: list[dict[str, Any]] = []
    texts: list[dict[str, list[str]]] = []
    places: dict[Any, int] = {}
    for part in parts:
        kind = part.get("type")
        key = (kind, part.get("index") if has_index else None)
        if key not in places or (has_index and key[1] is None):
            places[key] = len(blocks)
            blocks.append({})
            texts.append({})
        place = places[key]
        for name, value in part.items():
            if name in _GROWING and isinstance(value, str):
                texts[place].setdefault(name, []).append(value)
            elif value is not None or name not in blocks[place]:
                blocks[place][name] = value
        if not has_index and part.get("signature"):
            del places[key]
    return [
        {**block, **{name: "".join(pieces) for name, pieces in own.items()}}
        for block, own in zip(blocks, texts, strict=True)
    ]


def _find_calls(reply: AIMessage, found: Any) -> list[dict[str, Any]]:
    """Return the fields of calls with the positions of their calls, which the server's ids tell, if they are unique."""
    ids = [call["id"] for call in (*reply.tool_calls, *reply.invalid_tool_calls)]
    completed = []
    for own in found if isinstance(found, list) else ():
        if not isinstance(own, dict):
            continue
        position, name = own.get("call"), own.get("id")
        if name and ids.count(name) == 1:
            position = ids.index(name)
        if isinstance(position, int) and position < len(ids):
            values = {each: own[each] for each in _OBJECTS if each in own}
            completed.append({"call": position, **values})
    return completed
