"""Replies with text that UTF-8 cannot encode."""

from __future__ import annotations

import json

from langchain_core.messages import AIMessage

from langgraph_takeover.nodes.model.actions import UnreadableReply, parse_action


def test_a_lone_surrogate_in_a_call_is_replaced() -> None:
    for content in ("a \ud800", {"deep": ["\udc00"]}, "😀"):
        call = {"name": "editor", "arguments": {"command": "create", "path": "x", "content": content}}
        action = parse_action(AIMessage(f"```json\n{json.dumps(call)}\n```"), "text", offer_handoff=False)
        text = action.correction if isinstance(action, UnreadableReply) else action.arguments["content"]
        assert text.encode()
        assert ("\ufffd" in text) == (content == "a \ud800")
