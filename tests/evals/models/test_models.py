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


def test_models_that_an_endpoint_does_not_serve_are_told(chat_server: ChatServer) -> None:
    asked = ("openai:a", "openai:b", "builtin:oracle")
    assert describe_ambiguous_models(asked, chat_server.url) is None  # it has no list
    chat_server.serves = ["a", "b"]
    assert describe_ambiguous_models(asked, chat_server.url) is None
    chat_server.serves = ["a"]
    assert "serves a, but not b" in str(describe_ambiguous_models(asked, chat_server.url))
    assert describe_ambiguous_models(("openai:b",), chat_server.url) is None
    assert describe_ambiguous_models(asked, None) is None


def test_short_names_fit_into_files_and_are_told_apart() -> None:
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
    told = [shorten_model_name(name) for name in names]
    assert len(set(told)) == len(names)
    assert all(len(name) <= 50 and "/" not in name and "." not in name for name in told)
    assert told[0] == "oracle"


@pytest.mark.parametrize("name", ["builtin:oracle+s", "builtin:oracle+1", "builtin:oracle+-1s", "builtin:x"])
def test_what_is_no_built_in_model(name: str) -> None:
    with pytest.raises(ModelNameError):
        parse_model_name(name)


def test_the_built_in_model_waits_as_long_for_the_same_question() -> None:
    (task,) = load_tasks("bundled", limit=1)
    question = [HumanMessage(task.prompt)]
    instant, slow = (
        build_model(name, task=task, base_url=None) for name in ("builtin:oracle", "builtin:oracle+0.3s")
    )
    taken = []
    for _ in range(2):
        began = time.monotonic()
        assert slow.invoke(question).text == instant.invoke(question).text
        taken.append(time.monotonic() - began)
    assert min(taken) > 0.05
