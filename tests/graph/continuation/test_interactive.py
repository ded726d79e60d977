"""The commands that start an agent in a terminal."""

from __future__ import annotations

import pytest

from langgraph_takeover.handoff.agents import find_adapter


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
    assert find_adapter(agent).program.terminal.fill("Go", session) == arguments


@pytest.mark.parametrize("message", ["--help", "/clear", "-p"])
def test_a_message_is_neither_an_option_nor_a_slash_command(message: str) -> None:
    assert find_adapter("codex").program.terminal.fill(message) == (f"Task: {message}",)
