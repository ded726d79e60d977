"""Session files that an attacker wrote cannot make a capture read, write or wait for anything else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from langgraph_takeover.agents import CaptureError, prepare_continuation
from langgraph_takeover.base import untrusted_input
from langgraph_takeover.handoff.agents.session_files import SessionError
from langgraph_takeover.handoff.readers import TraceError
from langgraph_takeover.handoff.records.record import RecordStore

from ...agent_sessions import (
    EDIT,
    list_default_steps,
    make_repository,
    run_git,
    write_claude_session,
    write_codex_session,
)
from .conftest import Workplace


def find_rollouts(workplace: Workplace) -> Path:
    (path,) = workplace.user_home.rglob("rollout-*.jsonl")
    return path


@pytest.mark.parametrize(
    "session_id", ["../../../etc/passwd", "/etc/passwd", "*", "", "-p", "..", "a\0b", "x" * 10_000]
)
def test_an_id_is_never_a_path(workplace: Workplace, session_id: str) -> None:
    with pytest.raises(SessionError, match="not found") as raised:
        workplace.capture(session=session_id)
    assert len(str(raised.value)) < 1000


def test_links_and_pipes_are_no_sessions(workplace: Workplace, tmp_path: Path) -> None:
    path = find_rollouts(workplace)
    secret = tmp_path / "secret.jsonl"
    path.rename(secret)
    path.symlink_to(secret)
    with pytest.raises(SessionError, match="no session in"):
        workplace.capture()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SessionError, match="no session in"):
        workplace.capture()


def test_a_file_that_becomes_a_pipe_does_not_block(workplace: Workplace) -> None:
    path = find_rollouts(workplace)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        untrusted_input.read_untrusted_head(path, 10)


@pytest.mark.parametrize(
    "cwd", ["/", "/etc", "relative", "/\ud800", "/a\0b", "x" * 100_000, "/" + "y" * 5_000]
)
def test_a_session_of_another_directory(workplace: Workplace, cwd: str) -> None:
    find_rollouts(workplace).unlink()
    session = "12345678-0000-4000-8000-000000000000"
    write_codex_session(workplace.user_home, cwd, [(EDIT, "", 0)], session_id=session)
    with pytest.raises(SessionError, match="no session in"):
        workplace.capture()
    with pytest.raises((CaptureError, TraceError)) as raised:
        workplace.capture(session=session)
    assert len(str(raised.value)) < 2000


def test_names_that_a_session_gives_itself(workplace: Workplace) -> None:
    """Id, version and model come from the file: they name no path, and the record can be loaded and continued."""
    path = find_rollouts(workplace)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["payload"] |= {"id": "../../escape", "cli_version": "9" * 100_000, "originator": "\x1b]0;x\x07"}
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = workplace.capture()
    assert done.directory.parent == workplace.home / "records"
    record = RecordStore(workplace.home / "records").load(done.record.id)
    assert record.external is not None
    assert record.external.session_id == path.stem[-36:]
    assert len(record.external.version) <= 60


def test_paths_in_commands_stay_inside(workplace: Workplace, program: Path) -> None:
    """Commands and changes that name files elsewhere create nothing there."""
    steps = [("echo x > ../../outside.txt", "", 0), ("echo y > /etc/takeover-test", "", 0)]
    write_claude_session(workplace.user_home, str(workplace.repository), steps)
    done = workplace.capture("claude-code")
    prepare_continuation(
        workplace.home,
        done.record.id,
        agent="codex",
        view="payload",
        program=program,
        user_home=workplace.user_home,
    )
    assert not Path("/etc/takeover-test").exists()
    assert not (workplace.root.parent / "outside.txt").exists()


def test_a_truncated_last_line_and_a_long_one(workplace: Workplace) -> None:
    path = find_rollouts(workplace)
    with path.open("a") as file:
        file.write(
            json.dumps({"timestamp": "x", "type": "event_msg", "payload": {"text": "y" * 5_000_000}}) + "\n"
        )
        file.write('{"timestamp": "x", "type": "resp')
    assert len(workplace.capture().record.trace) == 6


def test_a_damaged_session(workplace: Workplace) -> None:
    path = find_rollouts(workplace)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{", *lines[1:]]) + "\n")
    assert workplace.capture().skipped_lines == "1 damaged or incomplete line skipped"
    path.write_text(lines[0] + "\n" + "[" * 100_000 + "\n")
    with pytest.raises(TraceError):
        workplace.capture()


def test_links_in_the_repository_are_kept_as_links(
    workplace: Workplace, program: Path, tmp_path: Path
) -> None:
    """A link to a file outside is neither followed by the capture nor by the checkout."""
    outside = tmp_path / "outside"
    outside.write_text("private\n")
    (workplace.repository / "link").symlink_to(outside)
    (workplace.repository / "loop").symlink_to("loop")
    os.mkfifo(workplace.repository / "pipe")
    (workplace.repository / "tool").write_text("#!/bin/sh\n")
    (workplace.repository / "tool").chmod(0o4755)
    write_codex_session(
        workplace.user_home,
        str(workplace.repository),
        list_default_steps(workplace.repository),
        session_id="b" * 36,
    )
    record = workplace.capture(session="b" * 36).record.id
    done = prepare_continuation(
        workplace.home, record, agent="codex", program=program, user_home=workplace.user_home
    )
    assert (done.directory / "link").readlink() == outside
    assert (done.directory / "loop").is_symlink()
    assert not (done.directory / "pipe").exists()
    assert (done.directory / "tool").stat().st_mode & 0o7777 == 0o755


def test_a_repository_starts_no_program(workplace: Workplace, tmp_path: Path) -> None:
    """Git fetches a missing commit with a program that the repository's configuration names."""
    proof = tmp_path / "started"
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "core.fsmonitor": f"touch {proof}",
        "core.sshCommand": f"touch {proof}",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::touch {proof}",
        "protocol.ext.allow": "always",
    }.items():
        run_git(workplace.repository, "config", name, value)
    (workplace.repository / ".git/HEAD").write_text("1" * 40 + "\n")
    with pytest.raises(CaptureError, match="no commit yet"):
        workplace.capture()
    assert not proof.exists()


def test_a_repository_names_no_other_one(workplace: Workplace, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other")
    run_git(workplace.repository, "config", "core.worktree", str(other))
    with pytest.raises(CaptureError, match="names files elsewhere"):
        workplace.capture()
