"""Small files of the repository are read in one call; links, pipes, long and missing files are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.changes.file_access import read_small_files
from langgraph_takeover.sandbox.interface import Sandbox, SandboxSpec
from langgraph_takeover.testing.sandboxes import run


@pytest.fixture
def live_sandbox(repository: Path) -> Iterator[Sandbox]:
    found = sandbox.start(SandboxSpec(backend="process", directory=repository, owner="test-contents"))
    yield found
    found.close()


def test_small_files_are_read(live_sandbox: Sandbox) -> None:
    names = ["-n", "a b.txt", "it's.txt", "d/é.bin", "$(touch hacked)"]
    for name in names:
        live_sandbox.write_file(name, f"{name}\n".encode() + b"\xff\x00")
    assert read_small_files(live_sandbox, names, 100) == {
        name: f"{name}\n".encode() + b"\xff\x00" for name in names
    }
    assert "hacked" not in run(live_sandbox, "ls").output.split()


def test_other_files_are_left_out(live_sandbox: Sandbox) -> None:
    run(
        live_sandbox,
        "ln -s /etc/passwd link; mkfifo pipe; mkdir dir; : >empty; head -c 101 /dev/zero >long; echo x >x",
    )
    names = ["link", "pipe", "dir", "empty", "long", "missing", "x", "a\0b"]
    assert read_small_files(live_sandbox, names, 100) == {"x": b"x\n"}
    assert read_small_files(live_sandbox, [], 100) == {}
