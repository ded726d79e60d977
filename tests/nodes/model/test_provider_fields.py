"""Fields that a server sends beside text and calls go back to it, and to no other one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

from langgraph_takeover.nodes.model.calls import CallCount, ModelCall, ask_model
from langgraph_takeover.nodes.model.deadlines import Cancellation
from langgraph_takeover.nodes.model.endpoint_rules import repair_reply
from langgraph_takeover.nodes.model.message_content import (
    adapt_messages,
    describe_damage,
    has_thought,
    mark_client,
    redact_reply,
)
from langgraph_takeover.nodes.model.model_errors import PermanentModelError
from langgraph_takeover.nodes.model.provider_fields import take_fields
from langgraph_takeover.nodes.model.usage import count_chars

from ...chat_server import ChatServer

SIGNATURE = {"google": {"thought_signature": "c2lnbmVk"}}
DETAILS = [
    {"type": "reasoning.text", "index": 0, "text": "I ponder.", "signature": "s", "format": "f"},
    {"type": "reasoning.encrypted", "index": 1, "data": "abc", "id": "r1"},
]
BLOCKS = [{"type": "thinking", "thinking": "I ponder.", "signature": "s"}]
FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"reasoning_content": "I ponder."}, {}),
    ({"reasoning_content": ""}, {}),
    ({"reasoning": "I ponder."}, {}),
    ({"reasoning_details": DETAILS}, {}),
    ({"thinking_blocks": BLOCKS}, {}),
    ({"extra_content": SIGNATURE}, {"extra_content": SIGNATURE}),
    ({}, {"provider_specific_fields": {"thought_signature": "c2lnbmVk"}}),
]
NAMES = ("text", "empty", "reasoning", "details", "blocks", "gemini", "litellm")


@pytest.fixture
def server() -> Iterator[ChatServer]:
    server = ChatServer()
    yield server
    server.close()


def make_call(name: str, **extra: Any) -> dict[str, Any]:
    return {
        "id": name,
        "type": "function",
        "function": {"name": "shell", "arguments": '{"command": "ls"}'},
        **extra,
    }


def build(server: ChatServer, model: str = "m", **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model=model, base_url=server.url, api_key="none", **settings)  # type: ignore[arg-type]


def answer_whole(message: dict[str, Any]) -> tuple[int, bytes]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, **message},
        "finish_reason": "stop",
    }
    return 200, json.dumps(
        {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    ).encode()


def split(name: str, value: Any) -> list[Any]:
    """The parts in which a server streams a field."""
    if isinstance(value, str):
        return [value[:3], value[3:]]
    if not isinstance(value, list):
        return [value]
    parts: list[Any] = []
    for each in value:
        key = next(key for key in ("text", "thinking", "data") if key in each)
        rest = {k: v for k, v in each.items() if k not in (key, "signature")}
        seal = {"signature": None} if "signature" in each else {}
        parts += [[{**rest, **seal, key: each[key][:2]}], [{**rest, key: each[key][2:]}]]
        parts += [[{**rest, "signature": each["signature"]}]] if "signature" in each else []
    return parts


def answer_streamed(message: dict[str, Any]) -> tuple[int, bytes]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name, value in message.items():
        if name != "tool_calls":
            deltas += [{name: part} for part in split(name, value)]
    for index, call in enumerate(message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        head = {**call, "function": {**call["function"], "arguments": arguments[:4]}}
        deltas += [{"tool_calls": [{"index": index, **head}]}]
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": arguments[4:]}}]}]
    ends = [None] * (len(deltas) - 1) + ["stop"]
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}
        for delta, end in zip(deltas, ends, strict=True)
    ]
    return 200, "".join(f"data: {json.dumps(each)}\n\n" for each in chunks).encode() + b"data: [DONE]\n\n"


def ask(model: ChatOpenAI, messages: list[BaseMessage]) -> AIMessage:
    """Return a reply as a thread stores it."""
    reply = repair_reply(ask_model(model, messages, timeout_s=20), messages, model=model)
    return mark_client(redact_reply(reply), model)


def aask(model: ChatOpenAI, messages: list[BaseMessage]) -> AIMessage:
    async def run(function: Any) -> Any:
        return await asyncio.to_thread(function)

    call = ModelCall(model, messages, 20, 1, CallCount(), Cancellation())
    return mark_client(asyncio.run(call.aask(run)), model)


@pytest.mark.cases(2)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fields", "call_fields"), FIELDS, ids=NAMES)
def test_fields_go_back(
    server: ChatServer, fields: dict[str, Any], call_fields: dict[str, Any], is_streamed: bool
) -> None:
    calls = [make_call("a", **call_fields), make_call("a"), make_call("b" * 50, **call_fields)]
    message = {**fields, "tool_calls": calls}
    server.answer = lambda request: answer_streamed(message) if is_streamed else answer_whole(message)
    model = build(server, streaming=is_streamed)
    question: list[BaseMessage] = [HumanMessage("go")]
    reply = ask(model, question)
    stored = AIMessage.model_validate_json(reply.model_dump_json())
    results = [ToolMessage("r", tool_call_id=str(call["id"])) for call in stored.tool_calls]
    ask(model, [*question, stored, *results])
    sent = server.requests[-1]["messages"][1]
    assert {
        name: value for name, value in sent.items() if name not in ("role", "content", "tool_calls")
    } == fields
    extra = [
        {k: v for k, v in call.items() if k not in ("id", "type", "function")} for call in sent["tool_calls"]
    ]
    assert extra == [call_fields, {}, call_fields]
    assert sent["content"] == ("" if "reasoning_content" in fields else None)
    assert has_thought(stored) == bool({*fields} - {"extra_content"} and any(fields.values()))

    size = count_chars([stored]) - count_chars([AIMessage("", tool_calls=stored.tool_calls)])
    assert size >= len(str(fields or call_fields)) - 30
    for other in (
        build(server, "another"),
        ChatOpenAI(model="m", base_url="http://127.0.0.1:9/v1", api_key="none"),
    ):  # type: ignore[arg-type]
        (foreign,) = adapt_messages([stored], other)
        assert foreign.additional_kwargs.keys().isdisjoint(stored.additional_kwargs.keys() - {"refusal"})
        assert [each["name"] for each in foreign.tool_calls] == ["shell"] * 3


def test_an_event_loop_keeps_the_fields(server: ChatServer) -> None:
    message = {"content": "Hello.", "reasoning_content": "I ponder."}
    server.answer = lambda request: answer_whole(message)
    model = build(server)
    reply = aask(model, [HumanMessage("go")])
    aask(model, [HumanMessage("go"), reply, HumanMessage("on")])
    assert server.requests[-1]["messages"][1] == {"role": "assistant", **message}


def test_a_server_without_fields_gets_none(server: ChatServer) -> None:
    model = build(server)
    ask(model, [HumanMessage("go"), ask(model, [HumanMessage("go")]), HumanMessage("on")])
    assert server.requests[-1]["messages"][1] == {"role": "assistant", "content": "ok"}


def refuse(server: ChatServer, text: Any, condition: Any, message: dict[str, Any]) -> None:
    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        replies = [each for each in request["messages"] if each["role"] == "assistant"]
        if replies and condition(replies):
            return 400, json.dumps({"error": {"message": text}}).encode()
        return answer_whole(message)

    server.answer = answer


_FORBIDDEN = {
    "loc": ["body", "messages", 1, "assistant", "reasoning"],
    "msg": "Extra inputs are not permitted",
}


@pytest.mark.parametrize(
    "text",
    [
        {"detail": [_FORBIDDEN]},  # Mistral
        "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property 'reasoning' is unsupported)]",
        "messages.1.assistant.reasoning: property 'messages.1.assistant.reasoning' is unsupported",
    ],
)
def test_a_server_that_refuses_its_own_field(server: ChatServer, text: Any) -> None:
    message = {"content": "Hello.", "reasoning": "I ponder."}
    refuse(server, text, lambda replies: any("reasoning" in each for each in replies), message)
    model = build(server)
    messages: list[BaseMessage] = [HumanMessage("go"), ask(model, [HumanMessage("go")]), HumanMessage("on")]
    for requests in (3, 4):  # only the first request is refused
        assert ask(model, messages).text == "Hello."
        assert len(server.requests) == requests


def test_a_server_that_wants_reasoning_in_replies_of_another_model(server: ChatServer) -> None:
    text = "The `reasoning_content` in the thinking mode must be passed back to the API."
    calls = {"tool_calls": [make_call("b")]}
    refuse(
        server,
        text,
        lambda replies: any(not each.get("reasoning_content") for each in replies),
        {**calls, "reasoning_content": "I ponder."},
    )
    model = build(server)
    foreign = AIMessage("", tool_calls=[{"name": "shell", "args": {}, "id": "a"}])
    messages: list[BaseMessage] = [HumanMessage("go"), foreign, ToolMessage("r", tool_call_id="a")]
    messages += [AIMessage("Text."), HumanMessage("on")]
    messages += [ask(model, messages), ToolMessage("r", tool_call_id="b")]
    ask(model, messages)
    assert [each.get("reasoning_content") for each in server.requests[-1]["messages"]][1::2] == [
        " ",
        " ",
        "I ponder.",
    ]
    assert len(server.requests) == 3


def test_gemini_after_another_model(server: ChatServer) -> None:
    text = "Function call is missing a thought_signature in functionCall parts."
    refuse(
        server,
        text,
        lambda replies: any("extra_content" not in each["tool_calls"][0] for each in replies),
        {"tool_calls": [make_call("b", extra_content=SIGNATURE), make_call("c")]},
    )
    model = build(server)
    foreign = AIMessage("", tool_calls=[{"name": "shell", "args": {}, "id": "a"}])
    messages: list[BaseMessage] = [HumanMessage("go"), foreign, ToolMessage("r", tool_call_id="a")]
    reply = ask(model, messages)
    ask(model, [*messages, reply, ToolMessage("r", tool_call_id="b"), ToolMessage("r", tool_call_id="c")])
    own = [call.get("extra_content") for call in server.requests[-1]["messages"][3]["tool_calls"]]
    assert own == [SIGNATURE, None]


@pytest.mark.parametrize("status", [400, 401])
def test_another_refusal_that_names_reasoning(server: ChatServer, status: int) -> None:
    server.answer = lambda request: answer_whole({"content": "Hello.", "reasoning": "I ponder."})
    model = build(server)
    reply = ask(model, [HumanMessage("go")])
    server.answer = lambda request: (status, b'{"error": {"message": "reasoning costs credit"}}')
    messages: list[BaseMessage] = [HumanMessage("go"), reply, HumanMessage("on")]
    with pytest.raises(PermanentModelError, match="credit"):
        ask(model, messages)
    server.answer = lambda request: answer_whole({"content": "Hello."})
    ask(model, messages)
    assert server.requests[-1]["messages"][1]["reasoning"] == "I ponder."


def test_secrets_in_reasoning(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "tok-9f8e7d6c5b4a")
    secret = "It is tok-9f8e7d6c5b4a."
    details = [{"type": "reasoning.text", "index": 0, "text": secret}]
    message: dict[str, Any] = {"content": "Hello.", "reasoning_content": secret, "reasoning_details": details}
    server.answer = lambda request: answer_whole(message)
    reply = ask(build(server), [HumanMessage("go")])
    assert "9f8e" not in reply.model_dump_json()
    assert reply.additional_kwargs["reasoning_content"] == "It is [redacted]."
    assert not describe_damage(reply)
    details[0]["signature"] = "s"
    reply = ask(build(server), [HumanMessage("go")])
    assert describe_damage(reply)
    assert "9f8e" not in reply.model_dump_json()


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "message",
    [
        {
            "reasoning_content": {"text": "t"},
            "reasoning_details": "t",
            "extra_content": [],
            "thinking_blocks": [1],
        },
        {"reasoning_details": [], "reasoning_content": None, "extra_content": {}},
        {"tool_calls": [make_call("a", extra_content="x", provider_specific_fields=None)]},
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_malformed_fields_are_left_out(
    server: ChatServer, message: dict[str, Any], is_streamed: bool
) -> None:
    if is_streamed:
        head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        calls = [{"index": 0, **each} for each in message.get("tool_calls", ())]
        choice = {
            "index": 0,
            "delta": {**message, "content": "Hi.", "tool_calls": calls},
            "finish_reason": "stop",
        }
        body = f"data: {json.dumps({**head, 'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()
        server.answer = lambda request: (200, body)
    else:
        server.answer = lambda request: answer_whole({"content": "Hi.", **message})
    reply = ask(build(server, streaming=is_streamed), [HumanMessage("go")])
    assert {*reply.additional_kwargs} <= {"refusal"}


def test_a_long_streamed_thought_is_joined_in_linear_time(server: ChatServer) -> None:
    words = [{"type": "reasoning.text", "index": 0, "text": "word ", "format": "f"}] * 4000
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas: list[dict[str, Any]] = [{"reasoning_details": [each]} for each in words] + [{"content": "Hi."}]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks).encode()
    server.answer = lambda request: (200, body)
    reply = ask(build(server, streaming=True), [HumanMessage("go")])
    assert reply.additional_kwargs["reasoning_details"] == [{**words[0], "text": "word " * 4000}]


def test_the_fields_return_to_the_calls_of_an_external_agent(server: ChatServer) -> None:
    message = {"reasoning_content": "I ponder.", "tool_calls": [make_call("a", extra_content=SIGNATURE)]}
    server.answer = lambda request: answer_whole(message)
    model = build(server)
    stored = ask(model, [HumanMessage("go")])
    own = AIMessage("", tool_calls=stored.tool_calls)  # as the agent sends it
    other = AIMessage("", tool_calls=[{**stored.tool_calls[0], "id": "b"}])
    question = HumanMessage("go")
    taken = take_fields([question, own, other], [stored])
    assert taken[0] is question
    assert taken[2] is other
    assert count_chars(taken[1:2]) == count_chars([stored])
    results = [ToolMessage("r", tool_call_id="a"), ToolMessage("r", tool_call_id="b")]
    ask(model, [question, taken[1], results[0], other, results[1]])
    sent = server.requests[-1]["messages"]
    assert (sent[1]["reasoning_content"], "reasoning_content" in sent[3]) == ("I ponder.", False)
    (foreign,) = adapt_messages(taken[1:2], build(server, "another"))
    assert not foreign.additional_kwargs
