"""Tests and the main command work in any environment of their parent process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .evals.conftest import ONE_POINT, read_rows

ROOT = Path(__file__).parents[1]
SAMPLE = (
    "tests/evals/run/execution/test_signals.py",
    "tests/evals/test_usage.py",
    "tests/sandbox/test_main.py",
)
ADVERSE = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "POSIX",
    "TZ": "Asia/Kathmandu",
    "TERM": "xterm-256color",
    "COLUMNS": "20",
    "FORCE_COLOR": "1",
    "GIT_DIR": "/nonexistent",
    "http_proxy": "http://127.0.0.1:9",
    "no_proxy": "example.org",
}


def run_in_adverse_environment(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    def ignore_signals() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.umask(0o077)

    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=ROOT,
        env=ADVERSE | env,
        preexec_fn=ignore_signals,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_tests_are_independent_of_their_parent_process() -> None:
    done = run_in_adverse_environment("pytest", *SAMPLE, "-p", "no:cacheprovider", CI="true")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.slow
def test_a_run_is_independent_of_its_parent_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    stores = {"TAKEOVER_HOME": str(tmp_path / "stores"), "XDG_CACHE_HOME": str(tmp_path)}
    done = run_in_adverse_environment(
        "evals.takeover", *ONE_POINT, "--sandbox", "process", "--out", out, **stores
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["resolved"] for row in read_rows(out)] == [True, True]
    assert (out / "report.html").is_file()
