"""The commands capture, continue and discard, typed as a user would."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.filesize import decimal

from langgraph_takeover.graph.cli.continue_command import describe_account
from langgraph_takeover.handoff.__main__ import main
from langgraph_takeover.handoff.views.display import warn_about_size
from langgraph_takeover.sandbox.backends import host

from ...agent_sessions import (
    describe_tree,
    list_default_steps,
    make_repository,
    write_claude_session,
    write_codex_session,
)
from ...command_line import call_main
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
        if words[0] != "continue":  # which becomes the agent's process
            return call_main(main, *words, directory=self.repository, environment=self.environment)
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
    words = shlex.split(follow_up.removeprefix("Next: handoff "))
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


@pytest.mark.cases(12)
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
        (["continue", "y", "--agent", "codex"], 2, "record not found: 'y' in "),
        (["continue", "", "--agent", "codex"], 2, "record not found: ''"),
        (["continue", "x", "--agent", "codex"], 3, "records/x/record.json"),
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
        (["continue", "x", "--agent", "codex", "--processes", "ask"], 2, "--processes: only with --sandbox"),
        (["continue", "x", "--agent", "nobody", "--sandbox", "host", "--model", "openai:m"], 2, "'nobody'"),
        (["continue", "a/b", "--agent", "codex"], 2, "record not found: a/b"),
        (["continue", "../../x", "--undo"], 2, "record not found: ../../x"),
        (["continue", "y", "--undo"], 2, "record not found: 'y'"),
        (["continue", "twin", "--agent", "codex"], 2, "'twin' is ambiguous: twin-1, twin-2 (pass more of the id)"),
        (["discard", "twin"], 2, "'twin' is ambiguous: twin-1, twin-2"),
        (["export", "twin", "file"], 2, "'twin' is ambiguous: twin-1, twin-2"),
        (["show", "twin"], 2, "'twin' is ambiguous: twin-1, twin-2"),
        (["verify", "twin"], 2, "'twin' is ambiguous: twin-1, twin-2"),
        (["take", "twin"], 2, "'twin' is ambiguous: twin-1, twin-2"),
        (["give", "twin", "--to", "ann"], 2, "'twin' is ambiguous: twin-1, twin-2"),
        (["export", "y", "file"], 2, "record not found: 'y'"),
        (["continue", "x", "--agent", "codex", "--sandbox", "host", "--model", "claude-code:native:m"], 2, "the agent is codex"),
        (["continue", "x", "--agent", "codex", "--sandbox", "host", "--model", "codex:native:m"], 2, "OPENAI_API_KEY is not set"),
        (["capture", "--session", "zz"], 2, "session 'zz' of codex, "),
        (["continue", "x", "--undo"], 2, "nothing to undo"),
        (["discard", "y"], 2, "record not found"),
    ],
)  # fmt: skip
def test_wrong_requests_are_one_line(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, message: str
) -> None:
    """In this process, because each start of the program takes a second."""
    from typer.testing import CliRunner

    from langgraph_takeover.evals.models.factory import build_agent_model
    from langgraph_takeover.graph.cli.handoff_cli import app
    from langgraph_takeover.graph.cli.handoff_commands import add_commands

    monkeypatch.chdir(terminal.repository)
    for name, value in terminal.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("x", "twin-1", "twin-2"):
        record = terminal.home / ".takeover" / "records" / name / "record.json"
        record.parent.mkdir(parents=True)
        record.write_text("{}")
    before = describe_tree(terminal.root)
    if not any(each.name == "capture" for each in app.registered_commands):
        add_commands(app)
    done = CliRunner().invoke(app, words, obj=build_agent_model)
    assert done.exit_code == code, done.output
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert describe_tree(terminal.root) == before


@pytest.mark.slow
def test_one_vocabulary(terminal: Terminal) -> None:
    """No agent named, unique prefixes, list, export and import, a second continuation, and an end after a partial undo."""
    write_claude_session(terminal.home, str(terminal.repository), list_default_steps(terminal.repository))
    captured = terminal.run("capture").stdout
    assert captured.startswith("agent     claude-code, which has the newest session here\n")
    assert re.search(r"^Another recent session here: \S+, codex, last written", captured, re.MULTILINE)
    record = captured.partition("record    ")[2].split()[0]
    table = terminal.run("list").stdout
    assert all(
        word in table for word in (record, "claude-code", "first_validation", "total([1, 2]) must be 3")
    )
    assert [each["id"] for each in json.loads(terminal.run("list", "--json").stdout)] == [record]
    assert f"record       {record}" in terminal.run("show", "claude").stdout
    exported = terminal.run("export", record[:14], str(terminal.root / "x.record")).stdout
    size = (terminal.root / "x.record").stat().st_size
    assert (
        f"x.record: {decimal(size)}\nIt holds files that usually contain secrets: .env. Keep it private."
        in exported
    )
    assert (
        terminal.run("continue", "claude", "--agent", "codex", "--view", "transcript", "--print").returncode
        == 0
    )
    checkout = terminal.root / "shop-continued"
    session_file = next(iter(terminal.home.glob(".codex/sessions/*/*/*/*.jsonl")))
    other = terminal.run("capture", "--agent", "claude-code", "--session", str(session_file))
    assert "format is codex, not claude-code (pass codex instead)" in other.stderr
    unknown = terminal.run("capture", "--session", "nope")
    assert (unknown.returncode, "session 'nope' of codex, claude-code, " in unknown.stderr) == (2, True)
    nothing = terminal.run("apply", record)
    assert (nothing.returncode, "itself, without later work" in nothing.stderr) == (2, True)
    again = terminal.run("continue", "claude", "--agent", "codex")
    assert (again.returncode, len(again.stderr.splitlines())) == (2, 1)
    (session,) = (
        path
        for path in terminal.home.glob(".codex/sessions/*/*/*/*.jsonl")
        if str(checkout) in path.read_text()
    )
    assert f"(to resume it: cd {checkout} && codex resume {session.stem[-36:]}; " in again.stderr
    with session.open("a") as file:
        file.write("{}\n")
    (checkout / "shop" / "price.py").write_text("changed")
    assert terminal.run("continue", "claude", "--undo").returncode == 3
    refused = terminal.run("discard", "claude")
    assert (refused.returncode, f"handoff discard {record} --force" in refused.stderr) == (2, True)
    discarded = terminal.run("discard", "claude", "--force")
    assert discarded.returncode == 0, discarded.stderr
    assert discarded.stdout.splitlines() == [
        f"removed   {terminal.home}/.takeover/records/{record}",
        f"stays     {checkout} (checkout of codex, with its files such as .env)",
        f"stays     {session} (session of codex)",
    ]
    imported = terminal.run("import", str(terminal.root / "x.record"))
    assert imported.stdout == f"{terminal.home}/.takeover/records/{record}\n"
    assert terminal.run("discard", record).returncode == 0


def test_a_huge_view_is_named_with_a_bounded_one() -> None:
    line = warn_about_size("trace", 1_300_000, 128_000)
    assert "about 1,300,000 tokens, more than a context window of 128,000" in line
    assert "--view structured" in line
    assert warn_about_size("trace", 128_000, 128_000) == ""


@pytest.mark.slow
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
