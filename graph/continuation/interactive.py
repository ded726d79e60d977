"""How a person starts an external agent in a terminal: with a first prompt, or in a session that exists."""

from __future__ import annotations

from typing import NamedTuple

MESSAGE, SESSION = "{message}", "{session}"


class InteractiveCommand(NamedTuple):
    """Arguments after the program's name."""

    start: tuple[str, ...]
    resume: tuple[str, ...] = ()
    """Empty if the agent cannot resume a session that was written as files."""
    home_variable: str = ""
    """Environment variable that replaces the directory of the agent's own files."""
    home_directory: str = ""
    """That directory, below the user's home."""


INTERACTIVE_COMMANDS = {
    "codex": InteractiveCommand((MESSAGE,), ("resume", SESSION, MESSAGE), "CODEX_HOME", ".codex"),
    "claude-code": InteractiveCommand(
        (MESSAGE,), ("--resume", SESSION, MESSAGE), "CLAUDE_CONFIG_DIR", ".claude"
    ),
    "qwen-code": InteractiveCommand(("-i", MESSAGE), ("--resume", SESSION, "-i", MESSAGE), "", ".qwen"),
    "opencode": InteractiveCommand(("--prompt", MESSAGE)),
    "mini": InteractiveCommand(("-t", MESSAGE)),
}


def build_interactive_arguments(agent: str, message: str, session_id: str | None = None) -> tuple[str, ...]:
    """Return the arguments that start an agent with a message, in a session if one is named.

    The message becomes neither an option nor a slash command.
    """
    command = INTERACTIVE_COMMANDS[agent]
    text = f"Task: {message}" if message.startswith(("-", "/")) else message
    values = {MESSAGE: text, SESSION: session_id or ""}
    return tuple(values.get(each, each) for each in (command.resume if session_id else command.start))
