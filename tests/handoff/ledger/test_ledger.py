"""One holder per thread, recorded effects and kept sandboxes, on SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text, update

from langgraph_takeover.handoff.ledger import (
    FencedError,
    Lease,
    Ledger,
    LedgerUnavailableError,
    ThreadHeldError,
    acquire,
    effects,
    leases,
)
from langgraph_takeover.handoff.ledger import effects as snapshots
from langgraph_takeover.handoff.ledger.effects import Effect, EffectKey
from langgraph_takeover.handoff.ledger.leases import renew
from langgraph_takeover.handoff.ledger.store import leases as rows
from langgraph_takeover.sandbox.interface import Snapshot

from ...conftest import mount, mount_small_disk

_ROOT = Path(__file__).resolve().parents[3]
_HOLDER = """
import sys, time
from langgraph_takeover.handoff.ledger import Ledger, acquire
held = acquire(Ledger(sys.argv[1]), sys.argv[2], place="host mine", ttl_s=600)
print("held", flush=True)
time.sleep(600)
"""
_OPENER = """
import sys, time
from pathlib import Path
from langgraph_takeover.handoff.ledger import Ledger, acquire
print("ready", flush=True)
sys.stdin.readline()
acquire(Ledger(sys.argv[1]), sys.argv[2]).release()
"""
SNAPSHOT = Snapshot(
    backend="process", base="b", location="s.tar.zst", digest="d", workspace="/w", shell_state="cd /\n"
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a fresh database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    return str(request.getfixturevalue("postgres_database"))


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    found = Ledger(url)
    yield found
    found.close()


@contextlib.contextmanager
def python(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process, after its first line of output."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() != ""
        yield process
    finally:
        process.kill()
        process.communicate()


def row_of(ledger: Ledger, thread: str) -> Any:
    with ledger.read_transaction() as connection:
        return connection.execute(select(rows).where(rows.c.thread == thread)).one()


def rewrite(ledger: Ledger, thread: str, **values: Any) -> None:
    with ledger.write_transaction() as connection:
        connection.execute(update(rows).where(rows.c.thread == thread).values(**values))


def now(ledger: Ledger) -> float:
    with ledger.read_transaction() as connection:
        return ledger.now(connection)


def one_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_held_thread_names_its_holder_and_the_remaining_time(ledger: Ledger) -> None:
    acquire(ledger, "thread", ttl_s=100)
    with pytest.raises(ThreadHeldError) as caught:
        acquire(ledger, "thread")
    assert f"held by process {os.getpid()} on " in one_line(caught)
    assert any(f"runs {left} s more" in str(caught.value) for left in range(40, 101))
    other = acquire(ledger, "other")
    assert leases.list_threads(ledger) == ("other", "thread")
    other.release()


def test_a_released_thread_can_be_acquired_immediately(ledger: Ledger) -> None:
    first = acquire(ledger, "thread")
    first.release()
    first.release()
    second = acquire(ledger, "thread")
    assert second.token > first.token
    assert second.previous_place == ""
    first.release()
    with pytest.raises(ThreadHeldError):
        acquire(ledger, "thread")


def test_a_dead_holder_on_this_host_holds_nothing(ledger: Ledger, url: str) -> None:
    with python(_HOLDER, url, "thread") as holder:
        with pytest.raises(ThreadHeldError, match=f"process {holder.pid} "):
            acquire(ledger, "thread")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert row_of(ledger, "thread").expires_at > now(ledger)
        assert acquire(ledger, "thread").previous_place == "host mine"


def test_a_zombie_holder_is_dead(ledger: Ledger, url: str) -> None:
    with python(_HOLDER, url, "thread") as holder:
        holder.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        acquire(ledger, "thread").release()


def test_a_reused_process_id_is_another_process(ledger: Ledger) -> None:
    acquire(ledger, "thread", ttl_s=600)
    host, _, _ = row_of(ledger, "thread").process.rpartition("/")
    rewrite(ledger, "thread", process=f"{host}/1.0")
    acquire(ledger, "thread").release()


def test_a_remote_holder_keeps_the_thread_until_its_lease_ends(ledger: Ledger) -> None:
    acquire(ledger, "thread").release()
    elsewhere = {
        "process": "another-boot/4026531836/77/1700000000.0",
        "holder": "process 77 on elsewhere",
        "place": "docker theirs",
    }
    rewrite(ledger, "thread", **elsewhere, expires_at=now(ledger) + 50)
    with pytest.raises(ThreadHeldError, match="process 77 on elsewhere"):
        acquire(ledger, "thread")
    rewrite(ledger, "thread", expires_at=now(ledger) - 0.001)
    assert acquire(ledger, "thread").previous_place == "docker theirs"


def test_a_lease_is_renewed_while_its_holder_lives(ledger: Ledger) -> None:
    lease = acquire(ledger, "thread", ttl_s=0.3)
    first = row_of(ledger, "thread").expires_at
    for _ in range(3):
        while (last := row_of(ledger, "thread").expires_at) <= first:
            time.sleep(0.01)
        first = last
    lease.release()
    assert row_of(ledger, "thread").expires_at == 0


def test_a_lost_lease_allows_nothing_and_renews_nothing(ledger: Ledger) -> None:
    lost = acquire(ledger, "thread")
    key = EffectKey("thread", "task", "1")
    effects.begin(lost, key, "m0")
    snapshots.save(lost, "m1", SNAPSHOT)
    rewrite(ledger, "thread", expires_at=1.0)
    holder = acquire(ledger, "thread")
    before = row_of(ledger, "thread")
    deeds = (
        lambda: effects.begin(lost, key, "m0"),
        lambda: effects.end(lost, key, "m1", "{}"),
        lambda: snapshots.save(lost, "m2", SNAPSHOT),
        lambda: snapshots.remove(lost, ["m1"]),
        lambda: leases.answer_request(lost),
    )
    for deed in deeds:
        with pytest.raises(FencedError, match=f"taken over by process {os.getpid()}"):
            deed()
    renew(lost.ledger, [lost])
    lost.release()
    assert row_of(ledger, "thread") == before
    assert effects.find(ledger, key) == Effect("m0", None, None)
    assert snapshots.list_state_ids(ledger, "thread") == {"m1"}
    holder.release()


def test_one_of_many_concurrent_acquirers_gets_the_thread(ledger: Ledger) -> None:
    together, got = threading.Barrier(8), []

    def ask() -> None:
        together.wait()
        with contextlib.suppress(ThreadHeldError):
            got.append(acquire(ledger, "thread"))

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    (lease,) = got
    assert isinstance(lease, Lease)
    assert row_of(ledger, "thread").token == lease.token


def test_a_handoff_request_is_seen_and_answered(ledger: Ledger) -> None:
    assert not leases.request_handoff(ledger, "thread", "lunch")
    lease = acquire(ledger, "thread")
    assert leases.request_handoff(ledger, "thread", "l" * 900)
    with ledger.write_transaction() as connection:
        lease.require(connection)
    assert lease.handoff_request == "l" * 500
    leases.request_handoff(ledger, "thread", "")
    lease.release()
    later = acquire(ledger, "thread")
    with ledger.write_transaction() as connection:
        later.require(connection)
    assert later.handoff_request == "requested"
    leases.answer_request(later)
    assert later.handoff_request is None
    assert row_of(ledger, "thread").requested is None
    later.release()


def test_an_effect_is_recorded_from_its_start_until_another_node_acts(ledger: Ledger) -> None:
    lease = acquire(ledger, "thread")
    one, two = EffectKey("thread", "task", "1"), EffectKey("thread", "task", "2")
    assert effects.find(ledger, one) is None
    assert effects.begin(lease, one, "m0") is None
    assert effects.begin(lease, one, "another") == Effect("m0", None, None)
    effects.end(lease, one, "m1", '{"text": "é"}')
    assert effects.begin(lease, one, "m0") == Effect("m0", "m1", '{"text": "é"}')
    effects.begin(lease, two, "m1")
    assert effects.find(ledger, one) is not None
    other = acquire(ledger, "other")
    effects.begin(other, EffectKey("other", "task", "1"), "m9")
    effects.begin(lease, EffectKey("thread", "next", "1"), "m1")
    assert effects.find(ledger, one) is None
    assert effects.find(ledger, two) is None
    assert effects.find(ledger, EffectKey("other", "task", "1")) is not None
    lease.release()
    other.release()


def test_snapshots_are_saved_found_and_removed(ledger: Ledger) -> None:
    lease, other = acquire(ledger, "thread"), acquire(ledger, "other")
    snapshots.save(lease, "m1", SNAPSHOT)
    snapshots.save(lease, "m1", SNAPSHOT.model_copy(update={"digest": "another"}))
    snapshots.save(lease, "m2", SNAPSHOT.model_copy(update={"digest": "e"}))
    snapshots.save(other, "m3", SNAPSHOT)
    assert snapshots.find_snapshot(ledger, "m1") == SNAPSHOT
    assert snapshots.find_snapshot(ledger, "m4") is None
    assert snapshots.list_state_ids(ledger, "thread") == {"m1", "m2"}
    assert sorted(each.digest for each in snapshots.list_snapshots(ledger)) == ["d", "d", "e"]
    snapshots.remove(lease, ["m1", "m3"])
    assert snapshots.list_state_ids(ledger, "thread") == {"m2"}
    assert snapshots.list_state_ids(ledger, "other") == {"m3"}
    lease.release()
    other.release()


@pytest.mark.slow
def test_processes_open_a_fresh_database_at_once(url: str) -> None:
    with contextlib.ExitStack() as stack:
        opening = [stack.enter_context(python(_OPENER, url, f"thread {n}")) for n in range(3)]
        for each in opening:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        assert [each.wait() for each in opening] == [0, 0, 0]
    found = Ledger(url)
    assert leases.list_threads(found) == ("thread 0", "thread 1", "thread 2")
    found.close()


def test_waits_for_a_database_under_construction(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE made (x)")
    other.execute("BEGIN IMMEDIATE")
    commit = threading.Timer(0.3, other.execute, ["COMMIT"])
    commit.start()
    try:
        Ledger(f"sqlite:///{path}").close()
    finally:
        commit.join()
        other.close()
    with contextlib.closing(sqlite3.connect(path)) as found:
        assert found.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_database_of_a_newer_version_is_refused(ledger: Ledger, url: str) -> None:
    with ledger.write_transaction() as connection:
        connection.execute(text("UPDATE takeover_schema SET version = 99"))
    with pytest.raises(LedgerUnavailableError, match="schema version 99") as caught:
        Ledger(url)
    assert "update the program" in one_line(caught)


def test_a_database_of_an_earlier_version_is_refused(ledger: Ledger, url: str) -> None:
    with ledger.write_transaction() as connection:
        connection.execute(text("UPDATE takeover_schema SET version = 4"))
    with pytest.raises(LedgerUnavailableError, match=r"schema version 4, which version 0\.1 reads") as caught:
        Ledger(url)
    assert "with that version" in one_line(caught)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("takeover.sqlite", "is not a database URL (use sqlite:///FILE or postgresql://"),
        ("", "is not a database URL"),
        ("sqlite:////nowhere/at/all/ledger.sqlite", "directory not found: /nowhere/at/all"),
        ("mysql://root:hunter2@127.0.0.1/x", "driver is not installed"),
        ("nonsense+driver://root:hunter2@127.0.0.1/x", "driver is not installed"),
        ("postgresql://me:hunter2@127.0.0.1:1/x", "is the server running, and the URL right"),
        ("postgresql://me:hunter2@127.0.0.1:port/x", "is not a database URL"),
    ],
)
def test_an_unavailable_database_is_reported_in_one_line(wrong: str, expected: str) -> None:
    with pytest.raises(LedgerUnavailableError) as caught:
        Ledger(wrong)
    assert expected in one_line(caught)
    assert "hunter2" not in str(caught.value)


def test_a_missing_database_is_reported_without_the_password(postgres_url: str) -> None:
    wrong = postgres_url.replace("postgres@", "postgres:hunter2@").rpartition("/")[0] + "/nowhere"
    with pytest.raises(LedgerUnavailableError, match="nowhere") as caught:
        Ledger(wrong)
    assert "hunter2" not in one_line(caught)


def test_an_invalid_database_file_is_reported_and_left_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("Not a database.\n" * 300)
    with pytest.raises(LedgerUnavailableError, match="no SQLite database") as caught:
        Ledger(f"sqlite:///{file}")
    assert str(file) in one_line(caught)
    assert file.read_text() == "Not a database.\n" * 300
    with pytest.raises(LedgerUnavailableError) as caught:
        Ledger(f"sqlite:///{tmp_path}")
    one_line(caught)


def test_reports_an_unwritable_database(tmp_path: Path) -> None:
    directory = tmp_path / "place"
    directory.mkdir()
    Ledger(f"sqlite:///{directory}/there.sqlite").close()
    with mount("--bind", directory, directory):
        subprocess.run(["mount", "-o", "remount,ro,bind", directory], check=True)
        for name in ("there.sqlite", "new.sqlite"):
            with pytest.raises(
                LedgerUnavailableError, match="the file and its directory must be writable"
            ) as error:
                Ledger(f"sqlite:///{directory}/{name}")
            one_line(error)


def test_a_full_disk_is_reported_and_no_transaction_is_partial(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "place", "2m") as directory:
        ledger = Ledger(f"sqlite:///{directory}/ledger.sqlite")
        lease = acquire(ledger, "thread", ttl_s=3600)
        big = SNAPSHOT.model_copy(update={"shell_state": "x" * 100_000})
        number = 0

        def fill() -> None:
            nonlocal number
            for number in range(100):
                snapshots.save(lease, f"m{number}", big)

        with pytest.raises(LedgerUnavailableError, match="full; free some space and resume") as caught:
            fill()
        one_line(caught)
        assert snapshots.list_state_ids(ledger, "thread") == {f"m{each}" for each in range(number)}
        subprocess.run(["mount", "-o", "remount,size=20m", directory], check=True)
        snapshots.save(lease, f"m{number}", big)
        assert len(snapshots.list_state_ids(ledger, "thread")) == number + 1
        lease.release()
        ledger.close()
