"""Requests become LangChain messages, and replies take each API's form."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.nodes.external.apis import (
    Api,
    ModelRequest,
    RequestError,
    estimate_request_tokens,
    parse_reply,
    parse_request,
    write_error,
    write_reply,
)
from langgraph_takeover.nodes.model.model_errors import ContextWindowError, ModelError, PermanentModelError

from ...random_examples import examples

APIS: tuple[Api, ...] = get_args(Api)
FUNCTION = {"name": "shell", "description": "Run.", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Patch.",
    "format": {"definition": "start: x"},
}
OTHERS = [{"type": "web_search"}, {"type": "namespace", "name": "apps"}]
SHELL = {"name": "shell", "description": "Run.", "input_schema": FUNCTION["parameters"]}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
HELLO = [{"role": "user", "content": "hello"}]
MINIMAL: dict[Api, dict[str, Any]] = {
    "responses": {
        "model": "m",
        "input": "hello",
        "tools": [{"type": "function", **FUNCTION}, CUSTOM, *OTHERS],
    },
    "messages": {"model": "m", "messages": HELLO, "tools": [SHELL, WEB_SEARCH]},
    "chat": {"model": "m", "messages": HELLO, "tools": [{"type": "function", "function": FUNCTION}]},
}
USAGE = UsageMetadata(
    input_tokens=1_000, output_tokens=20, total_tokens=1_020, input_token_details={"cache_read": 600}
)


def text(content: str, kind: str = "text") -> list[dict[str, str]]:
    return [{"type": kind, "text": content}]


def read(api: Api, **fields: Any) -> ModelRequest:
    return parse_request(api, json.dumps({**MINIMAL[api], **fields}).encode())


def show(messages: list[BaseMessage]) -> list[tuple[Any, ...]]:
    """Each message as its kind and text, with the names of its calls or the id of its call."""
    shown: list[tuple[Any, ...]] = []
    for each in messages:
        row: tuple[Any, ...] = (each.type, each.text)
        if isinstance(each, AIMessage):
            row += tuple((call["id"], call["name"], call["args"]) for call in each.tool_calls)
            row += tuple((call["id"], call["name"], call["args"]) for call in each.invalid_tool_calls)
        shown.append((*row, each.tool_call_id) if hasattr(each, "tool_call_id") else row)
    return shown


CONVERSATION = [
    ("system", "rules\n\nmore rules"),
    ("human", "task"),
    ("ai", "I look.", ("c1", "shell", {"command": "ls"}), ("c2", "shell", {"command": "pwd"})),
    ("tool", "a.txt", "c1"),
    ("tool", "/w", "c2"),
    ("human", "a reminder"),
    ("ai", "", ("c3", "shell", "{broken")),
    ("tool", "malformed", "c3"),
    ("human", "go on"),
]


def test_a_responses_conversation() -> None:
    def call(call_id: str, arguments: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": call_id, "name": "shell", "arguments": arguments}

    def result(call_id: str, output: Any) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": call_id, "output": output}

    items = [
        {"type": "message", "role": "developer", "content": text("more rules", "input_text")},
        {"type": "message", "role": "user", "content": text("task", "input_text")},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": text("I look.", "output_text")},
        call("c1", '{"command": "ls"}'),
        call("c2", '{"command": "pwd"}'),
        result("c1", "a.txt"),
        {"role": "developer", "content": "a reminder"},
        result("c2", text("/w", "input_text")),
        call("c3", "{broken"),
        result("c3", "malformed"),
        {"role": "user", "content": "go on"},
    ]
    request = read("responses", instructions="rules", input=items)
    # The second result arrives after the reminder, and belongs before it.
    assert show(request.messages) == CONVERSATION


def test_a_messages_conversation() -> None:
    def call(call_id: str, arguments: Any) -> dict[str, Any]:
        return {"type": "tool_use", "id": call_id, "name": "shell", "input": arguments}

    def result(call_id: str, content: Any) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": content}

    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    messages = [
        {"role": "system", "content": "more rules"},
        {"role": "user", "content": text("task")},
        {"role": "assistant", "content": [thought, *text("I look."), call("c1", {"command": "ls"})]},
        {"role": "assistant", "content": [call("c2", {"command": "pwd"})]},
        {"role": "user", "content": [*text("a reminder"), result("c1", "a.txt"), result("c2", text("/w"))]},
        {"role": "assistant", "content": [call("c3", "{broken")]},
        {"role": "user", "content": [result("c3", "malformed")]},
        {"role": "system", "content": text("go on")},
    ]
    system = [{"type": "text", "text": "rules", "cache_control": {"type": "ephemeral"}}]
    assert show(read("messages", system=system, messages=messages).messages) == CONVERSATION


def test_a_chat_conversation() -> None:
    def call(call_id: str, arguments: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": "shell", "arguments": arguments}}

    def result(call_id: str, content: Any) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": content}

    calls = [call("c1", '{"command": "ls"}'), call("c2", '{"command": "pwd"}')]
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "developer", "content": "more rules"},
        {"role": "user", "content": "task"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        result("c1", "a.txt"),
        result("c2", text("/w")),
        {"role": "system", "content": "a reminder"},
        {"role": "assistant", "content": None, "tool_calls": [call("c3", "{broken")]},
        result("c3", "malformed"),
        {"role": "user", "content": text("go on")},
    ]
    assert show(read("chat", messages=messages).messages) == CONVERSATION


def test_custom_tools_are_functions_with_one_argument() -> None:
    items = [
        {"role": "user", "content": "task"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    ]
    request = read("responses", input=items)
    assert [tool["function"]["name"] for tool in request.tools] == ["shell", "apply_patch"]
    function = request.tools[1]["function"]
    assert function["parameters"]["required"] == ["input"]
    assert "start: x" in function["description"]
    assert show(request.messages)[1:] == [
        ("ai", "", ("c1", "apply_patch", {"input": "*** Begin"})),
        ("tool", "done", "c1"),
    ]
    reply = AIMessage("", tool_calls=[{"name": "apply_patch", "args": {"input": "*** End"}, "id": "c2"}])
    item = json.loads(write_reply(request, reply).body)["output"][0]
    assert (item["type"], item["call_id"], item["input"]) == ("custom_tool_call", "c2", "*** End")


def list_tools(description: str, **fields: Any) -> tuple[list[str], frozenset[str]]:
    """The names of the offered tools and of the custom ones, where all of them stand in the input, as in Codex 0.171."""
    tools = [
        {"type": "custom", "name": "exec", "description": description},
        {"type": "function", "name": "wait"},
    ]
    namespaces = [
        {"type": "namespace", "name": "functions", "tools": [*tools, {"type": "function", **FUNCTION}]},
        {"type": "namespace", "name": "clock", "tools": [{"type": "function", "name": "sleep"}]},
    ]  # fmt: skip
    items = [
        {"type": "additional_tools", "role": "developer", "tools": namespaces},
        {"role": "user", "content": "task"},
    ]
    request = read("responses", input=items, tools=[], **fields)
    assert show(request.messages) == [("human", "task")]
    return [each["function"]["name"] for each in request.tools], request.custom_tools


def test_tools_behind_scripts_are_offered() -> None:
    declared = "Run JavaScript.\n### `apply_patch`\nEdit.\n\n### `exec_command`\n### `other`\n"
    assert list_tools(declared) == (["shell", "apply_patch", "exec_command"], frozenset({"apply_patch"}))
    # Whatever is not understood stays as it is.
    assert list_tools("Run JavaScript.\n### `other`\n") == (["exec", "wait", "shell"], frozenset({"exec"}))


def test_calls_and_results_are_paired() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": ""}}
    messages = [
        {"role": "user", "content": "task"},
        {"role": "assistant", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "unknown", "content": "stray"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "second"},
    ]
    assert show(read("chat", messages=messages).messages)[1:] == [
        ("ai", "", ("c1", "shell", {}), ("c1", "shell", {})),
        *2 * [("tool", "No result of this call was recorded.", "c1")],
        ("human", "Result of call unknown:\nstray"),
        ("ai", "", ("c1", "shell", {})),
        ("tool", "second", "c1"),
    ]


IMAGES: dict[Api, dict[str, Any]] = {
    "responses": {"type": "input_image", "image_url": "data:image/png;base64,AA"},
    "messages": {"type": "image", "source": {"type": "base64", "data": "AA"}},
    "chat": {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
}


@pytest.mark.parametrize("api", APIS)
def test_images_are_refused_unless_the_request_is_passed_on(api: Api) -> None:
    turn = {"role": "user", "content": [{"type": "text", "text": "look"}, IMAGES[api]]}
    body = json.dumps({**MINIMAL[api], "input": [turn], "messages": [turn]}).encode()
    with pytest.raises(RequestError, match=r"an image.*pass requests through") as caught:
        parse_request(api, body)
    assert caught.value.status == 400
    request = parse_request(api, body, accept_images=True)
    assert request.messages[0].text.splitlines()[-1] == "[image]"


@pytest.mark.parametrize("api", APIS)
def test_every_api_has_the_same_tools(api: Api) -> None:
    assert read(api).tools[0] == {"type": "function", "function": FUNCTION}
    assert all(tool["function"]["name"] != "web_search" for tool in read(api).tools)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_a_reply_survives_the_way_through_its_api(api: Api, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if api == "chat" else {}
    calls = [
        {"name": "shell", "args": {"command": "echo 'ä\u2028\n'"}, "id": "c1", "type": "tool_call"},
        {"name": "shell", "args": {}, "id": "c2", "type": "tool_call"},
    ]
    sent = AIMessage("I look.\nTwice.", tool_calls=calls, usage_metadata=USAGE)
    reply = write_reply(read(api, stream=stream, **options), sent)
    assert reply.content_type == ("text/event-stream" if stream else "application/json")
    received = parse_reply(api, reply.content_type, reply.body)
    assert received.text == sent.text
    assert received.tool_calls == calls
    assert received.response_metadata["finish_reason"] == "tool_calls"
    assert received.usage_metadata is not None
    assert received.usage_metadata["input_tokens"] == 1_000
    assert received.usage_metadata["output_tokens"] == 20
    assert received.usage_metadata["input_token_details"]["cache_read"] == 600


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("api", APIS)
def test_finish_reasons_and_malformed_calls(api: Api, stream: bool, finish_reason: str) -> None:
    invalid: Any = {"name": "shell", "args": "{broken", "id": "c1", "error": "", "type": "invalid_tool_call"}
    metadata = {"finish_reason": finish_reason}
    received = []
    for content, calls in (("text", []), ("", [invalid])):
        sent = AIMessage(content, invalid_tool_calls=calls, response_metadata=metadata)
        reply = write_reply(read(api, stream=stream), sent)
        received.append(parse_reply(api, reply.content_type, reply.body))
    assert received[0].response_metadata["finish_reason"] == finish_reason
    if api == "messages":
        assert received[1].tool_calls[0]["args"] == {"malformed_arguments": "{broken"}
    else:
        assert received[1].invalid_tool_calls[0]["args"] == "{broken"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_ids_are_those_of_the_reply(api: Api, stream: bool) -> None:
    sent = AIMessage("x", tool_calls=[{"name": "shell", "args": {}, "id": "call_of_the_model"}])
    first, second = (write_reply(read(api, stream=stream), sent).body for _ in range(2))
    assert b'"call_of_the_model"' in first
    ids = [json.loads(body.partition(b'"id": ')[2].split(b",")[0]) for body in (first, second)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("api", APIS)
def test_a_reply_that_was_cut_off_raises(api: Api) -> None:
    reply = write_reply(read(api, stream=True), AIMessage("I look.", usage_metadata=USAGE))
    events = [event + b"\n\n" for event in reply.body.split(b"\n\n") if event and b"[DONE]" not in event]
    for count in range(len(events)):
        with pytest.raises(ModelError, match="cut off"):
            parse_reply(api, reply.content_type, b"".join(events[:count]))
    assert parse_reply(api, reply.content_type, b"".join(events)).text == "I look."
    # The last event counts only if it is complete.
    with pytest.raises(ModelError, match="cut off"):
        parse_reply(api, reply.content_type, b"".join(events)[:-3])


@pytest.mark.parametrize("reason", [None, "", "eos_token", "missing"])
def test_a_whole_document_is_a_whole_reply(reason: str | None) -> None:
    finish = {} if reason == "missing" else {"finish_reason": reason}
    call = {"id": "a", "type": "function", "function": {"name": "shell", "arguments": {"command": "ls"}}}
    for message, end in (({"content": "Done."}, "stop"), ({"tool_calls": [call]}, "tool_calls")):
        body = json.dumps({"choices": [{"message": message, **finish}]}).encode()
        reply = parse_reply("chat", "application/json", body)
        assert reply.response_metadata["finish_reason"] == end
    assert reply.tool_calls[0]["args"] == {"command": "ls"}
    document = {"content": [{"type": "text", "text": "Done."}], "stop_reason": None}
    assert parse_reply("messages", "application/json", json.dumps(document).encode()).text == "Done."


def fail(code: str, **response: str) -> dict[str, Any]:
    return {"type": "response.failed", "response": {**response, "error": {"code": code, "message": "no"}}}


OVERLOADED = {"type": "overloaded_error", "message": "busy"}
TOO_LONG = {"type": "invalid_request_error", "message": "prompt is too long: 9"}
ERRORS: list[tuple[Api, dict[str, Any], type[Exception]]] = [
    ("messages", {"type": "error", "error": OVERLOADED}, ModelError),
    ("messages", {"type": "error", "error": TOO_LONG}, ContextWindowError),
    ("responses", fail("context_length_exceeded", status="failed"), ContextWindowError),
    ("responses", fail("insufficient_quota"), PermanentModelError),
    ("responses", {"type": "error", "code": "server_error", "message": "busy"}, ModelError),
    ("chat", {"error": {"message": "busy", "code": 500}}, ModelError),
]


@pytest.mark.parametrize(("api", "event", "error"), ERRORS)
def test_errors_inside_a_stream(api: Api, event: dict[str, Any], error: type[Exception]) -> None:
    body = f"event: x\r\ndata: {json.dumps(event)}\r\n\r\n".encode()
    with pytest.raises(error) as caught:
        parse_reply(api, "text/event-stream; charset=utf-8", body)
    if error is ModelError:
        assert isinstance(caught.value, ModelError)
        assert caught.value.is_transient


@pytest.mark.parametrize("has_index", [True, False])
def test_a_vendor_stream_with_many_deltas_is_joined(has_index: bool) -> None:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        return f"data: {json.dumps({'choices': [{'delta': delta, 'finish_reason': finish}]})}\n\n"

    def part(index: int, **fields: Any) -> dict[str, Any]:
        return {"tool_calls": [{**({"index": index} if has_index else {}), **fields}]}

    chunks = (
        ": comment\n\n",
        chunk({"role": "assistant", "content": "", "reasoning_content": "hm"}),
        *(chunk({"content": letter}) for letter in "Hello"),
        chunk(part(0, id="c1", type="function", function={"name": "shell", "arguments": ""})),
        *(chunk(part(0, function={"arguments": piece})) for piece in ('{"comm', 'and": ', '"ls"}')),
        chunk(part(1, id="c2", function={"name": "shell", "arguments": "{}"})),
        chunk({}, "tool_calls"),
        "data: [DONE]\n\n",
    )
    reply = parse_reply("chat", "text/event-stream", "".join(chunks).encode())
    assert show([reply]) == [("ai", "Hello", ("c1", "shell", {"command": "ls"}), ("c2", "shell", {}))]
    assert reply.additional_kwargs == {"has_thought": True}


def test_errors_have_the_form_of_the_api() -> None:
    for api in APIS:
        reply = write_error(api, 429, "slow down")
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["type"], error["message"]) == (429, "rate_limit_error", "slow down")
    assert json.loads(write_error("messages", 400, "x").body)["type"] == "error"
    coded = write_error("responses", 400, "x", code="context_length_exceeded")
    assert json.loads(coded.body)["error"]["code"]


def test_tokens_are_estimated_at_four_characters() -> None:
    request = read("chat", tools=[], messages=[{"role": "user", "content": "x" * 4_001}])
    assert estimate_request_tokens(request) == 1_001


_KEYS = (
    *("model", "messages", "input", "tools", "system", "instructions", "role", "content", "type", "text"),
    *("tool_calls", "function", "arguments", "name", "id", "call_id", "output", "tool_use_id", "parameters"),
    *("input_schema", "custom", "format", "definition", "stream", "stream_options", "error", "choices"),
    *("message", "delta", "response", "item", "usage", "index", "content_block", "status", "finish_reason"),
)
_WORDS = (
    *("user", "assistant", "system", "developer", "tool", "message", "function", "function_call", "custom"),
    *("function_call_output", "custom_tool_call", "text", "tool_use", "tool_result", "input_text", "refusal"),
    *("message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop"),
    *("response.completed", "response.failed", "response.output_item.done", "error", "completed", "stop"),
    *(None, True, 0, 1, -1.5, 10**30, float("inf"), float("nan"), "", "\ud800", "{}", "[1]", "{broken", "c1"),
)


class RandomJson:
    """Random JSON of the words that the APIs use."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def build_value(self, depth: int = 4) -> Any:
        kind = self._random.random()
        if depth == 0 or kind < 0.5:
            return self._random.choice(_WORDS)
        if kind < 0.65:
            return [self.build_value(depth - 1) for _ in range(self._random.randrange(4))]
        return self.build_object(depth)

    def build_object(self, depth: int = 4) -> dict[str, Any]:
        names = self._random.sample(_KEYS, self._random.randrange(6))
        return {name: self.build_value(depth - 1) for name in names}

    def build_objects(self) -> list[dict[str, Any]]:
        return [self.build_object() for _ in range(self._random.randrange(5))]


_SEEDS = st.integers(min_value=0, max_value=2**32)
_VARIED = settings(max_examples=examples(500))


def describe_failure(call: Callable[[], Any]) -> str | None:
    """Return the message of our own error, if the call raises one; any other error is a bug."""
    try:
        call()
    except TakeoverError as error:
        return str(error)
    return None


def check_request(api: Api, body: dict[str, Any]) -> None:
    request = parse_request(api, json.dumps(body).encode())
    calls: list[str | None] = []
    for message in request.messages:
        if isinstance(message, AIMessage):
            calls += [call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)]
    results = [message.tool_call_id for message in request.messages if isinstance(message, ToolMessage)]
    assert sorted(results) == sorted(call or "" for call in calls)
    json.dumps(list(request.tools), allow_nan=False).encode()
    reply = write_reply(request, AIMessage("x", tool_calls=[{"name": "shell", "args": {}, "id": "c"}]))
    assert parse_reply(api, reply.content_type, reply.body).text == "x"


@_VARIED
@given(st.sampled_from(APIS), _SEEDS)
def test_no_request_breaks_the_reader(api: Api, seed: int) -> None:
    source, user = RandomJson(seed), {"role": "user", "content": "hello"}
    turns = [user, *source.build_objects()]
    body = {**source.build_object(), "model": "m", "messages": turns, "input": turns}
    body["tools"] = source.build_objects()
    failure = describe_failure(lambda: check_request(api, body))
    assert failure is None or ("\n" not in failure and failure.isprintable())


@_VARIED
@given(st.sampled_from(APIS), st.binary(max_size=50), _SEEDS)
def test_no_bytes_break_the_reader(api: Api, body: bytes, seed: int) -> None:
    for each in (body, json.dumps(RandomJson(seed).build_value()).encode()):
        assert describe_failure(lambda each=each: parse_request(api, each)) != ""


@_VARIED
@given(st.sampled_from(APIS), st.booleans(), _SEEDS)
def test_no_answer_of_a_vendor_breaks_the_reader(api: Api, is_stream: bool, seed: int) -> None:
    source = RandomJson(seed)
    kind = "text/event-stream" if is_stream else "application/json"
    stream = "".join(f"data: {json.dumps(source.build_object())}\n\n" for _ in range(4))
    body = stream if is_stream else json.dumps(source.build_value())
    failure = describe_failure(lambda: parse_reply(api, kind, body.encode()))
    assert failure is None or "\n" not in failure


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON|UTF-8"),
        (b'{"model": "m", "input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested|values"),
        (b'{"model": "m", "input": ' + b"[" * 200 + b"]" * 200 + b"}", "nested"),
        (b'{"model": "m", "input": [' + b"[]," * 300_000 + b"1]}", "values"),
        (b'{"model": "m", ' + b",".join(b'"%d":1' % n for n in range(2_000)) + b"}", "keys"),
        (b'{"model": "m", "input": [' + b",".join([b"{}"] * 30_000) + b"]}", "more than 20,000 items"),
        (b'{"model": "m", "input": []}', "no messages"),
        (b'{"model": 1, "input": "x"}', "model"),
        (b'{"model": "m", "input": "x", "tools": [{"type": "function", "name": "a b"}]}', "invalid name"),
    ],
)
def test_hostile_bodies_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_request("responses", body)


def test_numbers_that_json_cannot_express_are_refused_or_dropped() -> None:
    tool = b'{"type": "function", "name": "t", "parameters": {"maximum": %s}}'
    body = b'{"model": "m", "input": "x", "tools": [' + tool + b"]}"
    with pytest.raises(RequestError, match="too large"):
        parse_request("responses", body % b"1e999")
    assert parse_request("responses", body % b"NaN").tools[0]["function"]["parameters"] == {"maximum": None}
    huge = parse_request("responses", body % b"99999999999999999999").tools[0]["function"]["parameters"]
    assert huge == {"maximum": "99999999999999999999"}


def test_lone_surrogates_are_replaced() -> None:
    request = parse_request("responses", b'{"model": "m", "input": "a\\ud800b"}')
    assert request.messages[0].text == "a\ufffdb"
