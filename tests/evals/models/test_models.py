from __future__ import annotations

import time

import pytest
from langchain_core.messages import HumanMessage

from langgraph_takeover.evals.models import (
    ModelNameError,
    build_model,
    describe_ambiguous_models,
    parse_model_name,
)
from langgraph_takeover.evals.run.settings.config import shorten_model_name
from langgraph_takeover.evals.tasks import load_tasks

from ...chat_server import ChatServer


def test_a_warning_names_models_that_the_endpoint_does_not_serve(chat_server: ChatServer) -> None:
    names = ("openai:a", "openai:b", "builtin:oracle")
    assert describe_ambiguous_models(names, chat_server.url) is None  # the endpoint lists no models
    chat_server.serves = ["a", "b"]
    assert describe_ambiguous_models(names, chat_server.url) is None
    chat_server.serves = ["a"]
    assert "serves a, but not b" in str(describe_ambiguous_models(names, chat_server.url))
    assert describe_ambiguous_models(("openai:b",), chat_server.url) is None
    assert describe_ambiguous_models(names, None) is None


def test_short_names_are_unique_and_valid_in_file_names() -> None:
    names = [
        "builtin:oracle",
        "builtin:oracle+0.5s",
        "openai:oracle!",
        "openai:Qwen/Qwen2.5-Coder",
        "openai:other/Qwen2.5-Coder",
        "openai:../../etc/passwd",
        "replay:/a/run.traj.json#2@7",
        "replay:/b/run.traj.json#2@7",
        "openai:" + "x" * 300,
    ]
    short_names = [shorten_model_name(name) for name in names]
    assert len(set(short_names)) == len(names)
    assert all(len(name) <= 50 and "/" not in name and "." not in name for name in short_names)
    assert short_names[0] == "oracle"


@pytest.mark.parametrize("name", ["builtin:oracle+s", "builtin:oracle+1", "builtin:oracle+-1s", "builtin:x"])
def test_invalid_built_in_model_names(name: str) -> None:
    with pytest.raises(ModelNameError):
        parse_model_name(name)


def test_the_latency_of_the_built_in_model_is_deterministic() -> None:
    (task,) = load_tasks("bundled", limit=1)
    messages = [HumanMessage(task.prompt)]
    instant, slow = (
        build_model(name, task=task, base_url=None) for name in ("builtin:oracle", "builtin:oracle+0.3s")
    )
    durations = []
    for _ in range(2):
        start = time.monotonic()
        assert slow.invoke(messages).text == instant.invoke(messages).text
        durations.append(time.monotonic() - start)
    assert min(durations) > 0.05
