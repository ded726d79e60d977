"""Which processes a time-out spares, on real processes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.sandbox.isolation.freezer import (
    EarlierProcesses,
    describe_processes,
    record_processes,
)
from langgraph_takeover.testing.sandboxes import check_output, run

from ..conftest import open_kit


@pytest.fixture
def tree() -> Iterator[dict[str, int]]:
    """A shell that started its child after it was recorded, and a process beside it."""
    with subprocess.Popen(["sleep", "60"]) as beside:
        shell = subprocess.Popen(["bash", "-c", "read; sleep 60 & echo $!; wait"], stdin=-1, stdout=-1)
        assert shell.stdin is not None
        assert shell.stdout is not None
        yield {
            "shell": shell.pid,
            "beside": beside.pid,
            "input": shell.stdin.fileno(),
            "output": shell.stdout.fileno(),
        }
        subprocess.run(["pkill", "-KILL", "-P", str(shell.pid)], check=False)
        for process in (shell, beside):
            process.kill()
        shell.communicate()


def test_later_children_of_earlier_processes_are_selected(tree: dict[str, int]) -> None:
    earlier = record_processes()
    os.write(tree["input"], b"\n")
    child = int(os.read(tree["output"], 100))
    later = subprocess.Popen(["sleep", "60"])
    try:
        assert earlier.select([tree["shell"], child, later.pid]) == {tree["shell"], child}
        # Without its parent among the candidates, nothing shows that it belongs to an earlier one.
        assert earlier.select([child]) == set()
    finally:
        later.kill()
        later.wait()
    assert earlier.select([later.pid, 2**22 + 1]) == set()


def test_a_later_process_with_the_id_of_an_earlier_one_is_not_selected(tree: dict[str, int]) -> None:
    found = record_processes()
    assert found.select([tree["beside"]]) == {tree["beside"]}
    assert EarlierProcesses(found.pids, found.tick - 1_000_000).select([tree["beside"]]) == set()


def test_a_name_that_looks_like_another_process(tmp_path: Path) -> None:
    forged = tmp_path / f"x) S {os.getpid()} 0 0"
    forged.symlink_to("/bin/sleep")
    earlier = record_processes()
    process = subprocess.Popen([forged, "60"])
    while not Path(f"/proc/{process.pid}/cmdline").read_bytes():  # `exec` is under way
        time.sleep(0.01)
    try:
        assert earlier.select([os.getpid(), process.pid]) == {os.getpid(), process.pid}  # a child of this one
        assert earlier.select([process.pid]) == set()
        assert describe_processes([process.pid]) == (
            f"{forged} 60"[:100] + "…" * (len(f"{forged} 60") > 100) + f" (pid {process.pid})",
        )
    finally:
        process.kill()
        process.wait()


def test_a_process_without_a_command_line_is_named_until_it_ends() -> None:
    with subprocess.Popen([""], executable="/bin/cat", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        while b"cat" not in Path(f"/proc/{process.pid}/comm").read_bytes():
            time.sleep(0.01)
        assert describe_processes([process.pid]) == (f"[cat] (pid {process.pid})",)
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert describe_processes([process.pid]) == ()


@pytest.mark.slow
def test_a_container_whose_processes_cannot_be_listed(
    repository: Path, testbed_image: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon on another host: earlier processes cannot be told apart, so they are killed, and the result says so."""
    monkeypatch.setattr(
        "langgraph_takeover.sandbox.backends.docker.list_container_processes", lambda *_: set()
    )
    with open_kit("docker", repository, testbed_image) as kit:
        sandbox = kit.start()
        check_output(sandbox, "x=kept; sleep 300 & server=$!")
        result = run(sandbox, "sleep 60", timeout_s=0.3)
        assert (result.timed_out, result.shell_ended) == (True, False)
        assert result.killed == (
            "whatever earlier commands had started, which cannot be listed from this host",
        )
        assert run(sandbox, "[ $x = kept ] && kill -0 $server").exit_code == 1
