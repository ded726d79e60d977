from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from langgraph_takeover.nodes.model.actions import UnreadableReply, parse_action
from langgraph_takeover.nodes.model.message_content import (
    EMPTY_REPLY,
    THOUGHT_ONLY,
    describe_empty_reply,
    has_thought,
    is_empty,
)


def reply(content: Any = "", reason: str = "stop", **fields: Any) -> AIMessage:
    return AIMessage(content, response_metadata={"finish_reason": reason}, **fields)


CALL = {"name": "shell", "args": {"command": "ls"}, "id": "c1"}
USAGE = {"input_tokens": 9, "output_tokens": 7, "total_tokens": 16}
THOUGHT_ONLY_REPLIES = {
    "field": reply(additional_kwargs={"reasoning_content": "Hmm."}),
    "marked by the client": reply(additional_kwargs={"has_thought": True}),
    "tags": reply("<think>Run `ls`.</think>\n"),
    "other tags": reply("<thinking>\nHmm.\n</thinking>"),
    "unfinished tag": reply("<think>Hmm, so I", "length"),
    "end of a tag only": reply("Hmm, so I wait.\n</think>\n\n"),
    "content part": reply([{"type": "thinking", "thinking": "Hmm."}]),
    "reasoning part": reply([{"type": "reasoning", "summary": []}]),
    "usage": reply(usage_metadata={**USAGE, "output_token_details": {"reasoning": 7}}),
}


@pytest.mark.parametrize("name", THOUGHT_ONLY_REPLIES)
@pytest.mark.parametrize("protocol", ["text", "native"])
def test_a_reply_with_thought_alone_is_reported_as_that(name: str, protocol: Any) -> None:
    message = THOUGHT_ONLY_REPLIES[name]
    assert has_thought(message)
    assert is_empty(message)
    action = parse_action(message, protocol, offer_handoff=False)
    assert isinstance(action, UnreadableReply)
    assert action.correction.startswith(THOUGHT_ONLY)


def test_a_thought_that_was_cut_off_says_so() -> None:
    correction = parse_action(reply("<think>Hmm", "length"), "text", offer_handoff=False)
    assert isinstance(correction, UnreadableReply)
    assert (
        "It was cut off at its length limit: think less. Send exactly one: a ```bash block"
        in correction.correction
    )
    assert describe_empty_reply(reply("<think>Hmm", "length")) == "thought, but no text"


def test_a_reply_without_anything_is_called_empty() -> None:
    action = parse_action(reply(" \n"), "text", offer_handoff=False)
    assert isinstance(action, UnreadableReply)
    assert action.correction.startswith(EMPTY_REPLY)
    assert describe_empty_reply(reply(" \n")) == "no text"


@pytest.mark.parametrize(
    "message",
    [
        reply("<think>Hmm.</think>\n```bash\nls\n```"),
        reply("Hmm.\n</think>\nI look.\n```bash\nls\n```"),
        reply("", tool_calls=[CALL], additional_kwargs={"reasoning_content": "Hmm."}),
    ],
)
def test_thought_beside_an_action_changes_nothing(message: AIMessage) -> None:
    assert has_thought(message)
    assert describe_empty_reply(message) == ""
    action = parse_action(message, "native" if message.tool_calls else "text", offer_handoff=False)
    assert not isinstance(action, UnreadableReply)
    assert action.arguments["command"].strip() == "ls"


def test_words_without_an_action_are_no_empty_reply() -> None:
    action = parse_action(reply("<think>Hmm.</think>I am done."), "text", offer_handoff=False)
    assert isinstance(action, UnreadableReply)
    assert action.correction.startswith("Your reply contains no action.")
