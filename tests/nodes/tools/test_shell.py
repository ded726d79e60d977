"""What the model sees of a command's end, in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.nodes.tools.shell_command import execute_command
from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.sandbox.interface import SandboxSpec
from langgraph_takeover.testing.sandboxes import make_repository
from tests.conftest import skip_missing


def execute(box: sandbox.Sandbox, command: str, timeout_s: float = 20) -> list[str]:
    return execute_command(box, command, timeout_s=timeout_s, max_chars=1000).text.splitlines()


def test_a_timeout_is_reported_with_what_it_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_takeover.sandbox.shell.GRACE_S", 0.5)
    make_repository(tmp_path / "repository")
    stopped = "[stopped after 1 s: the command and its child processes were killed]"
    with sandbox.start(SandboxSpec(backend="process", directory=tmp_path / "repository")) as box:
        pid = execute(box, "sleep 300 & echo $!")[-1]
        assert execute(box, "sleep 60", 0.6) == [stopped]
        assert execute(box, f"kill -0 {pid}") == ["[exit code 0]"]
        lines = execute(box, "exec sleep 60", 0.6)
    assert lines[:2] == [stopped, f"[also killed: sleep 300 (pid {pid})]"]
    assert lines[2].startswith("[the shell ended; a new one was started in ")


def test_a_full_disk_is_reported_with_what_it_killed(tmp_path: Path) -> None:
    if reason := host.unavailable_reason():
        skip_missing(reason)
    make_repository(tmp_path / "repository")
    with sandbox.start(SandboxSpec(backend="host", directory=tmp_path / "repository", disk_mb=20)) as box:
        pid = execute(box, "sleep 300 & echo $!")[-1]
        # It waits for the watch, which looks at the disk now and then.
        fill = "for i in 1 2 3; do head -c 15M /dev/zero >fill-$i; done; sleep 60"
        assert execute(box, fill)[:3] == [
            "[the command ended without an exit code]",
            "[stopped: the sandbox's files exceed its disk limit; everything that ran was killed; delete files first]",
            f"[also killed: sleep 300 (pid {pid})]",
        ]
        assert execute(box, "rm fill-*") == ["[exit code 0]"]


def test_an_ended_shell_is_reported_with_what_it_took_along(tmp_path: Path) -> None:
    if reason := host.unavailable_reason():
        skip_missing(reason)
    make_repository(tmp_path / "repository")
    with sandbox.start(SandboxSpec(backend="host", directory=tmp_path / "repository")) as box:
        pid = execute(box, "sleep 300 & echo $!")[-1]
        assert execute(box, "exit 3")[:2] == ["[exit code 3]", f"[also killed: sleep 300 (pid {pid})]"]


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("printf 'done\\n'", ["done"]),
        ("printf '\\n'", []),
        ("printf 'done\\n\\n'", ["done"]),
        # The shell's own mark, of which it writes the newline first and the rest later.
        ("mark() { local word; for word in $BASH_COMMAND; do [ ${#word} = 32 ] && break; done; ", None),
    ],
    ids=["a line", "a newline", "two newlines", "a part of the mark"],
)
def test_a_killed_shell_shows_nothing_of_its_mark(
    tmp_path: Path, command: str, output: list[str] | None
) -> None:
    make_repository(tmp_path / "repository")
    if output is None:
        command += "printf '\\n%s' ${word:0:9}; kill -9 $$; }; trap '[[ $BASH_COMMAND != *printf*PWD* ]] || mark' DEBUG"
    else:
        command += "; kill -9 $$"
    with sandbox.start(SandboxSpec(backend="process", directory=tmp_path / "repository")) as box:
        lines = execute(box, command)
    assert [line for line in lines if not line.startswith("[")] == (output or [])
