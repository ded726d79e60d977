"""The endpoint, the key and the options that a model's name stands for, as the server sees them."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.load import dumps
from langchain_core.messages import HumanMessage

from langgraph_takeover.evals.models import (
    ModelEntry,
    ModelNameError,
    ModelPrice,
    build_llm,
    build_notes_llm,
    check_model,
    describe_ambiguous_models,
)
from langgraph_takeover.evals.models.endpoints import find_endpoint
from langgraph_takeover.models import build_chat_model
from langgraph_takeover.nodes.model.calls import ask_model

from ...chat_server import ChatServer

KEY = "canary-0123456789"
CLIENTS = {"client", "async_client", "root_client", "root_async_client"}


def ask(server: ChatServer, name: str, models: dict[str, ModelEntry], **settings: Any) -> dict[str, Any]:
    build_llm(name, base_url=settings.pop("base_url", None), models=models, **settings).invoke("hello")
    return server.requests[-1]


def test_an_entry_is_sent_with_its_options(chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_KEY", KEY)
    entry = ModelEntry(
        model="org/served",
        base_url=chat_server.url,
        api_key_env="LAB_API_KEY",
        temperature=0.3,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}, "top_k": 20},
        max_output_tokens=777,
    )
    request = ask(chat_server, "mine", {"mine": entry}, max_reply_tokens=99, temperature=0.9)
    assert request["model"] == "org/served"
    assert (request["temperature"], request["max_completion_tokens"], request["top_k"]) == (0.3, 777, 20)
    assert request["chat_template_kwargs"] == {"enable_thinking": True}
    assert chat_server.keys[-1] == KEY
    assert find_endpoint("mine", {"mine": entry}, "http://other/v1").entry.base_url == chat_server.url


def test_an_entry_without_options_takes_those_of_the_run(chat_server: ChatServer) -> None:
    request = ask(
        chat_server, "mine", {"mine": ModelEntry(model="m")}, base_url=chat_server.url, max_reply_tokens=99
    )
    assert request["max_completion_tokens"] == 99
    assert "temperature" not in request


def test_a_name_may_contain_its_address(chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    request = ask(chat_server, f"openai:org/m@{chat_server.url}", {}, base_url="http://127.0.0.1:1/v1")
    assert request["model"] == "org/m"
    assert chat_server.keys[-1] == KEY


def test_the_key_of_openai_is_not_sent_to_an_entry_s_own_server(
    chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    ask(chat_server, "mine", {"mine": ModelEntry(model="m", base_url=chat_server.url)})
    assert chat_server.keys[-1] == "none"
    ask(chat_server, "mine", {"mine": ModelEntry(model="m")}, base_url=chat_server.url)
    assert chat_server.keys[-1] == KEY


def test_headers_in_the_environment_accompany_the_key_of_openai_only(
    chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    custom = "Authorization: Bearer gateway-key-12345678\nX-Gateway: g\nOPENAI-project: p2"
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", custom)
    monkeypatch.setenv("OPENAI_ORG_ID", "o")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "p")
    monkeypatch.setenv("OPENAI_API_KEY", "main-0123456789")
    monkeypatch.setenv("LAB_API_KEY", KEY)
    plain = ModelEntry(model="a", base_url=chat_server.url)
    models = {"plain": plain, "keyed": plain.model_copy(update={"model": "b", "api_key_env": "LAB_API_KEY"})}
    chat_server.serves = ["a"]
    assert describe_ambiguous_models(models, None, models) is not None
    ask(chat_server, "plain", models)
    ask_model(build_llm("keyed", base_url=None, models=models), [HumanMessage("hello")], timeout_s=20)
    for headers in chat_server.headers:
        assert not headers.keys() & {"x-gateway", "openai-organization", "openai-project"}
    assert chat_server.keys == ["none", KEY]
    ask(chat_server, "openai:m", {}, base_url=chat_server.url)
    assert chat_server.keys[-1] == "main-0123456789"
    assert chat_server.headers[-1].items() >= {("openai-organization", "o"), ("x-gateway", "g")}


def test_a_key_is_neither_printed_nor_serialized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    model = build_llm("openai:m", base_url=None)
    assert KEY not in repr(model) + dumps(model) + model.model_dump_json(exclude=CLIENTS)


@pytest.mark.parametrize("variable", ["OPENAI_API_BASE", "OPENAI_BASE_URL", "LANGSMITH_GATEWAY"])
def test_the_environment_does_not_redirect_a_run(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv(variable, "http://127.0.0.1:1/v1")
    model: Any = build_llm("openai:m", base_url=None)
    assert str(model.root_client.base_url) == "https://api.openai.com/v1/"
    assert model.stream_usage
    assert not build_llm("openai:m", base_url="http://127.0.0.1:1/v1").stream_usage  # type: ignore[attr-defined]


def test_a_program_without_an_address_takes_that_of_the_environment(
    chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ModelNameError, match=r"OPENAI_API_KEY is not set \(set it, or set OPENAI_BASE_URL to"
    ):
        build_chat_model(ModelEntry(model="m"))
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url)
    assert build_chat_model(ModelEntry(model="m")).invoke("hello").text == "ok"


@pytest.mark.parametrize(
    ("name", "models", "base_url", "message"),
    [
        ("gpt-5", {}, None, "unknown model 'gpt-5' (use openai:NAME, replay:FILE or builtin:oracle, or an entry of a"),
        ("codxe:openai:m", {}, None, "codxe:openai:m: unknown agent 'codxe' (use codex, claude-code, mini,"),
        ("codex:native", {}, None, "unknown model 'codex:native' (name the vendor's model: codex:native:NAME)"),
        ("codex:native:", {}, None, "unknown model 'codex:native:' (name the vendor's model: codex:native:NAME)"),
        ("codex:gemini:m", {}, None, "unknown model 'codex:gemini:m' (use openai:NAME, replay:FILE or builtin"),
        ("b", {"a": ModelEntry(model="m")}, None, "or an entry of --models: a)"),
        ("a", {"a": ModelEntry(model="m", api_key_env="LAB_API_KEY")}, None, "a: LAB_API_KEY is not set (its api_key_env in"),
        ("a", {"a": ModelEntry(model="m")}, None, "a: OPENAI_API_KEY is not set (set it, or set OPENAI_BASE_URL to"),
        ("openai:m", {}, None, "openai:m: OPENAI_API_KEY is not set"),
        ("openai:m@http://me:word-1@x/v1", {}, None, "openai:m@URL: has a user, a password or a query"),
        ("openai:m@https://", {}, None, "OPENAI_API_KEY is not set"),
    ],
)  # fmt: skip
def test_what_would_make_every_call_fail_is_found_before(
    name: str, models: dict[str, ModelEntry], base_url: str | None, message: str
) -> None:
    with pytest.raises(ModelNameError) as raised:
        check_model(name, (), base_url, models)
    assert message in str(raised.value)
    assert "word-1" not in str(raised.value)


def test_an_entry_with_its_own_server_needs_no_key() -> None:
    check_model("a", (), None, {"a": ModelEntry(model="m", base_url="http://127.0.0.1:1/v1")})
    check_model("openai:m@http://127.0.0.1:1/v1", (), None)


def test_notes_have_their_own_temperature_and_limit(chat_server: ChatServer) -> None:
    def request(entry: ModelEntry) -> dict[str, Any]:
        own = {"a": entry.model_copy(update={"base_url": chat_server.url})}
        build_notes_llm("a", base_url=None, models=own, max_tokens=1600).invoke("hello")
        return chat_server.requests[-1]

    short = request(ModelEntry(model="m", temperature=1.0, max_output_tokens=200))
    assert (short["temperature"], short["max_completion_tokens"]) == (0.0, 1600)
    thinking = request(ModelEntry(model="m", max_output_tokens=9000, extra_body={"reasoning_effort": "low"}))
    assert (thinking["max_completion_tokens"], thinking["reasoning_effort"]) == (9000, "low")


def test_a_client_of_an_embedding_program(chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ModelEntry(
        model="m",
        base_url=chat_server.url,
        api_key_env="LAB_API_KEY",
        price=ModelPrice(input=1.0, output=2.0),
    )
    with pytest.raises(ModelNameError, match="LAB_API_KEY is not set"):
        build_chat_model(entry)
    monkeypatch.setenv("LAB_API_KEY", KEY)
    assert build_chat_model(entry).invoke("hello").text == "ok"
    assert entry.prices is not None
    assert entry.prices.completion == 2.0
