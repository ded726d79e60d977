"""Requests that pass on to a vendor may ask its model, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from langgraph_takeover.nodes.external.apis import (
    Api,
    ModelRequest,
    RequestError,
    check_vendor_request,
    parse_request,
    select_vendor_fields,
)

_IMAGE = "data:image/png;base64,AAAA"


def parse(api: Api, **fields: Any) -> ModelRequest:
    turn = {"role": "user", "content": fields.pop("content", "hello")}
    body = {"model": "m", "messages": [turn], "input": [turn], **fields}
    return parse_request(api, json.dumps(body).encode(), accept_images=True)


def describe(api: Api, main_model: str | None = "m", **fields: Any) -> str:
    """Return the reason of a refusal; empty for an accepted request."""
    try:
        check_vendor_request(parse(api, **fields), main_model)
    except RequestError as error:
        return f"{error.status} {error}"
    return ""


ACCEPTED: list[tuple[Api, dict[str, Any]]] = [
    ("responses", {"tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]}),
    (
        "responses",
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]},
    ),
    ("responses", {"previous_response_id": None, "service_tier": "auto", "store": False}),
    ("responses", {"content": [{"type": "input_image", "image_url": _IMAGE}]}),
    ("messages", {"tools": [{"name": "f", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}]}),
    ("messages", {"content": [{"type": "image", "source": {"type": "base64", "data": "AAAA"}}]}),
    ("messages", {"model": "claude-haiku-4-5-20251001"}),
    ("messages", {"model": "claude-3-5-haiku-latest"}),
    ("chat", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("chat", {"content": [{"type": "image_url", "image_url": {"url": _IMAGE}}]}),
]
REFUSED: list[tuple[Api, dict[str, Any], str]] = [
    ("responses", {"tools": [{"type": "web_search"}]}, "'web_search'"),
    ("responses", {"tools": [{"type": "mcp", "server_url": "http://10.0.0.1/"}]}, "'mcp'"),
    ("responses", {"tools": [{"type": "namespace", "tools": [{"type": "code_interpreter"}]}]}, "code_interp"),
    ("responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
    ("responses", {"background": True}, "background"),
    ("responses", {"service_tier": "priority"}, "service_tier"),
    ("responses", {"input": [{"role": "user", "content": "x"}, {"id": "msg_1"}]}, "stored items"),
    ("responses", {"input": [{"role": "user", "content": "x"}, {"type": None, "id": "m"}]}, "stored items"),
    (
        "responses",
        {
            "input": [
                {"role": "user", "content": "x"},
                {
                    "type": "additional_tools",
                    "tools": [{"type": "namespace", "tools": [{"type": "web_search"}]}],
                },
            ]
        },
        "'web_search'",
    ),
    ("messages", {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, "web_fetch"),
    ("messages", {"mcp_servers": [{"type": "url", "url": "http://10.0.0.1/"}]}, "mcp_servers"),
    ("messages", {"model": "claude-opus-4"}, "another model"),
    ("messages", {"model": "claude-haiku-4-5 or claude-opus-4"}, "another model"),
    ("chat", {"web_search_options": {"user_location": {}}}, "web_search_options"),
    ("chat", {"tools": [{"type": "web_search"}]}, "'web_search'"),
]
ADDRESSES: list[tuple[Api, dict[str, Any]]] = [
    ("responses", {"type": "input_image", "image_url": "http://10.0.0.1/?secret"}),
    ("responses", {"type": "input_file", "file_url": "http://10.0.0.1/?secret"}),
    ("responses", {"type": "input_file", "file_id": "file-1"}),
    ("messages", {"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/?secret"}}),
    ("messages", {"type": "document", "source": {"type": "content", "content": [{"url": "ftp://x"}]}}),
    ("chat", {"type": "image_url", "image_url": {"url": "HTTP://10.0.0.1/?secret"}}),
    ("chat", {"type": "file", "file": {"file_id": "file-1"}}),
]


@pytest.mark.parametrize(("api", "fields"), ACCEPTED)
def test_accepted_requests(api: Api, fields: dict[str, Any]) -> None:
    assert describe(api, **fields) == ""


@pytest.mark.parametrize(("api", "fields", "reason"), REFUSED)
def test_refused_requests(api: Api, fields: dict[str, Any], reason: str) -> None:
    description = describe(api, **fields)
    assert description.startswith("403 ")
    assert reason in description


@pytest.mark.parametrize(("api", "part"), ADDRESSES)
def test_a_vendor_fetches_no_address(api: Api, part: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="must be in the request itself"):
        parse(api, content=[part])


def test_references_to_stored_items_are_refused() -> None:
    items = [{"role": "user", "content": "hello"}, {"type": "item_reference", "id": "msg_1"}]
    assert "stored items" in describe("responses", input=items)


def test_a_run_without_a_model_of_its_own_accepts_any() -> None:
    assert describe("chat", main_model=None) == ""
    assert "another model" in describe("chat", main_model="other")


DROPPED: list[tuple[Api, dict[str, Any]]] = [
    ("chat", {"plugins": [{"id": "web"}]}),
    ("chat", {"enable_search": True}),
    ("chat", {"search_parameters": {"mode": "on"}}),
    ("chat", {"models": ["expensive"], "route": "fallback"}),
    ("chat", {"n": 128}),
    ("chat", {"Model": "expensive", "Tools": [{"type": "web_search"}]}),
    ("chat", {"store": True}),
    ("messages", {"speed": "fast", "inference_geo": "us"}),
    ("responses", {"max_tool_calls": 5}),
]


@pytest.mark.parametrize(("api", "fields"), DROPPED)
def test_other_fields_do_not_pass_on(api: Api, fields: dict[str, Any]) -> None:
    plain, request = parse(api), parse(api, **fields)
    passed = json.loads(select_vendor_fields(request, json.dumps(request.body).encode()))
    assert not passed.keys() & fields.keys()
    assert passed.items() <= {**plain.body, "store": False}.items()


def test_the_vendor_stores_no_response() -> None:
    for fields in ({}, {"store": True}, {"store": 0}):
        request = parse("responses", **fields)
        assert json.loads(select_vendor_fields(request, b"unused"))["store"] is False
    body = b'{ "model":"m", "store": false, "input": "hello" }'
    assert select_vendor_fields(parse_request("responses", body), body) is body


def test_a_key_that_stands_twice_is_refused() -> None:
    """The vendor's parser could read the other value than ours."""
    text = '{"model": "m", "messages": [{"role": "user", "content": "x"}], %s}'
    for second in ('"model": "expensive"', '"\\u006dodel": "expensive"', '"metadata": {"a": 1, "a": 2}'):
        with pytest.raises(RequestError, match="same key twice"):
            parse_request("chat", (text % second).encode())
