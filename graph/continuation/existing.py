"""What to do with a directory in which a continuation exists already."""

from __future__ import annotations

import shlex
from pathlib import Path

from langgraph_takeover.graph.continuation.files import Manifest, find_manifest_of
from langgraph_takeover.graph.continuation.interactive import build_interactive_arguments
from langgraph_takeover.handoff.agents import find_adapter
from langgraph_takeover.handoff.interop.sessions import find_repository_session
from langgraph_takeover.handoff.readers.external.session_files import AGENTS, LATEST, SessionError

_REOPEN_OPTIONS = {
    "codex": "resume", "claude-code": "--resume", "qwen-code": "--resume", "opencode": "--session",
}  # fmt: skip
_PROMPT_FILES = (".git/takeover/prompt.md", ".takeover/prompt.md")


def describe_existing(home: Path, directory: Path, user_home: Path) -> str:
    """Describe in one line why a directory cannot be used, and how to go on in it if it is a continuation."""
    manifest = find_manifest_of(home, directory)
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
