"""How a person starts an external agent in a terminal, and the new files that it needs."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path

from langgraph_takeover.base.failures import clean_up
from langgraph_takeover.graph.continuation.known_records import Manifest, find_manifest_of
from langgraph_takeover.graph.continuation.undo import STAGING_SUFFIX
from langgraph_takeover.graph.usage_errors import ContinuationError
from langgraph_takeover.handoff.agents import find_adapter
from langgraph_takeover.handoff.agents.adapter import SESSION, NativeSession
from langgraph_takeover.handoff.agents.session_files import (
    AGENTS,
    LATEST,
    STORAGES,
    SessionError,
    find_storage,
)
from langgraph_takeover.handoff.interop.session_records import find_repository_session
from langgraph_takeover.sandbox.interface import OutOfDiskError

_DEFAULT_PROVIDER = "openai"
_PROMPT_FILES = (".git/takeover/prompt.md", ".takeover/prompt.md")


def read_model_provider(agent: str, user_home: Path) -> str:
    """Return the model provider of the user's own settings of Codex, by default its vendor's; empty for other agents."""
    if agent != "codex":
        return ""
    try:
        settings = tomllib.loads((find_storage(agent, user_home) / "config.toml").read_text())
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
    program = find_adapter(manifest.agent).program
    executable, terminal = program.executable, program.terminal
    if manifest.agent in AGENTS:
        try:
            session = find_repository_session(manifest.agent, LATEST, directory, user_home)
            return executable, *(session.id if each == SESSION else each for each in terminal.reopen)
        except SessionError:
            pass
    prompts = [each for each in _PROMPT_FILES if (directory / each).is_file()]
    message = (
        f"Read the file {prompts[0]} completely, and do the task at its end." if prompts else manifest.task
    )
    return executable, *terminal.fill(message)


def list_session_files(agent: str, user_home: Path, session: NativeSession | None) -> dict[Path, str]:
    """Return the files of the native session by their paths in the agent's home. Raises ContinuationError."""
    files = {}
    for name, text in (session.files if session else {}).items():
        below = Path(name).relative_to(STORAGES[agent].directory)
        path = find_storage(agent, user_home) / below
        if os.path.lexists(path):
            raise ContinuationError(f"{path}: exists already (try again)")
        files[path.absolute()] = text
    return files


def list_missing_directories(files: Mapping[Path, str]) -> list[Path]:
    """Return the directories that the files need and that do not exist, the outermost first."""
    missing = {parent for path in files for parent in path.parents if not parent.exists()}
    return sorted(missing, key=lambda path: len(path.parts))


def create_file(path: Path, text: str) -> None:
    """Write a new file, complete or not at all; never replace one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{secrets.token_hex(8)}{STAGING_SUFFIX}")
    with clean_up(lambda: part.unlink(missing_ok=True)):
        try:
            with part.open("xb") as out:
                part.chmod(0o600)
                out.write(text.encode("utf-8", "backslashreplace"))
                out.flush()
                os.fsync(out.fileno())
            os.link(part, path)
        except FileExistsError as error:
            raise ContinuationError(f"{path}: exists already (try again)") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OutOfDiskError(f"{path}: the disk is full; nothing was kept") from error
            raise


def digest_text(text: str) -> str:
    """Return the SHA-256 of a file with that text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
