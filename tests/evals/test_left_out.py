"""Rows name what a graded patch lacks; without a patch nothing is graded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..chat_server import ChatServer
from .conftest import ONE_POINT, RunCommand, read_rows

NO_TEMPORARY_FILES = 'rm -rf "$TMPDIR"; touch "$TMPDIR"'
"""After it, git in the sandbox has no place for its index."""


def _run(run_main: RunCommand, out: Path, command: str, *more: str) -> tuple[int, str]:
    def answer(request: dict[str, Any]) -> tuple[int, bytes]:
        is_first = not any(message["role"] == "assistant" for message in request["messages"])
        return ChatServer.reply(f"```bash\n{command}\n```" if is_first else "<finish>Done.</finish>")

    server = ChatServer()
    server.answer = answer
    try:
        endpoint = ("--successor", "openai:m", "--base-url", server.url)
        done = run_main(*endpoint, "--view", "trace", "--out", out, *ONE_POINT, *more)
    finally:
        server.close()
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_row_names_what_its_patch_lacks(run_main: RunCommand, tmp_path: Path) -> None:
    code, shown = _run(run_main, tmp_path / "out", "truncate -s 17M big.bin")
    rows = read_rows(tmp_path / "out")
    assert code == 0
    assert {row["outcome"] for row in rows} == {"graded"}
    assert all(row["left_out"] == ["big.bin (larger than 16 MiB)"] for row in rows)
    assert all(row["left_out_count"] == 1 for row in rows)
    assert f"Graded patches that lack changes of the run: {len(rows)}" in " ".join(shown.split())
    labels = read_rows(tmp_path / "out", "labels")
    assert all((row["left_out"], row["left_out_count"]) == ([], 0) for row in labels)


@pytest.mark.slow
def test_a_run_without_its_repository_is_graded(run_main: RunCommand, tmp_path: Path) -> None:
    """The base commit is read from a second sandbox."""
    code, _ = _run(run_main, tmp_path / "out", "rm -rf .git; echo new > new.py")
    rows = read_rows(tmp_path / "out")
    assert code == 0
    assert {row["outcome"] for row in rows} == {"graded"}
    assert all("+++ b/new.py" in row["patch"] for row in rows)


@pytest.mark.slow
def test_a_run_without_a_patch_is_an_infrastructure_failure(run_main: RunCommand, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _ = _run(run_main, out, NO_TEMPORARY_FILES, "--sandbox", "process", "--allow-unisolated")
    rows = read_rows(out)
    assert code == 3
    assert {(row["outcome"], row["resolved"]) for row in rows} == {("infrastructure_failure", None)}
    assert all(row["detail"].startswith("no patch: git in the sandbox") for row in rows)
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["infrastructure_failures"]) == len(rows)
    assert all(view["runs"] == 0 for view in summary["views"].values())
