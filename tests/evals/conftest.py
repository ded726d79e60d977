"""The main command as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
TWO = ("--task-ids", "ledger__ledger-12,galley__galley-31")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data that may stand beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("real data is not here: no folder ../shared beside the checkout")
    return SHARED


def start_takeover(*arguments: str | Path, **env: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return subprocess.Popen(
        [sys.executable, "-m", "evals.takeover", *map(str, arguments)],
        cwd=ROOT,
        env=clean | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that runs in the background ignores interrupts, and its children would inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture(scope="session")
def takeover() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the main command to its end."""

    def run(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        process = start_takeover(*arguments, **env)
        out, err = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def undisturbed(
    takeover: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of two tasks under all views that nothing disturbed."""
    out = tmp_path_factory.mktemp("run") / "out"
    done = takeover("--view", "all", *TWO, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "No LLM" in done.stdout
    return out


def rows(out: Path, name: str = "takeovers") -> list[dict[str, Any]]:
    path = out / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def comparable(out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by key, without what differs from run to run; fails when a key comes twice."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows(out):
        key = (row["record_id"], row["view"], row["successor"], row["repeat"])
        assert key not in found, f"{key} has two rows"
        found[key] = {name: value for name, value in row.items() if name != "seconds"}
    return found
