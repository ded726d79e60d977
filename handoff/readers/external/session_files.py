"""Sessions of external agents in a user's home directory, found by their id."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from langgraph_takeover.handoff.readers.external import codex_threads
from langgraph_takeover.sandbox.interface import TakeoverError
from langgraph_takeover.sandbox.storage.removal import list_matches

LATEST = "latest"
_OPENCODE = "opencode"
_PROGRAM_TIMEOUT_S = 60
_MAX_SHOWN_IDS = 5
_MAX_LISTED_FILES = 100_000
_OPENCODE_ID = re.compile(r"ses_[A-Za-z0-9]{1,60}")
_UUID_CHARS = 36


class SessionError(TakeoverError, LookupError):
    """A session that does not exist, is ambiguous or cannot be exported."""


class SessionFile(NamedTuple):
    """One session of an external agent."""

    agent: str
    id: str
    path: Path | None
    """Its file; None if the agent's program must export it."""
    modified: float
    """Seconds since 1970."""
    directory: str = ""
    """Where it ran, if that is not in its file."""


class _Storage(NamedTuple):
    """Where an agent keeps its sessions."""

    directory: str
    """Below the home directory."""
    variable: str
    """Environment variable that replaces the directory; empty if none."""
    pattern: str


_STORAGES = {
    "codex": _Storage(".codex", "CODEX_HOME", "sessions/*/*/*/rollout-*.jsonl"),
    "claude-code": _Storage(".claude", "CLAUDE_CONFIG_DIR", "projects/*/*.jsonl"),
    "qwen-code": _Storage(".qwen", "", "projects/*/chats/*.jsonl"),
}
AGENTS = (*_STORAGES, _OPENCODE)


@contextmanager
def open_session(session_id: str, home: Path, agents: Sequence[str] = AGENTS) -> Iterator[Path]:
    """Provide the file of a session; that of opencode is exported and exists until the end. Raises SessionError."""
    with open_session_file(select_session(session_id, home, agents), home) as path:
        yield path


@contextmanager
def open_session_file(found: SessionFile, home: Path) -> Iterator[Path]:
    """Provide the file of a listed session; that of opencode is exported and exists until the end. Raises SessionError."""
    if found.path is not None:
        yield found.path
        return
    with tempfile.TemporaryDirectory(prefix="takeover-session-") as directory:
        path = Path(directory, f"{found.id}.json")
        _export_session(found.id, home, path)
        yield path


def list_sessions(agent: str, home: Path, directory: Path | None = None) -> list[SessionFile]:
    """The sessions of an agent, the newest first; empty if it has none. Raises SessionError for an unknown agent.

    opencode lists the sessions of one project, all its clones included: that of `directory`, by default the current one.
    """
    if agent == _OPENCODE:
        return _list_opencode_sessions(home, directory)
    if agent not in _STORAGES:
        raise SessionError(f"unknown agent {agent!r:.80} (use {', '.join(AGENTS)})")
    modified: dict[Path, float] = {}
    for path in list_matches(_find_root(agent, home), _STORAGES[agent].pattern)[:_MAX_LISTED_FILES]:
        try:
            info = path.lstat()
        except OSError:
            continue
        # Files of Claude Code's subagents are no sessions of their own.
        if stat.S_ISREG(info.st_mode) and not path.name.startswith("agent-"):
            modified[path] = info.st_mtime
    paths = codex_threads.drop_continued(modified) if agent == "codex" else modified
    found = [SessionFile(agent, _read_id(agent, path), path, modified[path]) for path in paths]
    return sorted(found, key=lambda session: -session.modified)


def find_session_file(agent: str, path: Path) -> SessionFile:
    """The session in a file anywhere, such as one from another computer. Raises SessionError."""
    try:
        info = path.stat()
    except OSError as error:
        raise SessionError(
            f"session file {path}: {error.strerror} (pass the id or the file of a session)"
        ) from error
    if agent not in AGENTS or not stat.S_ISREG(info.st_mode):
        raise SessionError(
            f"session file {path}: not a file of {agent:.80} (pass the id or the file of a session)"
        )
    return SessionFile(agent, _read_id(agent, path), path, info.st_mtime)


def _read_id(agent: str, path: Path) -> str:
    """The id in the name of a file."""
    if agent != "codex":
        return path.stem
    name = codex_threads.parse_name(path)
    return name.thread if name else path.stem[-_UUID_CHARS:]


def _find_root(agent: str, home: Path) -> Path:
    storage = _STORAGES[agent]
    replaced = os.environ.get(storage.variable) if storage.variable and home == Path.home() else None
    return Path(replaced) if replaced else home / storage.directory


def select_session(
    session_id: str, home: Path, agents: Sequence[str], directory: Path | None = None
) -> SessionFile:
    """Return the session with that id or unique beginning of an id; `latest` is the newest one.

    `directory` is that of `list_sessions`. Raises SessionError.
    """
    sessions = [session for agent in agents for session in list_sessions(agent, home, directory)]
    sessions.sort(key=lambda session: -session.modified)
    if session_id == LATEST:
        if sessions:
            return sessions[0]
        raise SessionError(f"no session found ({_describe_places(home, agents)})")
    matching = [each for each in sessions if each.id == session_id]
    matching = matching or [each for each in sessions if session_id and each.id.startswith(session_id)]
    if len(matching) == 1:
        return matching[0]
    newest = ", ".join(f"{s.id} ({s.agent})" for s in (matching or sessions)[:_MAX_SHOWN_IDS]) or "none"
    if matching:
        raise SessionError(f"session {session_id!r:.80} is ambiguous: {newest} (pass more of the id)")
    places = _describe_places(home, agents)
    raise SessionError(f"session {session_id!r:.80} not found ({places}; newest: {newest})")


def _describe_places(home: Path, agents: Sequence[str]) -> str:
    places = [str(_find_root(agent, home)) for agent in agents if agent in _STORAGES]
    if _OPENCODE in agents:
        has_program = shutil.which(_OPENCODE) is not None
        places.append("opencode" if has_program else "opencode is not on PATH")
    return f"looked in {', '.join(places)}"


def _list_opencode_sessions(home: Path, directory: Path | None) -> list[SessionFile]:
    if shutil.which(_OPENCODE) is None:
        return []
    try:
        rows = json.loads(_run_opencode(home, "session", "list", "--format", "json", directory=directory))
        return [
            SessionFile(
                _OPENCODE, str(row["id"]), None, float(row["updated"]) / 1000, str(row.get("directory") or "")
            )
            for row in rows
            if _OPENCODE_ID.fullmatch(str(row["id"]))
        ]
    except (SessionError, ValueError, KeyError, TypeError, RecursionError):
        # A broken opencode must not hide the sessions of other agents.
        return []


def _export_session(session_id: str, home: Path, path: Path) -> None:
    with path.open("wb") as file:
        _run_opencode(home, "export", session_id, stdout=file.fileno())
    if path.stat().st_size == 0:
        raise SessionError(
            f"session {session_id}: opencode exported nothing (try: opencode export {session_id})"
        )


def _run_opencode(
    home: Path, *arguments: str, directory: Path | None = None, stdout: int = subprocess.PIPE
) -> str:
    command = [_OPENCODE, *arguments]
    environment = dict(os.environ)
    if home != Path.home():
        environment = {name: value for name, value in environment.items() if not name.startswith("XDG_")}
        environment["HOME"] = str(home)
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            timeout=_PROGRAM_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SessionError(f"opencode: {' '.join(arguments)}: {error}") from error
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())[-200:]
        raise SessionError(f"opencode {' '.join(arguments)}: exit code {done.returncode}: {reason}")
    return done.stdout or ""
