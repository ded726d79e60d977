from __future__ import annotations

import json

import pytest
from langchain_core.messages import HumanMessage

from langgraph_takeover.evals.models import build_llm
from langgraph_takeover.nodes.model.calls import ask_model, ask_with_schema
from langgraph_takeover.nodes.model.message_content import describe_empty_reply, has_thought
from langgraph_takeover.nodes.model.model_errors import ModelError
from langgraph_takeover.nodes.model.usage import UNCOUNTED_CALLS

from ...chat_server import ChatServer


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_thought_is_kept_in_the_server_s_field(chat_server: ChatServer, field: str) -> None:
    status, body = chat_server.reply("", "length", thought="I ponder.")
    chat_server.answer = lambda request: (status, body.replace(b"reasoning_content", field.encode()))
    reply = ask_model(build_llm("openai:m", base_url=chat_server.url), [], timeout_s=20)
    assert has_thought(reply)
    assert describe_empty_reply(reply) == "thought, but no text"
    assert reply.additional_kwargs[field] == "I ponder."


def test_a_reply_without_thought_has_none(chat_server: ChatServer) -> None:
    chat_server.answer = lambda request: chat_server.reply("")
    reply = ask_model(build_llm("openai:m", base_url=chat_server.url), [], timeout_s=20)
    assert not has_thought(reply)
    assert describe_empty_reply(reply) == "no text"


def test_a_streamed_thought_is_noted(chat_server: ChatServer) -> None:
    deltas = [
        {"role": "assistant", "reasoning_content": "I"},
        {"reasoning_content": " ponder."},
        {"content": ""},
    ]
    ends = [None, None, "length"]
    chunks = [
        {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        for choice in (
            {"index": 0, "delta": delta, "finish_reason": end}
            for delta, end in zip(deltas, ends, strict=True)
        )
    ]
    content = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    chat_server.answer = lambda request: (200, content.encode())
    model = build_llm("openai:m", base_url=chat_server.url)
    reply = ask_model(model.model_copy(update={"streaming": True}), [], timeout_s=20)
    assert has_thought(reply)
    assert describe_empty_reply(reply).startswith("thought, but no text")
    assert reply.additional_kwargs["reasoning_content"] == "I ponder."


def test_a_reply_cut_off_under_a_schema_is_kept_and_counted(chat_server: ChatServer) -> None:
    chat_server.answer = lambda request: chat_server.reply('{"claim": "It', "length")
    schema = {"title": "note", "type": "object", "properties": {"claim": {"type": "string"}}}
    model = build_llm("openai:m", base_url=chat_server.url)
    reply = ask_with_schema(model, [HumanMessage("hello")], schema, timeout_s=20)
    assert reply.text == '{"claim": "It'
    assert len(chat_server.requests) == 1
    assert "response_format" in chat_server.requests[0]
    assert reply.usage_metadata is not None
    assert UNCOUNTED_CALLS not in reply.response_metadata


def test_a_malformed_answer_is_the_endpoint_s_failure(chat_server: ChatServer) -> None:
    chat_server.answer = lambda request: (200, b'{"choices": []}')
    with pytest.raises(ModelError, match="malformed"):
        ask_model(build_llm("openai:m", base_url=chat_server.url), [], timeout_s=20)
