"""The commands that start an agent in a terminal."""

from __future__ import annotations

import pytest

from langgraph_takeover.graph.continuation.terminal_start import (
    INTERACTIVE_COMMANDS,
    build_interactive_arguments,
)
from langgraph_takeover.handoff.agents import ADAPTERS


def test_every_agent_has_a_command() -> None:
    assert set(INTERACTIVE_COMMANDS) == set(ADAPTERS)


@pytest.mark.parametrize(
    ("agent", "session", "arguments"),
    [
        ("codex", None, ("Go",)),
        ("codex", "id", ("resume", "id", "Go")),
        ("claude-code", None, ("Go",)),
        ("claude-code", "id", ("--resume", "id", "Go")),
        ("qwen-code", "id", ("--resume", "id", "-i", "Go")),
        ("opencode", None, ("--prompt", "Go")),
        ("mini", None, ("-t", "Go")),
    ],
)
def test_arguments(agent: str, session: str | None, arguments: tuple[str, ...]) -> None:
    assert build_interactive_arguments(agent, "Go", session) == arguments


@pytest.mark.parametrize("message", ["--help", "/clear", "-p"])
def test_a_message_is_neither_an_option_nor_a_slash_command(message: str) -> None:
    assert build_interactive_arguments("codex", message) == (f"Task: {message}",)
