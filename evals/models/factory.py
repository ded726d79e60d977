"""Construction of chat models from their names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from langgraph_takeover.evals.models.facts import read_facts
from langgraph_takeover.evals.models.names import ModelName, builtin_latency_s, parse_model_name

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from langgraph_takeover.evals.tasks import Task
    from langgraph_takeover.handoff.records.record import HandoffRecord


def build_model(
    name: str,
    *,
    task: Task,
    base_url: str | None,
    record: HandoffRecord | None = None,
    workspace: str = "",
    max_reply_tokens: int | None = None,
    temperature: float | None = None,
) -> BaseChatModel:
    """The chat model of that name. A replay that takes over its own run continues where `record` ends."""
    model = parse_model_name(name)
    if model.is_llm:
        return build_llm(name, base_url=base_url, max_reply_tokens=max_reply_tokens, temperature=temperature)
    if model.kind == "replay":
        from langgraph_takeover.evals.models.replay import ReplayModel, read_trajectory

        turns = read_trajectory(model.file, model.number, workspace)
        return ReplayModel(turns=turns, start=find_first_action(model, record))
    from langgraph_takeover.evals.models.oracle import OracleModel

    assert task.directory is not None
    return OracleModel(facts=(read_facts(task.directory),), latency_s=builtin_latency_s(name))


def build_llm(
    name: str,
    *,
    base_url: str | None,
    max_reply_tokens: int | None = None,
    temperature: float | None = None,
) -> BaseChatModel:
    """The client of an LLM by its name, `openai:NAME`."""
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    # Local servers often need no key, but the client requires one.
    key = os.environ.get("OPENAI_API_KEY") or "none"
    return ChatOpenAI(
        model=parse_model_name(name).rest,
        base_url=base_url,
        api_key=SecretStr(key),
        max_retries=2,
        timeout=300,
        max_completion_tokens=max_reply_tokens,
        temperature=temperature,
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
