"""Construction of chat models from their names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from langgraph_takeover.evals.models.endpoints import (
    Endpoint,
    check_client,
    check_key,
    find_endpoint,
    find_entry_endpoint,
)
from langgraph_takeover.evals.models.entries import ModelEntry, Models
from langgraph_takeover.evals.models.facts import read_facts
from langgraph_takeover.evals.models.model_names import (
    NATIVE,
    ModelName,
    ModelNameError,
    builtin_latency_s,
    parse_model_name,
    split_agent,
)

READ_TIMEOUT_S = 300.0

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from langgraph_takeover.evals.models.scripted import ScriptedModel
    from langgraph_takeover.evals.tasks import Task
    from langgraph_takeover.handoff.records.record import HandoffRecord


def build_model(
    name: str,
    *,
    task: Task,
    base_url: str | None,
    models: Models | None = None,
    record: HandoffRecord | None = None,
    workspace: str = "",
    max_reply_tokens: int | None = None,
    read_timeout_s: float = READ_TIMEOUT_S,
) -> BaseChatModel:
    """The chat model of that name. A replay that takes over its own run continues where `record` ends."""
    model = parse_model_name(name)
    if model.kind == NATIVE:
        return _build_vendor_model(model, find_endpoint(name, {}, None))
    if model.is_llm:
        return build_llm(
            name,
            base_url=base_url,
            models=models,
            max_reply_tokens=max_reply_tokens,
            read_timeout_s=read_timeout_s,
        )
    if model.kind == "replay":
        from langgraph_takeover.evals.models.replay import ReplayModel, read_trajectory

        turns = read_trajectory(model.file, model.number, workspace)
        return _fit_to_agent(
            ReplayModel(turns=turns, start=find_first_action(model, record)), model, workspace
        )
    from langgraph_takeover.evals.models.oracle import OracleModel

    assert task.directory is not None
    oracle = OracleModel(facts=(read_facts(task.directory),), latency_s=builtin_latency_s(name))
    return _fit_to_agent(oracle, model, workspace)


def _fit_to_agent(script: ScriptedModel, model: ModelName, workspace: str) -> BaseChatModel:
    """A scripted model, which calls the tools of an external agent if the name has one."""
    if not model.agent:
        return script
    from langgraph_takeover.evals.models.scripted import AgentToolsModel
    from langgraph_takeover.handoff.agents import find_adapter

    return AgentToolsModel(script=script, adapter=find_adapter(model.agent), workspace=workspace)


def build_vendor_model(agent: str, name: str) -> BaseChatModel:
    """The endpoint of an external agent's own vendor, which gets the agent's requests byte for byte.

    The usual variables name the key and another server. Raises ModelNameError if the key is not set.

    Example:
        >>> import os
        >>> from unittest.mock import patch
        >>> from langgraph_takeover.models import build_vendor_model
        >>> with patch.dict(os.environ, OPENAI_API_KEY="key-of-the-runtime"):
        ...     build_vendor_model("codex", "gpt-5.5").model_name
        'gpt-5.5'
    """
    full_name = f"{agent}:{NATIVE}:{name}"
    endpoint = find_endpoint(full_name, {}, None)
    check_key(full_name, endpoint)
    return _build_vendor_model(parse_model_name(full_name), endpoint)


def _build_vendor_model(model: ModelName, endpoint: Endpoint) -> BaseChatModel:
    from pydantic import SecretStr

    from langgraph_takeover.handoff.agents import find_adapter
    from langgraph_takeover.nodes.external.pass_through import VendorModel

    return VendorModel(
        api=find_adapter(model.agent).api,
        base_url=endpoint.base_url,
        api_key=SecretStr(endpoint.api_key),
        model_name=model.rest,
    )


def build_agent_model(agent: str, name: str) -> tuple[BaseChatModel, str]:
    """The LLM of that name for an external agent, and the model name that the agent sends with its requests.

    `name` is openai:NAME, openai:NAME@URL, or native:NAME at the agent's own vendor, with or without `AGENT:` before it.
    Raises ModelNameError.
    """
    full_name = name if split_agent(name)[0] else f"{agent}:{name}"
    forms = "openai:NAME, openai:NAME@URL or native:NAME"
    try:
        model = parse_model_name(full_name)
    except ModelNameError:
        raise ModelNameError(f"{name!r:.80} (use {forms})") from None
    if model.agent != agent:
        raise ModelNameError(f"{name!r:.80}: the agent is {agent} (omit the agent's name: {forms})")
    if model.kind not in ("openai", NATIVE):
        raise ModelNameError(f"{name!r:.80} (use {forms})")
    if model.kind == NATIVE:
        return build_vendor_model(agent, model.rest), model.rest
    endpoint = find_endpoint(full_name, {}, os.environ.get("OPENAI_BASE_URL"))
    check_key(full_name, endpoint)
    return _build_client(endpoint, None, None), endpoint.entry.model


def build_notes_model(
    name: str,
    *,
    task: Task,
    base_url: str | None,
    models: Models,
    max_tokens: int,
    read_timeout_s: float = READ_TIMEOUT_S,
) -> BaseChatModel:
    """The model of that name as a writer of notes: at temperature 0, with at most `max_tokens` per note.

    A larger `max_output_tokens` of its entry applies instead, because the thought of a thinking model counts, too.
    """
    if not parse_model_name(name).is_llm:
        return build_model(name, task=task, base_url=base_url)
    return build_notes_llm(
        name, base_url=base_url, models=models, max_tokens=max_tokens, read_timeout_s=read_timeout_s
    )


def build_notes_llm(
    name: str,
    *,
    base_url: str | None,
    models: Models,
    max_tokens: int,
    read_timeout_s: float = READ_TIMEOUT_S,
) -> BaseChatModel:
    """An LLM as a writer of notes; see `build_notes_model`."""
    if (model := parse_model_name(name)).kind == NATIVE:
        vendor = _build_vendor_model(model, find_endpoint(name, {}, None))
        return vendor.model_copy(update={"max_output_tokens": max_tokens})
    limit = find_notes_limit(name, models, max_tokens)
    # Constructed with its settings, because the client knows which models reject a temperature.
    settings = {"temperature": 0.0, "max_output_tokens": limit}
    entry = split_agent(name)[1]
    own = {entry: models[entry].model_copy(update=settings)} if entry in models else {}
    return build_llm(
        name,
        base_url=base_url,
        models=own,
        max_reply_tokens=limit,
        temperature=0.0,
        read_timeout_s=read_timeout_s,
    )


def find_notes_limit(name: str, models: Models, max_tokens: int) -> int:
    """The maximum number of tokens of a note by that model."""
    entry = models.get(split_agent(name)[1])
    own = entry.max_output_tokens if entry else None
    return max(own or 0, max_tokens)


def build_llm(
    name: str,
    *,
    base_url: str | None,
    models: Models | None = None,
    max_reply_tokens: int | None = None,
    temperature: float | None = None,
    read_timeout_s: float = READ_TIMEOUT_S,
) -> BaseChatModel:
    """The client of an LLM by its name. Limits and temperature of its entry, if it has any, apply instead of these.

    Raises ModelNameError.
    """
    endpoint = find_endpoint(name, models or {}, base_url)
    limit = endpoint.entry.max_output_tokens or max_reply_tokens
    own_temperature = endpoint.entry.temperature
    return _build_client(
        endpoint, limit, temperature if own_temperature is None else own_temperature, read_timeout_s
    )


def build_chat_model(entry: ModelEntry) -> BaseChatModel:
    """The client of a models file's entry, for `run`, `take_over`, `deliver` or an `Agent`.

    An entry without `base_url` is at OPENAI_BASE_URL, by default at OpenAI. Raises ModelNameError if the variable with its
    key is not set, or if the extra `openai` is not installed.

    Example:
        >>> from langgraph_takeover.models import ModelEntry, build_chat_model
        >>> build_chat_model(ModelEntry(model="qwen", base_url="http://127.0.0.1:8091/v1")).model_name
        'qwen'
    """
    endpoint = find_entry_endpoint(entry, os.environ.get("OPENAI_BASE_URL"))
    check_key(entry.model, endpoint)
    return _build_client(endpoint, entry.max_output_tokens, entry.temperature)


def _build_client(
    endpoint: Endpoint,
    max_tokens: int | None,
    temperature: float | None,
    read_timeout_s: float = READ_TIMEOUT_S,
) -> BaseChatModel:
    from pydantic import SecretStr

    check_client(endpoint.entry.model)
    from langgraph_takeover.evals.models.chat_client import EndpointModel

    entry = endpoint.entry
    return EndpointModel(
        model=entry.model,
        base_url=endpoint.base_url,
        api_key=SecretStr(endpoint.api_key),
        default_headers=endpoint.build_headers(),
        # LangChain's default for OpenAI, which it does not recognize by an explicit address.
        stream_usage=True if entry.base_url is None else None,
        max_retries=2,
        timeout=entry.read_timeout_s or read_timeout_s,
        max_completion_tokens=max_tokens,
        temperature=temperature,
        extra_body=dict(entry.extra_body) or None,
    )


def find_first_action(model: ModelName, record: HandoffRecord | None) -> int:
    """Index of the first action that a replay plays: the end of the record if both have the same trajectory."""
    predecessor = parse_model_name(record.predecessor) if record is not None else None
    if record is not None and predecessor is not None and predecessor.kind == "replay":
        same_file = model.file.resolve() == predecessor.file.resolve() and model.number == predecessor.number
        if same_file and model.start in (None, predecessor.start):
            played = sum(event.kind == "action" for event in record.trace)
            return (predecessor.start or 0) + played
    return model.start or 0
