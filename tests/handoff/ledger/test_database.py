"""Many threads and connections on one ledger: no needless and no endless wait."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from langgraph_takeover.graph.checkpoints.savers import open_saver
from langgraph_takeover.handoff.ledger import Ledger, acquire, database, effects, store
from langgraph_takeover.sandbox.interface import Snapshot

SNAPSHOT = Snapshot(backend="process", base="b", location="l", digest="d", workspace="/w", shell_state="")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    return str(request.getfixturevalue("postgres_database"))


def test_readers_do_not_wait_for_writers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.2)
    ledger, other = Ledger(url), Ledger(url)
    effects.save(acquire(ledger, "t"), "m", SNAPSHOT)
    with ledger.write_transaction() as connection:
        connection.execute(store.snapshots.delete())
        assert effects.find_snapshot(other, "m") == SNAPSHOT
    assert effects.find_snapshot(other, "m") is None


def test_twenty_concurrent_snapshot_writers_succeed(url: str) -> None:
    """Each thread writes inside the lock, as when it keeps a sandbox."""
    ledger = Ledger(url)
    within: list[int] = []

    def file(number: int) -> None:
        with ledger.lock_snapshots():
            within.append(number)
            effects.save(acquire(ledger, str(number)), str(number), SNAPSHOT)
            assert within == [number]
            within.clear()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(file, range(20)))
    assert len(effects.list_snapshots(ledger)) == 20


def test_eight_threads_open_a_new_database_at_once(url: str) -> None:
    start = threading.Barrier(8)

    def begin(_: int) -> None:
        start.wait(30)
        with open_saver(Ledger(url)) as saver:
            assert list(saver.list({"configurable": {"thread_id": "t"}})) == []

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, range(8)))


def test_waiting_for_the_snapshot_lock_can_be_interrupted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait must not be the lock's own, which only the lock can end."""

    class InterruptedWaitError(Exception):
        pass

    def interrupt_sleep(seconds: float) -> None:
        raise InterruptedWaitError

    ledger, other = Ledger(url), Ledger(url)
    with other.lock_snapshots():
        monkeypatch.setattr(time, "sleep", interrupt_sleep)
        with pytest.raises(InterruptedWaitError), ledger.lock_snapshots():
            raise AssertionError("two file at once")
    with ledger.lock_snapshots():
        pass
