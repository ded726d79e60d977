"""The commands capture, continue and discard, typed as a user would."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from langgraph_takeover.graph.cli.continuation import describe_account
from langgraph_takeover.sandbox.backends import host

from ...agent_sessions import describe_tree, list_default_steps, make_repository, write_codex_session
from ...conftest import skip_missing

ROOT = Path(__file__).parents[3]


class Terminal:
    """A user's home, a repository with a session of Codex, and programs on PATH."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.repository = root, root / "user", make_repository(root / "shop")
        write_codex_session(self.home, str(self.repository), list_default_steps(self.repository))
        programs = root / "bin"
        programs.mkdir()
        for name in ("claude", "codex"):
            (programs / name).write_text(
                f'#!/bin/sh\necho "{name} in $PWD with $HOME"\nprintf "%s\\n" "$@"\n'
            )
            (programs / name).chmod(0o755)
        self.environment = os.environ | {
            "HOME": str(self.home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "120",
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "handoff", *words]
        return subprocess.run(
            command,
            cwd=self.repository,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    if reason := host.unavailable_reason():
        skip_missing(reason)
    return Terminal(tmp_path)


@pytest.mark.slow
def test_capture_continue_undo_discard(terminal: Terminal) -> None:
    before = describe_tree(terminal.repository), describe_tree(terminal.home)
    captured = terminal.run("capture", "--agent", "codex")
    assert captured.returncode == 0, captured.stderr
    record = captured.stdout.split()[1]
    for line in ("first_validation *  e5", "Changed outside the session: notes.txt", ".env. Keep it private"):
        assert line in captured.stdout
    follow_up = next(line for line in captured.stdout.splitlines() if line.startswith("Next: "))
    words = shlex.split(follow_up.removeprefix("Next: python -m handoff "))
    continued = terminal.run(*words)
    assert continued.returncode == 0, continued.stderr
    checkout = terminal.root / "shop-continued"
    assert f"claude in {checkout} with {terminal.home}" in continued.stdout
    assert "Read the file .git/takeover/prompt.md completely." in continued.stdout
    undone = terminal.run("continue", record, "--undo")
    assert (undone.returncode, undone.stdout) == (0, f"removed   {checkout}\n")
    discarded = terminal.run("discard", record)
    assert discarded.returncode == 0, discarded.stderr
    assert (describe_tree(terminal.repository), describe_tree(terminal.home)) == before


@pytest.mark.slow
def test_print_prepares_and_prints_a_command_for_the_shell(terminal: Terminal) -> None:
    record = terminal.run("capture", "--agent", "codex").stdout.split()[1]
    target = terminal.root / "a b"
    done = terminal.run(
        "continue",
        record,
        "--agent",
        "claude-code",
        "--view",
        "transcript",
        "--in",
        str(target),
        "--print",
        "--verbose",
    )
    assert done.returncode == 0, done.stderr
    assert "history   6 events: 6 converted" in done.stdout
    command = done.stdout.splitlines()[-1]
    shown = subprocess.run(
        ["sh", "-c", command], env=terminal.environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines()[:2] == [f"claude in {target} with {terminal.home}", "--resume"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["capture", "--agent", "nobody"], 2, "--agent: 'nobody' is not known (use codex,"),
        (["capture", "--agent", "claude-code"], 2, "no session in"),
        (["capture", "--agent", "codex", "--session", "zz"], 2, "not found (looked in "),
        (["capture", "--agent", "codex", "--sandbox", "process"], 2, "--allow-unisolated"),
        (["capture", "--agent", "codex", "--sandbox", "docker"], 2, "use host or process"),
        (["capture", "--agent", "codex", "--out", "here"], 2, "inside the repository"),
        (["capture", "--agent", "codex", "--repository", "/"], 2, "not a git repository"),
        (["continue", "x"], 2, "--agent: name the agent"),
        (["continue", "x", "--agent", "codex"], 3, "record not found"),
        (["continue", "x", "--agent", "nobody"], 2, "unknown external agent 'nobody'"),
        (["continue", "x", "--agent", "codex", "--view", "y"], 2, "--view: unknown view"),
        (["continue", "x", "--agent", "codex", "--model", "openai:m"], 2, "only with --sandbox"),
        (["continue", "x", "--agent", "codex", "--sandbox", "host"], 2, "--model openai:NAME@URL"),
        (["continue", "x", "--agent", "codex", "--sandbox", "tent", "--model", "openai:m"], 2, "unknown back end 'tent'"),
        (["continue", "x", "--agent", "codex", "--sandbox", "host", "--model", "m"], 2, "use openai:NAME"),
        (["continue", "x", "--agent", "codex", "--sandbox", "host", "--model", "foo:m"], 2, "use openai:NAME, openai:NAME@URL"),
        (["continue", "x", "--agent", "codex", "--sandbox", "host", "--model", "openai:m"], 2, "OPENAI_API_KEY is not set"),
        (["continue", "x", "--agent", "codex", "--sandbox", "host", "--model", "native:m"], 2, "OPENAI_API_KEY is not set"),
        (["continue", "x", "--agent", "codex", "--sandbox", "process", "--model", "m"], 2, "your files and your network"),
        (["continue", "x", "--agent", "codex", "--image", "i"], 2, "--image: only with --sandbox"),
        (["continue", "x", "--agent", "nobody", "--sandbox", "host", "--model", "openai:m"], 2, "'nobody'"),
        (["continue", "a/b", "--agent", "codex"], 2, "not in a home"),
        (["continue", "../../x", "--undo"], 2, "not in a home"),
        (["continue", "x", "--undo"], 2, "nothing to undo"),
        (["discard", "x"], 3, "record not found"),
    ],
)  # fmt: skip
def test_wrong_requests_are_one_line(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, message: str
) -> None:
    """In this process, because each start of the program takes a second."""
    from typer.testing import CliRunner

    from langgraph_takeover.evals.models.factory import build_agent_model
    from langgraph_takeover.graph.cli.handoffs import add_commands
    from langgraph_takeover.graph.cli.main import _report_errors, app

    monkeypatch.chdir(terminal.repository)
    for name, value in terminal.environment.items():
        monkeypatch.setenv(name, value)
    before = describe_tree(terminal.root)
    if not any(each.name == "capture" for each in app.registered_commands):
        add_commands(app, _report_errors)
    done = CliRunner().invoke(app, words, obj=build_agent_model)
    assert done.exit_code == code, done.output
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert describe_tree(terminal.root) == before


def test_a_patch_stays_in_the_home(terminal: Terminal) -> None:
    """A foreign home may hold a link in the place of the directory for patches."""
    record = terminal.run("capture", "--agent", "codex").stdout.split()[1]
    home, other = terminal.home / ".takeover", terminal.root / "other"
    other.mkdir()
    (home / "continuations").symlink_to(other)
    model = ("--model", "openai:m@http://127.0.0.1:1/v1")
    done = terminal.run("continue", record, "--agent", "codex", "--sandbox", "host", *model)
    assert done.returncode == 2, done.stderr
    assert "leads out of the home" in done.stderr
    assert list(other.iterdir()) == []


def test_the_account_of_events() -> None:
    account = {"converted": 5, "shortened: a text is long": 2, "dropped: left out by the view": 3}
    assert describe_account(account) == (
        "10 events: 5 converted, 2 shortened, 3 dropped (--verbose names the reasons)"
    )
    assert describe_account(account, verbose=True).splitlines()[1:] == [
        "          2 shortened: a text is long", "          3 dropped: left out by the view",
    ]  # fmt: skip
    assert describe_account({"converted": 1}) == "1 event: 1 converted"
