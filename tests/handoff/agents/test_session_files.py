"""Sessions of external agents in a home directory, found by id."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_takeover.handoff.agents.session_files import (
    SessionError,
    list_sessions,
    open_session,
    select_session,
)
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.trace.events import Trace

from ...conftest import skip_missing

ROOT = Path(__file__).parents[3]
SESSIONS = Path(__file__).parents[1] / "readers" / "sessions"
CODEX_IDS = ("01a213aa-7c9b-7000-8000-000000000001", "01a213aa-7c9b-7000-8000-000000000002")
CLAUDE_ID = "f8b5ccff-2906-48c0-83fb-e97f693e1e53"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two sessions of Codex, one of Claude Code with a subagent, and one of Qwen Code, oldest first."""
    for name in ("CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    files = {
        f".codex/sessions/2026/01/02/rollout-2026-01-02T03-04-05-{CODEX_IDS[0]}.jsonl": "codex.jsonl",
        f".codex/sessions/2026/01/03/rollout-2026-01-03T03-04-05-{CODEX_IDS[1]}.jsonl": "codex-compacted.jsonl",
        f".claude/projects/-repo/{CLAUDE_ID}.jsonl": "claude-code.jsonl",
        ".qwen/projects/-repo/chats/aaaa.jsonl": "qwen-code.jsonl",
        ".claude/projects/-repo/agent-1234.jsonl": "claude-code.jsonl",
    }
    for number, (name, source) in enumerate(files.items()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SESSIONS / source, path)
        os.utime(path, (1000 + number, 1000 + number))
    return tmp_path


def test_by_id_prefix_and_latest(home: Path) -> None:
    assert select_session("latest", home, ("codex",)).id == CODEX_IDS[1]
    first = select_session(CODEX_IDS[0], home, ("codex",))
    assert first.path is not None
    assert first.path.parent.name == "02"
    assert select_session("f8b5", home, ("claude-code",)).id == CLAUDE_ID
    with open_session("latest", home, ("codex", "claude-code", "qwen-code")) as path:
        assert path.stem == "aaaa"
    assert [session.id for session in list_sessions("claude-code", home)] == [CLAUDE_ID]


def test_the_newest_file_of_a_session_of_codex(home: Path) -> None:
    """After a rewind, the session goes on in a file with a further id."""
    name = f".codex/sessions/2026/01/04/rollout-2026-01-04T03-04-05-{CODEX_IDS[0]}_{CODEX_IDS[1]}.jsonl"
    (home / name).parent.mkdir()
    shutil.copy(SESSIONS / "codex-compacted.jsonl", home / name)
    found = select_session(CODEX_IDS[0], home, ("codex",))
    assert found.path == home / name
    assert [each.id for each in list_sessions("codex", home)] == [CODEX_IDS[0], CODEX_IDS[1]]


@pytest.mark.parametrize(
    ("session", "agent", "message"),
    [
        (
            "zzz",
            "codex",
            rf"session 'zzz' not found \(looked in .*\.codex; newest: {CODEX_IDS[1]} \(codex\), ",
        ),
        (
            "01a2",
            "codex",
            rf"session '01a2' is ambiguous: {CODEX_IDS[1]} \(codex\), .* \(pass more of the id\)",
        ),
        ("", "codex", "session '' not found"),
        ("../../etc/passwd", "qwen-code", "not found"),
        (
            "a",
            "nope",
            r"unknown agent 'nope' \(use codex, claude-code, qwen-code, gemini-cli, pi, .*, opencode\)",
        ),
    ],
)
def test_errors_are_one_line(home: Path, session: str, agent: str, message: str) -> None:
    with pytest.raises(SessionError, match=message) as caught:
        select_session(session, home, (agent,))
    assert "\n" not in str(caught.value)


def test_an_empty_home(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match=r"no session found \(looked in .*/\.codex\)"):
        select_session("latest", tmp_path, ("codex",))


def test_links_are_no_sessions(home: Path) -> None:
    link = home / ".qwen" / "projects" / "-repo" / "chats" / "bbbb.jsonl"
    link.symlink_to("/etc/passwd")
    assert [session.id for session in list_sessions("qwen-code", home)] == ["aaaa"]


def run_detect(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "evals.detect", *arguments],
        cwd=ROOT,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_detect_finds_a_session(home: Path) -> None:
    done = run_detect(home, "--session", "f8b5", "--json")
    assert '"format": "claude-code"' in done.stdout
    assert "first_source_edit" in done.stdout
    missing = run_detect(home, "--session", "nope", "--agent", "codex")
    assert missing.returncode == 2
    assert missing.stderr.startswith("error: --session: session 'nope' not found (looked in ")
    assert len(missing.stderr.splitlines()) == 1


def test_other_directories_by_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".codex").rename(home / "elsewhere")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CODEX_HOME", str(home / "elsewhere"))
    with open_session(CODEX_IDS[0], home, ("codex",)) as path:
        assert path.is_relative_to(home / "elsewhere")


@pytest.mark.slow
def test_opencode_exports_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("opencode") is None:
        skip_missing("opencode is not on PATH (make agents installs it into .agents)")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENCODE_DISABLE_MODELS_FETCH", "1")
    subprocess.run(
        ["opencode", "import", str(SESSIONS / "opencode.json")], check=True, cwd=tmp_path, timeout=120
    )
    with open_session("latest", tmp_path, ("opencode",)) as path:
        (trace,) = read_traces(path)
        assert isinstance(trace, Trace)
        assert trace.format == "opencode"
    assert not path.exists()
