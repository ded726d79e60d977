"""External agents in LangGraph Studio, with a real Codex: run, walk back to a step, fork."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover.handoff.agents import ADAPTERS
from langgraph_takeover.sandbox.backends import host

from ...agent_programs import find_test_command
from ...chat_server import ChatServer
from ...conftest import skip_missing
from .test_graphs import Studio, answer_request, progress_events

CONTEXT = {"model": "codex:builtin:oracle", "sandbox": "host"}


@pytest.fixture
def codex_studio(tmp_path: Path) -> Iterator[Studio]:
    if reason := host.unavailable_reason():
        skip_missing(reason)
    path = f"{find_test_command(ADAPTERS['codex']).parent}{os.pathsep}{os.environ['PATH']}"
    chat = ChatServer()
    chat.answer = answer_request
    started = Studio(tmp_path, chat.url, PATH=path)
    yield started
    started.stop()
    chat.close()


@pytest.mark.slow
def test_a_run_of_codex_is_forked_at_a_step(codex_studio: Studio) -> None:
    studio, thread = codex_studio, codex_studio.thread()
    stream = studio.run(thread, context=CONTEXT)
    values = studio.values(thread)
    assert values["stop_reason"] == "finished", studio.log()
    assert values["external"]["agent"] == "codex"
    assert values["records"]
    seen = [each["text"] for each in progress_events(stream, "observed")]
    # A fork restores the sandbox of its step, and Codex resumes its own session there.
    checkpoint = studio.checkpoint(thread, 2, "think")
    forked = studio.run(thread, input=None, checkpoint=checkpoint, context=CONTEXT)
    again = [each["text"] for each in progress_events(forked, "observed")]
    assert len(again) == len(seen) - 2
    assert progress_events(forked, "starting")
    assert studio.values(thread)["stop_reason"] == "finished"
    # Another agent cannot continue the session.
    refused = studio.run(thread, input=None, checkpoint=checkpoint, context={"sandbox": "host"})
    (error,) = [each.data for each in refused if each.event == "error"]
    assert "belongs to codex" in error["message"]
