"""How a person starts an external agent in a terminal: with a first prompt, or in a session that exists."""

from __future__ import annotations

import os
import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.graph.continuation.files import Manifest, find_manifest_of
from langgraph_takeover.handoff.agents import find_adapter
from langgraph_takeover.handoff.interop.sessions import find_repository_session
from langgraph_takeover.handoff.readers.external.session_files import AGENTS, LATEST, SessionError

MESSAGE, SESSION = "{message}", "{session}"
_DEFAULT_PROVIDER = "openai"


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
_REOPEN_OPTIONS = {
    "codex": "resume", "claude-code": "--resume", "qwen-code": "--resume", "opencode": "--session",
}  # fmt: skip
_PROMPT_FILES = (".git/takeover/prompt.md", ".takeover/prompt.md")


def build_interactive_arguments(agent: str, message: str, session_id: str | None = None) -> tuple[str, ...]:
    """Return the arguments that start an agent with a message, in a session if one is named.

    The message becomes neither an option nor a slash command.
    """
    command = INTERACTIVE_COMMANDS[agent]
    text = f"Task: {message}" if message.startswith(("-", "/")) else message
    values = {MESSAGE: text, SESSION: session_id or ""}
    return tuple(values.get(each, each) for each in (command.resume if session_id else command.start))


def find_agent_directory(agent: str, user_home: Path) -> Path:
    """Return the directory of an agent's own files: the user's variable may name another one."""
    command = INTERACTIVE_COMMANDS[agent]
    replaced = os.environ.get(command.home_variable) if user_home == Path.home() else None
    return Path(replaced) if replaced else user_home / command.home_directory


def read_model_provider(agent: str, user_home: Path) -> str:
    """Return the model provider of the user's own settings of Codex, by default its vendor's; empty for other agents."""
    if agent != "codex":
        return ""
    try:
        settings = tomllib.loads((find_agent_directory(agent, user_home) / "config.toml").read_text())
    except (OSError, ValueError):
        return _DEFAULT_PROVIDER
    profiles = settings.get("profiles")
    chosen = profiles.get(str(settings.get("profile"))) if isinstance(profiles, dict) else None
    for each in (chosen, settings):
        provider = each.get("model_provider") if isinstance(each, dict) else None
        if isinstance(provider, str) and provider:
            return provider
    return _DEFAULT_PROVIDER


def describe_existing(home: Path, directory: Path, user_home: Path) -> str:
    """Describe in one line why a directory cannot be used, and how to resume in it if it is a continuation."""
    manifest = find_manifest_of(directory)
    if manifest is None:
        return f"--in: {directory} exists already (pass a new directory: --in DIR)"
    command = shlex.join(_build_resume_command(manifest, directory, user_home))
    return (
        f"--in: {directory} is already the continuation of {manifest.record} by {manifest.agent} (to resume it: cd "
        f"{shlex.quote(str(directory))} && {command}; for another copy: --in DIR; to remove it: handoff continue "
        f"{manifest.record} --undo --home {home})"
    )


def _build_resume_command(manifest: Manifest, directory: Path, user_home: Path) -> tuple[str, ...]:
    """Return the agent's own command: its newest session in the directory, or the first prompt if it has none."""
    program = find_adapter(manifest.agent).program.executable
    if manifest.agent in AGENTS:
        try:
            session = find_repository_session(manifest.agent, LATEST, directory, user_home)
            return program, _REOPEN_OPTIONS[manifest.agent], session.id
        except SessionError:
            pass
    prompts = [each for each in _PROMPT_FILES if (directory / each).is_file()]
    message = (
        f"Read the file {prompts[0]} completely, and do the task at its end." if prompts else manifest.task
    )
    return program, *build_interactive_arguments(manifest.agent, message)
