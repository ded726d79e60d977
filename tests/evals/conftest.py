"""The main commands as users run them, and runs that tests share."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.run.journal import JOURNAL_FILE
from langgraph_takeover.graph.runs.stop_requests import WAITING

from ..command_line import call_main
from ..conftest import skip_missing

RunCommand = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
TWO_TASKS = ("--task-ids", "ledger__ledger-12,galley__galley-31")
ONE_POINT = ("--task-ids", "galley__galley-31", "--points", "first_source_edit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # The first test that needs it makes the shared run.
        if "complete_run" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(400))


def start_takeover(*arguments: str | Path, **env: str) -> subprocess.Popen[str]:
    return start_command("takeover", *_add_no_report(arguments), **env)


def _add_no_report(arguments: tuple[str | Path, ...]) -> tuple[str | Path, ...]:
    """Skip tables, plots and page, a third of the time of a short run, unless a test requests them."""
    return arguments if "--report" in arguments else (*arguments, "--no-report")


def start_command(command: str, *arguments: str | Path, **env: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return subprocess.Popen(
        [sys.executable, "-m", f"evals.{command}", *map(str, arguments)],
        cwd=ROOT,
        env=clean | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="session")
def takeover() -> RunCommand:
    """Run the main command to its end in a separate process."""

    def run(*arguments: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        process = start_takeover(*arguments, **env)
        out, err = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture(scope="session")
def run_main() -> RunCommand:
    """Run the main command to its end in this process, which avoids repeated imports."""
    from langgraph_takeover.evals.takeover import main

    return lambda *arguments: call_main(main, *_add_no_report(arguments))


@pytest.fixture(scope="session")
def poison() -> RunCommand:
    """Run the command that injects text into the records of a run, in this process."""
    from langgraph_takeover.evals.poison import main

    return partial(call_main, main)


@pytest.fixture(scope="session")
def run_report() -> RunCommand:
    """Run the report command in this process."""
    from langgraph_takeover.evals.report import main

    return partial(call_main, main)


@pytest.fixture(scope="session")
def run_compare() -> RunCommand:
    """Run the compare command in this process."""
    from langgraph_takeover.evals.compare import main

    return partial(call_main, main)


@pytest.fixture
def published_rows(tmp_path: Path) -> Path:
    """A copy of published rows, written by hand: six points, four views and two successors."""
    return Path(shutil.copytree(Path(__file__).parent / "published", tmp_path / "published"))


def rewrite_rows(
    out: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None], name: str = "takeovers"
) -> None:
    """Change or delete every row of a file."""
    path = out / f"{name}.jsonl"
    changed = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in changed if row is not None))


@pytest.fixture(scope="session")
def complete_run(takeover: RunCommand, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of two tasks under all views."""
    # Workers of a session share it, because each run takes a minute.
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    out, whole = shared / "complete", shared / "complete.whole"
    with (shared / "complete.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(out, ignore_errors=True)
            done = takeover("--view", "all", *TWO_TASKS, "--out", out, "--report")
            assert done.returncode == 0, done.stderr
            assert "No LLM" in done.stdout
            whole.touch()
    return out


def read_rows(out: Path, name: str = "takeovers") -> list[dict[str, Any]]:
    return [json.loads(row) for row in read_journal_rows(out, name)]


def comparable_rows(out: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows by key without fields that differ between runs; fails on a duplicate key."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in read_rows(out):
        key = (row["record_id"], row["view"], row["successor"], row["repeat"])
        assert key not in found, f"{key} has two rows"
        found[key] = {name: value for name, value in row.items() if name not in ("seconds", "digest")}
    return found


def read_journal_rows(out: Path, name: str) -> list[str]:
    """The rows in the journal, also while a run writes it."""
    if not (out / JOURNAL_FILE).exists():
        return []
    with closing(sqlite3.connect(f"file:{out / JOURNAL_FILE}?mode=ro", uri=True, timeout=60)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'takeover_rows'").fetchone():
            return []
        query = "SELECT row FROM takeover_rows WHERE stage = ? ORDER BY number"
        return [row for (row,) in database.execute(query, (name,))]


def delete_stage_rows(out: Path, name: str) -> None:
    """Delete a stage's rows from the journal."""
    with closing(sqlite3.connect(out / JOURNAL_FILE, timeout=60)) as database:
        database.execute("DELETE FROM takeover_rows WHERE stage = ?", (name,))
        database.commit()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill_process(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def assert_terminated(process: subprocess.Popen[str]) -> None:
    """Check that SIGTERM ended the process, with a line that names `--resume` after the one that says what it waits for."""
    _, err = process.communicate(timeout=300)
    assert process.returncode == 143, err
    *waiting, last = err.splitlines()
    assert waiting in ([], [WAITING]), err
    assert "--resume" in last


def assert_refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    """Check that the command did nothing and printed its reason in one line."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def isolated_sandbox_options() -> tuple[str, ...]:
    """The sandbox options for untrusted models."""
    from langgraph_takeover.sandbox.backends.host import unavailable_reason

    if reason := unavailable_reason():
        skip_missing(reason)
    return ("--sandbox", "host")
