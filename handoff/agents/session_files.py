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

from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.untrusted_input import parse_json, read_untrusted_head
from langgraph_takeover.handoff.agents import codex_rollouts
from langgraph_takeover.sandbox.untrusted_trees import list_matches

LATEST = "latest"
_OPENCODE = "opencode"
_PROGRAM_TIMEOUT_S = 60
_MAX_SHOWN_IDS = 5
_MAX_LISTED_FILES = 100_000
_OPENCODE_ID = re.compile(r"ses_[A-Za-z0-9]{1,60}")
_UUID_CHARS = 36
_STATE_DIRECTORY = re.compile(r'"(?:cwd|workDir)"\s*:\s*("(?:[^"\\\x00-\x1f]|\\["\\/]){1,4096}")')
_STATES = "sessions/*.json"
_MAX_STATES, _MAX_STATE_BYTES, _MAX_PROMPT_CHARS = 200, 1 << 16, 80


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


class Storage(NamedTuple):
    """Where an agent keeps its sessions."""

    directory: str
    """Below the home directory."""
    variable: str
    """Environment variable that replaces the directory; empty if none."""
    pattern: str


_AIDER, _AIDER_FILE = "aider", ".aider.chat.history.md"
STORAGES = {
    "codex": Storage(".codex", "CODEX_HOME", "sessions/*/*/*/rollout-*.jsonl"),
    "claude-code": Storage(".claude", "CLAUDE_CONFIG_DIR", "projects/*/*.jsonl"),
    "qwen-code": Storage(".qwen", "", "projects/*/chats/*.jsonl"),
    "gemini-cli": Storage(".gemini/tmp", "", "*/chats/session-*.json*"),
    "pi": Storage(".pi/agent", "PI_CODING_AGENT_DIR", "sessions/*/*.jsonl"),
    "copilot-cli": Storage(".copilot", "COPILOT_HOME", "session-state/*/events.jsonl"),
    "kimi-code": Storage(".kimi-code", "KIMI_CODE_HOME", "sessions/*/*/agents/main/wire.jsonl"),
}
AGENTS = (*STORAGES, _AIDER, _OPENCODE)


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
    if agent == _AIDER:
        return _list_aider_chats(directory or Path.cwd())
    if agent not in STORAGES:
        raise SessionError(f"unknown agent {agent!r:.80} (use {', '.join(AGENTS)})")
    modified: dict[Path, float] = {}
    for path in list_matches(find_storage(agent, home), STORAGES[agent].pattern)[:_MAX_LISTED_FILES]:
        try:
            info = path.lstat()
        except OSError:
            continue
        # Files of Claude Code's subagents are not sessions of their own.
        if stat.S_ISREG(info.st_mode) and not path.name.startswith("agent-"):
            modified[path] = info.st_mtime
    paths = codex_rollouts.drop_continued(modified) if agent == "codex" else modified
    places = {path: _read_place(agent, path) for path in paths}
    found = [SessionFile(agent, places[path][0], path, modified[path], places[path][1]) for path in paths]
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
    session_id, ran_in = _read_place(agent, path)
    return SessionFile(agent, session_id, path, info.st_mtime, ran_in)


def _read_place(agent: str, path: Path) -> tuple[str, str]:
    """The id of a session, from the name of its file, and its directory if that is in another file."""
    if agent == "codex":
        name = codex_rollouts.parse_name(path)
        return name.thread if name else path.stem[-_UUID_CHARS:], ""
    if agent == "pi":
        return path.stem.rpartition("_")[2], ""
    if agent == "copilot-cli":
        return path.parent.name, ""
    if agent == "gemini-cli":
        return path.stem.rpartition("-")[2], _read_state(path.parents[1] / ".project_root").strip()
    if agent == "kimi-code":
        state = _STATE_DIRECTORY.search(_read_state(path.parents[2] / "state.json"))
        return path.parents[2].name.removeprefix("session_"), json.loads(state[1]) if state else ""
    return path.stem, ""


def _read_state(path: Path) -> str:
    try:
        return read_untrusted_head(path, _MAX_STATE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _list_aider_chats(directory: Path) -> list[SessionFile]:
    """The history of aider in the top directory of a repository; its newest chat counts."""
    path = directory / _AIDER_FILE
    try:
        info = path.lstat()
    except OSError:
        return []
    found = SessionFile(_AIDER, "chat-history", path, info.st_mtime, str(directory.absolute()))
    return [found] if stat.S_ISREG(info.st_mode) else []


def find_storage(agent: str, home: Path) -> Path:
    """Return the directory of an agent's own files: the user's variable may name another one."""
    storage = STORAGES[agent]
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


def find_prompt(session: SessionFile, home: Path) -> str:
    """Name the prompt at which the running agent of a session waits, such as `permission prompt`; empty if unknown.

    Claude Code says so in a file for each of its processes.
    """
    if session.agent != "claude-code":
        return ""
    for path in list_matches(find_storage(session.agent, home), _STATES)[:_MAX_STATES]:
        try:
            state = parse_json(read_untrusted_head(path, _MAX_STATE_BYTES))
        except (OSError, ValueError):
            continue
        if (
            isinstance(state, dict)
            and state.get("sessionId") == session.id
            and state.get("status") == "waiting"
        ):
            return " ".join(str(state.get("waitingFor") or "").split())[:_MAX_PROMPT_CHARS]
    return ""


def _describe_places(home: Path, agents: Sequence[str]) -> str:
    places = [str(find_storage(agent, home)) for agent in agents if agent in STORAGES]
    if _AIDER in agents:
        places.append(_AIDER_FILE)
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
