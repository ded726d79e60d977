"""Replies that strict endpoints would refuse in the next request: the run continues, and so do threads stored before."""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI

from langgraph_takeover.graph.delivery.offers import hand_over
from langgraph_takeover.handoff.records.envelope import Envelope
from langgraph_takeover.handoff.views import VIEWS, VIEWS_WITH_NOTES
from langgraph_takeover.nodes.model.endpoint_rules import NO_RESULT

from ..chat_server import ChatServer
from .conftest import DONE, RunHarness, parse_events
from .delivery.test_delivery import RECORD, UNDERSTOOD, deliver_record

OPENAI, ANTHROPIC, MISTRAL = r".{1,40}", r"[a-zA-Z0-9_-]+", r"[a-zA-Z0-9]{9}"
COMMANDS = ("echo one >>notes.txt", "cat notes.txt")
Calls = list[tuple[Any, str, Any]]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    server = ChatServer()
    yield server
    server.close()


def find_refusal(messages: list[dict[str, Any]], form: str) -> str:
    """Return why a strict endpoint refuses a conversation; empty if it accepts it."""
    seen: set[str] = set()
    roles = [each["role"] for each in messages]
    if roles[-1] == "assistant":
        return "the conversation must end with a user message"
    if (roles[1:] if roles[0] == "system" else roles)[:1] != ["user"]:
        return "the conversation must begin with a user message"
    for pair in itertools.pairwise(roles):
        if pair in (("user", "user"), ("assistant", "assistant")):
            return "conversation roles must alternate"
        if pair == ("tool", "user") and form == MISTRAL:
            return "Unexpected role 'user' after role 'tool'"
    for place, message in enumerate(messages):
        if place and message["role"] == "system":
            return "system message must be at the beginning"
        has_text = bool((message["content"] or "").strip())
        if not (has_text or message.get("tool_calls")) or (message["content"] and not has_text):
            return "text must be non-empty"
        calls = message.get("tool_calls") or ()
        ids = [each["id"] for each in calls]
        if any(not re.fullmatch(form, each or "") for each in ids):
            return f"invalid id among {ids}"
        if len(seen | {*ids}) < len(seen) + len(ids):
            return "tool_use ids must be unique"
        if any(not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each["function"]["name"]) for each in calls):
            return "invalid function name"
        if any(not each["function"]["arguments"].startswith("{") for each in calls):
            return "function arguments must be a JSON object"
        if [each.get("tool_call_id") for each in messages[place + 1 : place + 1 + len(ids)]] != ids:
            return "a call lacks its result"
        seen |= {*ids}
    results = sum(each["role"] == "tool" for each in messages)
    return "" if results == len(seen) else "a result lacks its call"


def build_model(server: ChatServer, *replies: Calls, form: str = ANTHROPIC, **settings: Any) -> ChatOpenAI:
    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        has_calls = any("tool_calls" in each for each in request["messages"])
        refusal = find_refusal(request["messages"], form)
        if refusal or (has_calls and "tools" not in request):
            return 400, json.dumps({"error": {"message": refusal or "tools must be defined"}}).encode()
        number = sum(each["role"] == "assistant" for each in request["messages"])
        calls = [
            {
                **({} if name is None else {"id": name}),
                "type": "function",
                "function": {"name": tool, "arguments": json.dumps(args)},
            }
            for name, tool, args in replies[min(number, len(replies) - 1)]
        ]
        return server.reply(" \n", "tool_calls" if calls else "stop", tool_calls=calls)

    server.answer = answer
    name = {OPENAI: "gpt", ANTHROPIC: "claude", MISTRAL: "mistral"}[form]
    return ChatOpenAI(model=name, base_url=server.url, api_key="none", **settings)  # type: ignore[arg-type]


def shell(*ids: Any, commands: tuple[str, ...] = COMMANDS) -> Calls:
    return [(name, "shell", {"command": command}) for name, command in zip(ids, commands, strict=True)]


FINISH: Calls = [("call_end", "finish", {"message": "Done."})]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("ids", "form"),
    [
        (("call_0", "call_0"), ANTHROPIC),
        (("abcdefghi", "abcdefghi"), MISTRAL),
        (("", ""), MISTRAL),
        (("x" * 300, "x" * 300), OPENAI),
        (("functions.shell:0", "a b\n🦜"), ANTHROPIC),
    ],
    ids=["equal", "mistral", "empty", "long", "characters"],
)
def test_bad_ids_of_a_reply(bench: RunHarness, server: ChatServer, ids: tuple[str, str], form: str) -> None:
    end: Calls = [("endendend", *FINISH[0][1:])]
    model = build_model(server, shell(*ids), shell(*ids), end, form=form)
    state = bench.run(model, protocol="native")
    assert state["stop_reason"] == "finished"
    results = [each["content"] for each in server.requests[-1]["messages"] if each["role"] == "tool"]
    assert [each.split("\n")[1:-1] for each in results[1::2]] == [["one"], ["one", "one"]]


def test_an_invalid_name_of_a_tool(bench: RunHarness, server: ChatServer) -> None:
    model = build_model(server, [("a", "functions.shell x", {}), ("b", "", {})], FINISH)
    state = bench.run(model, protocol="native")
    assert state["stop_reason"] == "finished"
    replies = [each for each in state["messages"] if isinstance(each, AIMessage)]
    assert [each["name"] for each in replies[0].tool_calls] == ["functions.shell x", ""]


@pytest.mark.parametrize("protocol", ["native", "text"])
def test_an_empty_reply(bench: RunHarness, server: ChatServer, protocol: str) -> None:
    model = build_model(server, [], [], FINISH)
    state = bench.run(model, protocol=protocol, max_steps=3)
    replies = [each.text for each in state["messages"] if isinstance(each, AIMessage)]
    assert len(server.requests) == len(replies) == 3
    assert replies == ["…", "…", ""], "a blank reply, which strict endpoints refuse, is not stored"
    assert [each.text.strip() for each in parse_events(state) if each.kind == "action"][:2] == ["", ""]


def poison(bench: RunHarness, model: ChatOpenAI, messages: list[Any]) -> None:
    """Store a thread with messages after its first step that endpoints refuse."""
    with bench.open_run(model, protocol="native", max_steps=1) as run:
        run.start("t", "Work.")
        update = {"messages": messages, "stop_reason": None}
        run._graph("agent").update_state(run.config, update, as_node="interruption")


BAD_CALL: Any = {"name": "shell", "args": '{"command": ', "id": "e", "error": None}


def make_turn(names: tuple[str, str], results: tuple[str, ...], tool: str = "shell") -> list[Any]:
    calls = [{"name": tool, "args": {"command": "ls"}, "id": each} for each in names]
    return [
        AIMessage("", tool_calls=calls),
        *(ToolMessage(f"result {number}", tool_call_id=each) for number, each in enumerate(results)),
    ]


@pytest.mark.sampled(8)
@pytest.mark.cases(2)
@pytest.mark.parametrize("form", [ANTHROPIC, pytest.param(MISTRAL, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "turn",
    [
        make_turn(("same", "same"), ("same", "same")),
        make_turn(("a", "b"), ("a", "b")),  # ids of the reply before
        make_turn(("c", "d"), ("d",)),
        make_turn(("c", "d"), ("c", "d", "d")),
        make_turn(("c", "d"), ("c", "d"), tool="bad name"),
        [*make_turn(("c", "d"), ("c", "d")), AIMessage(""), HumanMessage("")],
        [*make_turn(("c", "d"), ("c", "d")), SystemMessage("Be brief."), AIMessage("Done?")],
        [*make_turn(("c", "d"), ("c", "d")), HumanMessage("One."), HumanMessage("Two.")],
        [*make_turn(("c", "d"), ("c", "d")), AIMessage("One."), AIMessage("Two."), HumanMessage([])],
        [*make_turn(("c", "d"), ("c", "d")), AIMessage("", invalid_tool_calls=[BAD_CALL])],
    ],
    ids=["equal", "earlier", "unanswered", "orphan", "name", "blank", "roles", "users", "replies", "json"],
)
def test_a_poisoned_thread_resumes(
    bench: RunHarness, server: ChatServer, caplog: pytest.LogCaptureFixture, turn: list[Any], form: str
) -> None:
    model = build_model(server, shell("a", "b"), [], FINISH, form=form)
    poison(bench, model, turn)
    before = bench.load_state().values["messages"]
    progress: list[Any] = []
    with caplog.at_level(logging.WARNING):
        outcome = bench.resume(model, protocol="native", on_progress=progress.append)
    assert outcome.stop_reason == "finished"
    assert outcome.state["messages"][: len(before)] == before
    is_order = {isinstance(each, HumanMessage) and bool(each.content) for each in turn[3:]} == {True}
    # Merged messages of the user lose nothing, so that nothing is said. Mistral's form needs other ids, too.
    told = 0 if is_order and form == ANTHROPIC else 1
    assert [each["event"] for each in progress].count("repaired") == told
    assert len([each for each in caplog.records if "repaired" in each.message]) == told
    sent = [each["content"] for each in server.requests[-1]["messages"] if each["role"] == "tool"][2:]
    assert sent[:2] == (["result 0", "result 1"] if len(turn) > 2 else [NO_RESULT, "result 0"])


def test_a_transcript_is_confirmed_without_tools(bench: RunHarness, server: ChatServer) -> None:
    # Some endpoints refuse calls in a request that defines no tools, and the confirmation defines none.
    edit = ("sed -i 's/n + 1/n * 3/' pkg/core.py",)
    source = build_model(server, shell("a", commands=edit), FINISH)
    settings = {"points": ("first_source_edit",), "policy": "stop"}
    assert bench.run(source, protocol="native", **settings)["stop_reason"] == "point"
    found = hand_over(bench.home, RECORD, target="tester", envelope=Envelope(view="transcript"))
    model = build_model(server, FINISH)
    work = server.answer

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        refused, content = work(request)
        is_question = "tools" not in request and refused == 200
        return server.reply(UNDERSTOOD) if is_question else (refused, content)

    server.answer = answer
    done = deliver_record(bench, found, model, protocol="native")
    assert done.handoff.state == "completed"
    assert "shell {" in server.requests[-2]["messages"][2]["content"]


def script(server: ChatServer, protocol: str, *replies: dict[str, Any]) -> ChatOpenAI:
    """A strict model that sends replies in order, whatever conversation it gets; `command` is an action."""
    left = iter(replies)

    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        if refusal := find_refusal(request["messages"], MISTRAL):
            return 400, json.dumps({"error": {"message": refusal}}).encode()
        reply = {"role": "assistant", "content": None, **next(left)}
        command = reply.pop("command", None)
        if command and protocol == "native":
            tool, args = (
                ("finish", {"message": "Done."}) if command == "finish" else ("shell", {"command": command})
            )
            function = {"name": tool, "arguments": args}
            reply["tool_calls"] = [{"id": "call_0", "type": "function", "function": function}]
        elif command:
            reply["content"] = DONE if command == "finish" else f"```bash\n{command}\n```"
        choice = {"index": 0, "message": reply, "finish_reason": None}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return 200, json.dumps(body).encode()

    server.answer = answer
    return ChatOpenAI(model="mistral", base_url=server.url, api_key="none")  # type: ignore[arg-type]


THOUGHTS: tuple[dict[str, Any], ...] = tuple(
    {"content": content, "reasoning_content": "I ponder."} for content in (None, "", " \n")
)


@pytest.mark.parametrize("protocol", ["native", "text"])
def test_thoughts_alone_at_every_second_step(bench: RunHarness, server: ChatServer, protocol: str) -> None:
    commands: list[dict[str, Any]] = [{"command": "ls"}, {"command": "ls"}, {"command": "finish"}]
    replies = [each for pair in zip(THOUGHTS, commands, strict=True) for each in pair]
    model = script(server, protocol, *replies[:3])
    assert bench.run(model, protocol=protocol, max_steps=3)["stop_reason"] == "max_steps"
    model = script(server, protocol, *replies[3:])
    outcome = bench.resume(model, protocol=protocol, max_steps=9)
    assert outcome.stop_reason == "finished"
    assert outcome.steps == 6
    stored = [each for each in outcome.state["messages"] if isinstance(each, AIMessage)]
    assert all(each.text.strip() or each.tool_calls for each in stored)
    sent = [each for each in server.requests[-1]["messages"] if each["role"] == "assistant"]
    assert [each.get("reasoning_content") for each in sent] == ["I ponder.", None] * 2 + ["I ponder."]


@pytest.mark.cases(2)
@pytest.mark.parametrize("protocol", ["native", "text"])
def test_every_view_is_accepted(bench: RunHarness, server: ChatServer, protocol: str) -> None:
    edit = {"command": "sed -i 's/n + 1/n * 3/' pkg/core.py"}
    settings: Any = {"points": ("first_source_edit",), "policy": "stop", "protocol": protocol}
    model = script(server, protocol, THOUGHTS[0], {"command": "ls", "reasoning_content": "Look."}, edit)
    assert bench.run(model, **settings)["stop_reason"] == "point"
    for view in sorted({*VIEWS} - {*VIEWS_WITH_NOTES}):
        successor = script(server, protocol, THOUGHTS[1], {"command": "ls"}, {"command": "finish"})
        successor = successor.model_copy(update={"model_name": "mistral-2"})
        state = bench.take_over(successor, view, protocol=protocol)
        assert state["stop_reason"] == "finished", view
        assert all(each.get("reasoning_content") != "Look." for each in server.requests[-1]["messages"])
