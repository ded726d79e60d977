"""Plain processes: a snapshot stops its own processes; files that other processes write are no error."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover.sandbox.backends.process import ProcessBackend
from langgraph_takeover.sandbox.backends.processes import pause_processes
from langgraph_takeover.testing.sandboxes import Kit, check_output, run

from ..conftest import open_kit

_FORKS = "while :; do date +%N >beat.new; mv beat.new beat; done & echo on"


@pytest.fixture
def plain(repository: Path) -> Iterator[Kit]:
    with open_kit("process", repository, None) as kit:
        yield kit


def test_a_loop_that_starts_programs_is_stopped(plain: Kit) -> None:
    sandbox = plain.start()
    check_output(sandbox, _FORKS)
    backend = sandbox._backend
    assert isinstance(backend, ProcessBackend)
    beat = Path(backend.workspace) / "beat"
    while not beat.exists():
        time.sleep(0.01)
    for _ in range(5):
        with pause_processes(backend._list_processes):
            time.sleep(0.05)
            before = beat.read_text()
            time.sleep(0.1)
            assert beat.read_text() == before
        deadline = time.monotonic() + 30
        while beat.read_text() == before:
            assert time.monotonic() < deadline, "the loop did not continue"
            time.sleep(0.01)


def test_a_process_whose_first_thread_has_ended_is_ended(plain: Kit) -> None:
    program = (
        "import ctypes, os, threading, time; threading.Thread(target=time.sleep, args=(100,)).start(); "
        "print(os.getpid(), flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    sandbox = plain.start()
    command = f'coproc python3 -c "{program}"; read -r pid <&"${{COPROC[0]}}"; echo $pid; sleep 60'
    ended = run(sandbox, command, timeout_s=3)
    assert ended.timed_out
    pid = int(ended.output)
    deadline = time.monotonic() + 10
    while len(list(Path("/proc").glob(f"{pid}/task/*"))) > 1:  # an unreaped process still has one
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_that_the_agent_stopped_stays_stopped(plain: Kit) -> None:
    sandbox = plain.start()
    check_output(sandbox, "sleep 100 & kill -STOP $!; sleep .1")
    backend = sandbox._backend
    assert isinstance(backend, ProcessBackend)
    with pause_processes(backend._list_processes):
        pass
    assert "T (stopped)" in check_output(sandbox, "grep State /proc/$!/status")


def test_a_file_changed_by_another_process_is_no_error(plain: Kit, tmp_path: Path) -> None:
    sandbox = plain.start()
    check_output(sandbox, "head -c 20000000 /dev/urandom >large")
    large = f"{sandbox.workspace}/large"
    with subprocess.Popen(["bash", "-c", f"while :; do echo more >>{large}; done"]) as other:
        try:
            snapshot = sandbox.snapshot(tmp_path / "store").result()
        finally:
            other.kill()
    thawed = plain.restore(snapshot, tmp_path / "store")
    assert int(check_output(thawed, "stat -c %s large")) >= 20_000_000
