"""Walks over what others change: an absent entry is an answer, never an error."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from langgraph_takeover.handoff.agents.session_files import list_sessions
from langgraph_takeover.handoff.records.record import RecordStore
from langgraph_takeover.sandbox import gc, untrusted_trees
from langgraph_takeover.sandbox.backends import processes
from langgraph_takeover.sandbox.gc import CollectionRequest
from langgraph_takeover.sandbox.isolation import cgroups
from langgraph_takeover.sandbox.snapshots import bases

# Creates and removes directories, each with one more inside, until its input is closed.
_CHURN = """
import os, select, sys
paths = [f"{sys.argv[1]}/{sys.argv[2]}{number}" for number in range(40)]
while not select.select([sys.stdin], [], [], 0)[0]:
    for path in paths:
        os.makedirs(path + sys.argv[3])
    for path in paths:
        os.removedirs(path + sys.argv[3])
"""


@contextlib.contextmanager
def churn(directory: Path, prefix: str = "other", below: str = "/inside") -> Iterator[None]:
    """Let another process create and remove directories while the block runs."""
    (directory / "kept").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _CHURN, str(directory), prefix, below]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            while not list(directory.glob(f"{prefix}*")):
                assert process.poll() is None
                time.sleep(0.001)
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()
    assert process.returncode == 0


WALKS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "matches": ("", lambda root: untrusted_trees.list_matches(root, "*/*")),
    "everything below": ("", lambda root: list(untrusted_trees.walk(root))),
    "signature of a directory": ("", bases._compute_signature),
    "records": ("", lambda root: RecordStore(root).list_ids()),
    "sessions": (".claude/projects", lambda root: list_sessions("claude-code", root)),
    "control groups": ("parent", lambda root: cgroups.remove_stale_groups([root / "parent/kept"])),
    "temporary files": (
        "",
        lambda root: list(gc.list_temporary_resources(CollectionRequest(stores=(root,)))),
    ),
}


@pytest.mark.parametrize("name", WALKS)
def test_entries_vanish_during_a_walk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "")
    directory, look = WALKS[name]
    with churn(tmp_path / directory):
        for _ in range(100):
            look(tmp_path)


def test_runs_vanish_while_stale_ones_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEOVER_HOME", str(tmp_path))
    with churn(tmp_path / "runs", "run"), churn(tmp_path / "bases", "0" * 22):
        for _ in range(10):
            list(gc.list_stored_resources(CollectionRequest()))


def test_processes_end_while_they_are_listed(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["sh", "-c", "while read -r line; do for i in 1 2 3 4 5 6 7 8; do true & done; wait; done"],
        stdin=subprocess.PIPE,
        text=True,
    ) as shell:
        assert shell.stdin is not None
        for _ in range(40):
            shell.stdin.write("\n")
            shell.stdin.flush()
            processes.find_descendants(shell.pid)
            processes.find_run_processes(tmp_path)
        shell.stdin.close()


def test_lists_in_order_what_matches(tmp_path: Path) -> None:
    for name in ("b", "a", ".c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
    assert untrusted_trees.list_matches(tmp_path, "*/x") == sorted(tmp_path.glob("*/x"))
    assert untrusted_trees.list_directory(tmp_path) == sorted(tmp_path.iterdir())
    assert untrusted_trees.list_directory(tmp_path / "absent") == []
    assert untrusted_trees.list_matches(tmp_path / "absent", "*/x") == []
