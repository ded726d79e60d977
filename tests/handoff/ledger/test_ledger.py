"""One holder a thread, effects that are known of, machines that are kept: on SQLite and PostgreSQL alike."""

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
    snapshots,
)
from langgraph_takeover.handoff.ledger.effects import Effect, EffectKey
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
    """Another process; it has said its first line."""
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


def one_line(told: pytest.ExceptionInfo[BaseException]) -> str:
    said = str(told.value)
    assert "\n" not in said
    return said


def test_a_held_thread_names_its_holder_and_the_time_that_is_left(ledger: Ledger) -> None:
    acquire(ledger, "thread", ttl_s=100)
    with pytest.raises(ThreadHeldError) as told:
        acquire(ledger, "thread")
    assert f"held by process {os.getpid()} on " in one_line(told)
    assert any(f"runs {left} s more" in str(told.value) for left in range(40, 101))
    other = acquire(ledger, "other")
    assert leases.list_threads(ledger) == ("other", "thread")
    other.release()


def test_a_thread_that_was_let_go_is_had_at_once(ledger: Ledger) -> None:
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


def test_a_holder_that_waits_to_be_reaped_is_dead(ledger: Ledger, url: str) -> None:
    with python(_HOLDER, url, "thread") as holder:
        holder.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        acquire(ledger, "thread").release()


def test_a_process_id_that_has_come_again_is_another_process(ledger: Ledger) -> None:
    acquire(ledger, "thread", ttl_s=600)
    host, _, _ = row_of(ledger, "thread").process.rpartition("/")
    rewrite(ledger, "thread", process=f"{host}/1.0")
    acquire(ledger, "thread").release()


def test_a_holder_elsewhere_is_waited_for_until_its_lease_ends(ledger: Ledger) -> None:
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
    held = acquire(ledger, "thread", ttl_s=0.3)
    first = row_of(ledger, "thread").expires_at
    for _ in range(3):
        while (last := row_of(ledger, "thread").expires_at) <= first:
            time.sleep(0.01)
        first = last
    held.release()
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
    lost.renew(1000.0)
    lost.release()
    assert row_of(ledger, "thread") == before
    assert effects.find(ledger, key) == Effect("m0", None, None)
    assert snapshots.list_state_ids(ledger, "thread") == {"m1"}
    holder.release()


def test_of_many_who_ask_at_once_one_gets_the_thread(ledger: Ledger) -> None:
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
    (held,) = got
    assert isinstance(held, Lease)
    assert row_of(ledger, "thread").token == held.token


def test_a_handoff_is_asked_for_seen_and_answered(ledger: Ledger) -> None:
    assert not leases.request_handoff(ledger, "thread", "lunch")
    held = acquire(ledger, "thread")
    assert leases.request_handoff(ledger, "thread", "l" * 900)
    with ledger.write_transaction() as connection:
        held.require(connection)
    assert held.handoff_request == "l" * 500
    leases.request_handoff(ledger, "thread", "")
    held.release()
    later = acquire(ledger, "thread")
    with ledger.write_transaction() as connection:
        later.require(connection)
    assert later.handoff_request == "requested"
    leases.answer_request(later)
    assert later.handoff_request is None
    assert row_of(ledger, "thread").requested is None
    later.release()


def test_an_effect_is_known_from_its_beginning_until_another_node_acts(ledger: Ledger) -> None:
    held = acquire(ledger, "thread")
    one, two = EffectKey("thread", "task", "1"), EffectKey("thread", "task", "2")
    assert effects.find(ledger, one) is None
    assert effects.begin(held, one, "m0") is None
    assert effects.begin(held, one, "another") == Effect("m0", None, None)
    effects.end(held, one, "m1", '{"text": "é"}')
    assert effects.begin(held, one, "m0") == Effect("m0", "m1", '{"text": "é"}')
    effects.begin(held, two, "m1")
    assert effects.find(ledger, one) is not None
    other = acquire(ledger, "other")
    effects.begin(other, EffectKey("other", "task", "1"), "m9")
    effects.begin(held, EffectKey("thread", "next", "1"), "m1")
    assert effects.find(ledger, one) is None
    assert effects.find(ledger, two) is None
    assert effects.find(ledger, EffectKey("other", "task", "1")) is not None
    held.release()
    other.release()


def test_sandboxes_are_kept_found_and_forgotten(ledger: Ledger) -> None:
    held, other = acquire(ledger, "thread"), acquire(ledger, "other")
    snapshots.save(held, "m1", SNAPSHOT)
    snapshots.save(held, "m1", SNAPSHOT.model_copy(update={"digest": "another"}))
    snapshots.save(held, "m2", SNAPSHOT.model_copy(update={"digest": "e"}))
    snapshots.save(other, "m3", SNAPSHOT)
    assert snapshots.find(ledger, "m1") == SNAPSHOT
    assert snapshots.find(ledger, "m4") is None
    assert snapshots.list_state_ids(ledger, "thread") == {"m1", "m2"}
    assert sorted(each.digest for each in snapshots.list_snapshots(ledger)) == ["d", "d", "e"]
    snapshots.remove(held, ["m1", "m3"])
    assert snapshots.list_state_ids(ledger, "thread") == {"m2"}
    assert snapshots.list_state_ids(ledger, "other") == {"m3"}
    held.release()
    other.release()


def test_processes_that_open_a_fresh_database_at_once_all_can(url: str) -> None:
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


def test_a_database_that_another_process_is_just_making_is_waited_for(tmp_path: Path) -> None:
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


def test_a_database_that_a_newer_program_made_is_refused(ledger: Ledger, url: str) -> None:
    with ledger.write_transaction() as connection:
        connection.execute(text("UPDATE takeover_schema SET version = 99"))
    with pytest.raises(LedgerUnavailableError, match="schema 99") as told:
        Ledger(url)
    assert "update the program" in one_line(told)


def test_a_database_of_an_earlier_version_is_refused(ledger: Ledger, url: str) -> None:
    with ledger.write_transaction() as connection:
        connection.execute(text("UPDATE takeover_schema SET version = 3"))
    with pytest.raises(LedgerUnavailableError, match=r"created by an earlier version .schema 3") as told:
        Ledger(url)
    assert "with that version" in one_line(told)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("takeover.sqlite", "is no database URL; give sqlite:///FILE or postgresql://"),
        ("", "is no database URL"),
        ("sqlite:////nowhere/at/all/ledger.sqlite", "directory not found: /nowhere/at/all"),
        ("mysql://root:hunter2@127.0.0.1/x", "driver is not installed"),
        ("nonsense+driver://root:hunter2@127.0.0.1/x", "driver is not installed"),
        ("postgresql://me:hunter2@127.0.0.1:1/x", "is the server running, and the URL right"),
        ("postgresql://me:hunter2@127.0.0.1:port/x", "is no database URL"),
    ],
)
def test_a_database_that_cannot_be_had_is_reported_in_one_line(wrong: str, said: str) -> None:
    with pytest.raises(LedgerUnavailableError) as told:
        Ledger(wrong)
    assert said in one_line(told)
    assert "hunter2" not in str(told.value)


def test_a_database_that_the_server_has_not_is_reported_without_the_password(postgres_url: str) -> None:
    wrong = postgres_url.replace("postgres@", "postgres:hunter2@").rpartition("/")[0] + "/nowhere"
    with pytest.raises(LedgerUnavailableError, match="nowhere") as told:
        Ledger(wrong)
    assert "hunter2" not in one_line(told)


def test_a_file_that_is_no_database_is_reported_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("Not a database.\n" * 300)
    with pytest.raises(LedgerUnavailableError, match="no SQLite database") as told:
        Ledger(f"sqlite:///{file}")
    assert str(file) in one_line(told)
    assert file.read_text() == "Not a database.\n" * 300
    with pytest.raises(LedgerUnavailableError) as told:
        Ledger(f"sqlite:///{tmp_path}")
    one_line(told)


def test_a_database_that_cannot_be_written_to_is_reported(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    Ledger(f"sqlite:///{place}/there.sqlite").close()
    with mount("--bind", place, place):
        subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
        for name in ("there.sqlite", "new.sqlite"):
            with pytest.raises(
                LedgerUnavailableError, match="the file and its directory must be writable"
            ) as error:
                Ledger(f"sqlite:///{place}/{name}")
            one_line(error)


def test_a_full_disk_is_reported_and_no_transaction_is_half_there(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "place", "2m") as place:
        ledger = Ledger(f"sqlite:///{place}/ledger.sqlite")
        held = acquire(ledger, "thread", ttl_s=3600)
        big = SNAPSHOT.model_copy(update={"shell_state": "x" * 100_000})
        number = 0

        def fill() -> None:
            nonlocal number
            for number in range(100):
                snapshots.save(held, f"m{number}", big)

        with pytest.raises(LedgerUnavailableError, match="full; free some space and resume") as told:
            fill()
        one_line(told)
        assert snapshots.list_state_ids(ledger, "thread") == {f"m{each}" for each in range(number)}
        subprocess.run(["mount", "-o", "remount,size=20m", place], check=True)
        snapshots.save(held, f"m{number}", big)
        assert len(snapshots.list_state_ids(ledger, "thread")) == number + 1
        held.release()
        ledger.close()
