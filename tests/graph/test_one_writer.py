"""One thread has one writer: a second one is refused, and one that lost its lease writes nothing any more."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import text

from langgraph_takeover import Home, open_home, take_over
from langgraph_takeover.graph.home import DATABASE_FILE
from langgraph_takeover.sandbox.backends.processes import find_run_processes

from .conftest import DONE, RunHarness, parse_events, scripted_model

HELD, FENCED = 3, 4
_WRITER = Path(__file__).with_name("writer.py")
_LONGEST_S = 120.0
_STATEMENTS_AT_WORK = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'
    AND wait_event_type IS DISTINCT FROM 'Lock'
"""


class Writer(NamedTuple):
    """A process that works on the thread, or tries to."""

    process: subprocess.Popen[str]
    directory: Path

    def is_at(self, where: str) -> bool:
        return (self.directory / f"at-{where}-{self.process.pid}").exists()

    def wait_for_end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=_LONGEST_S)
        return self.process.returncode, out, err


class WriterBench:
    """A home on one database, and the processes that share it."""

    def __init__(self, bench: RunHarness, directory: Path, database: str) -> None:
        self.bench = bench
        self.directory = directory
        self.database = database
        """The URL of a PostgreSQL database; empty if `file` is used."""
        self.file = str(directory / "home" / DATABASE_FILE)
        self.writers: list[Writer] = []
        directory.mkdir()

    def start(self, lease_s: float = 30.0) -> Writer:
        base = self.bench.spec.directory
        words = [sys.executable, str(_WRITER), str(self.directory), self.database, str(base), str(lease_s)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.writers.append(Writer(process, self.directory))
        return self.writers[-1]

    def hold(self, where: str) -> None:
        (self.directory / f"hold-{where}").touch()

    def let_go(self, where: str) -> None:
        (self.directory / f"hold-{where}").unlink()

    def home(self) -> Any:
        return open_home(self.directory / "home", self.database or None)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def writer_bench(request: pytest.FixtureRequest, bench: RunHarness, tmp_path: Path) -> Iterator[WriterBench]:
    database = "" if request.param == "sqlite" else str(request.getfixturevalue("postgres_database"))
    found = WriterBench(bench, tmp_path / "writers", database)
    yield found
    for writer in found.writers:
        if writer.process.poll() is None:
            writer.process.kill()
            writer.process.communicate()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONGEST_S
    while not true():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.02)


def suspend_between_transactions(pid: int, database: str) -> None:
    """Suspend a child process, but not in a transaction, whose end all others would wait for.

    `database` is a file of SQLite, or the URL of a PostgreSQL database.
    """
    while True:
        os.kill(pid, signal.SIGSTOP)
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        if not _is_locked(database):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


def read_all_rows(home: Home) -> dict[str, Any]:
    """Everything that a writer can write: all rows of all tables, and all records."""
    tables = ["takeover_leases", "takeover_effects", "takeover_snapshots", "checkpoints", "writes"]
    tables += [] if home.ledger.is_sqlite else ["checkpoint_blobs", "checkpoint_writes"]
    found: dict[str, Any] = {}
    with home.ledger.read_transaction() as connection:
        for table in tables:
            if table == "writes" and not home.ledger.is_sqlite:
                continue
            found[table] = sorted(map(repr, connection.execute(text(f"SELECT * FROM {table}"))))
    for path in home.records.root.rglob("*"):
        info = path.lstat()
        found[str(path)] = (info.st_ino, path.read_bytes() if path.is_file() else None)
    return found


def notes(state: Any) -> str:
    shown = [event.text for event in parse_events(state) if event.kind == "observation"]
    return str(shown[-1])


@pytest.mark.slow
def test_one_of_three_concurrent_resumes_works_and_two_learn_the_holder(writer_bench: WriterBench) -> None:
    writer_bench.hold("model-1")
    first = writer_bench.start()
    until(lambda: first.is_at("model-1"))
    first.process.kill()
    first.process.wait()

    writers = [writer_bench.start() for _ in range(3)]
    until(lambda: sum(writer.process.poll() is None for writer in writers) == 1)
    (winner,) = [writer for writer in writers if writer.process.poll() is None]
    for loser in writers:
        if loser is not winner:
            code, out, err = loser.wait_for_end()
            assert (code, out) == (HELD, "")
            assert err.startswith(f"thread 'thread' is held by process {winner.process.pid} on ")
            assert err.count("\n") == 1
    writer_bench.let_go("model-1")
    code, out, err = winner.wait_for_end()
    assert (code, err) == (0, "")
    done = json.loads(out)
    assert (done["stop"], done["steps"]) == ("finished", 5)
    assert "n * 2" in done["patch"]
    with writer_bench.home() as home:
        assert home.records.list_ids() == ("run.first_source_edit",)
        again = home.history("thread")[0]
        assert (again.step, again.next, again.is_restorable) == (5, (), True)
        assert "+1\n+2\n+3\n" in done["patch"]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    ["record", "model-2", "command", "directory", "snapshot"],
)
def test_a_holder_that_lost_its_lease_writes_nothing_any_more(writer_bench: WriterBench, where: str) -> None:
    writer_bench.hold(where)
    away = writer_bench.start(lease_s=1.0)
    until(lambda: away.is_at(where))
    suspend_between_transactions(away.process.pid, writer_bench.database or writer_bench.file)
    until(lambda: _lease_ended(writer_bench))

    writer_bench.let_go(where)
    other = writer_bench.start()
    code, out, err = other.wait_for_end()
    assert (code, err) == (0, "")
    done = json.loads(out)
    assert (done["stop"], done["steps"]) == ("finished", 5)
    assert "+1\n+2\n+3\n" in done["patch"]
    for unfinished in (writer_bench.directory / "home" / "snapshots").glob(".snapshot-*"):
        shutil.rmtree(unfinished)  # as the garbage collection does with directories unused for a day

    with writer_bench.home() as home:
        before = read_all_rows(home)
        away.process.send_signal(signal.SIGCONT)
        code, out, err = away.wait_for_end()
        assert code == FENCED, err
        assert out == ""
        assert f"thread 'thread' was taken over by process {other.process.pid} on " in err
        assert read_all_rows(home) == before
        assert home.records.list_ids() == ("run.first_source_edit",)
        taken = take_over(
            home,
            "successor",
            record_id="run.first_source_edit",
            model=scripted_model("```bash\ncat notes.txt\n```", DONE),
            sandbox=writer_bench.bench.spec,
            points=(),
        )
        assert notes(taken.state) == "[exit code 0]\n1\n"
    from langgraph_takeover.sandbox import ownership

    assert find_run_processes(ownership.runs_directory() / writer_bench.directory.parent.name) == {}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("where", ["command", "model-2", "directory"])
def test_a_returning_holder_does_not_disturb_the_new_one(writer_bench: WriterBench, where: str) -> None:
    writer_bench.hold(where)
    away = writer_bench.start(lease_s=1.0)
    until(lambda: away.is_at(where))
    suspend_between_transactions(away.process.pid, writer_bench.database or writer_bench.file)
    until(lambda: _lease_ended(writer_bench))

    writer_bench.let_go(where)
    writer_bench.hold("model-4")
    other = writer_bench.start()
    until(lambda: other.is_at("model-4"))
    away.process.send_signal(signal.SIGCONT)
    code, out, err = away.wait_for_end()
    assert (code, out) == (FENCED, ""), err
    assert f"thread 'thread' was taken over by process {other.process.pid} on " in err
    writer_bench.let_go("model-4")
    code, out, err = other.wait_for_end()
    assert (code, err) == (0, "")
    done = json.loads(out)
    assert (done["stop"], done["steps"]) == ("finished", 5)
    assert "+1\n+2\n+3\n" in done["patch"]


def _is_locked(database: str) -> bool:
    """Whether a writer of the thread would have to wait."""
    if not database.startswith("postgresql:"):
        with contextlib.closing(sqlite3.connect(database, timeout=0.2)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        # The server may still have to execute the last statement.
        until(lambda: connection.execute(_STATEMENTS_AT_WORK).fetchone() == (0,))
    with psycopg.connect(database) as connection:
        connection.execute("SET lock_timeout = '200ms'")
        try:
            connection.execute("SELECT * FROM takeover_leases FOR UPDATE")
        except psycopg.errors.LockNotAvailable:
            connection.rollback()
            return True
    return False


def _lease_ended(writer_bench: WriterBench) -> bool:
    with writer_bench.home() as home, home.ledger.read_transaction() as connection:
        ends = connection.execute(text("SELECT expires_at FROM takeover_leases")).scalar_one()
        return bool(ends < home.ledger.now(connection))
