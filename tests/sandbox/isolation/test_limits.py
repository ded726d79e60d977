"""The disk usage of a sandbox, and which commands end at its limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from langgraph_takeover.sandbox.isolation import limits
from langgraph_takeover.sandbox.isolation.limits import DiskWatch, bytes_unlinked, bytes_used
from langgraph_takeover.sandbox.untrusted_trees import remove_tree

_MIB = 1 << 20
_HOLD = """
import ctypes, mmap, os, sys, threading, time
libc = ctypes.CDLL(None)
mode, path = sys.argv[1:]
def work():
    if mode == "own":
        libc.unshare(0x400)
    if mode == "ended":
        time.sleep(.2)
    file = open(path, "w+b")
    os.unlink(path)
    file.write(bytes(1 << 20))
    file.flush()
    if mode == "mapped":
        held = mmap.mmap(os.dup(file.fileno()), 1 << 20)
        libc.close_range(3, 1000, 0)
    print("ready", flush=True)
    time.sleep(60)
threading.Thread(target=work).start()
if mode != "own":
    libc.syscall(ctypes.c_long(93 if os.uname().machine == "aarch64" else 60), 0)
time.sleep(60)
"""


@pytest.mark.parametrize("mode", ["ended", "own", "mapped"])
def test_files_held_only_by_a_thread_count(mode: str, tmp_path: Path) -> None:
    """The first thread has ended, or does not share its descriptors."""
    if mode == "mapped" and os.geteuid() != 0:
        pytest.skip("only root may look at mappings")
    argv = [sys.executable, "-c", _HOLD, mode, str(tmp_path / "held")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.1)
            assert bytes_unlinked([process.pid]) >= _MIB
        finally:
            process.kill()


def test_each_further_name_of_a_file_counts_as_a_block(tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(bytes(_MIB))
    before = bytes_used(tmp_path)
    for number in range(100):
        (tmp_path / f"name-{number}").hardlink_to(tmp_path / "first")
    assert bytes_used(tmp_path) == before + 100 * 4096


def test_files_below_an_overlong_path_count(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "for n in range(40):\n"
        " for m in range(2): os.mkdir(f'{m}' + 'é' * 120)\n"
        " open('1' + 'é' * 120 + '/file', 'wb').write(bytes(1 << 16))\n"
        " os.chdir('0' + 'é' * 120)\n"
    )
    try:
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
        assert bytes_used(tmp_path) == 40 * ((1 << 16) + 2 * 4096)
    finally:
        remove_tree(tmp_path)


def test_a_count_needs_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    add = limits._ByteCounter.add

    def count_descriptors(self: limits._ByteCounter, start: int) -> list[str]:
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
        return add(self, start)

    monkeypatch.setattr(limits._ByteCounter, "add", count_descriptors)
    code = "import os\nfor n in range(100): os.mkdir('n' * 250); os.chdir('n' * 250)"
    try:
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
        bytes_used(tmp_path)
        assert len(counts) > 20
        assert max(counts) - counts[0] <= 2
    finally:
        remove_tree(tmp_path)


class Disk:
    """A watch whose clock and counts a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used = 0
        monkeypatch.setattr(limits, "_MIN_PAUSE_S", 0.0)
        self.watch = DiskWatch(lambda: self.used, 64 * _MIB)

    def is_over(self, used: int) -> bool:
        """Whether a command that starts at this usage in MiB ends immediately."""
        self.used = used * _MIB
        self.watch.begin()
        return self.watch.is_over_limit()


def test_writes_between_commands_end_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    assert not disk.is_over(60)
    assert disk.is_over(3000)
    disk.used = 3100 * _MIB  # until everything has ended
    disk.watch.accept_usage()
    assert not disk.is_over(3100)
    assert disk.is_over(3101)


def test_a_short_command_is_counted_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if other programs free as much disk space meanwhile, which hides what it wrote."""
    monkeypatch.setattr(limits, "_PAUSE_FACTOR", 0)  # as if the counts took no time
    monkeypatch.setattr(limits, "_FIRST_PAUSE_S", 0)
    used = 0
    watch = DiskWatch(lambda: used, 64 * _MIB)
    watch.begin()
    assert not watch.was_over_limit()
    watch.begin()
    used = 65 * _MIB
    assert not watch.is_over_limit()  # not yet due
    assert watch.was_over_limit()


def test_a_short_command_is_counted_soon_after_a_slow_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_PAUSE_FACTOR", 1e6)  # as if the machine were busy
    monkeypatch.setattr(limits, "_HURRIED_PAUSE_FACTOR", 1e6)
    monkeypatch.setattr(limits, "_FIRST_PAUSE_S", 0)
    free, used = 1000 * _MIB, 0
    monkeypatch.setattr(DiskWatch, "_free_space", lambda self: free)
    watch = DiskWatch(lambda: used, 64 * _MIB)
    watch.begin()
    assert not watch.was_over_limit()
    watch.begin()
    used, free = 96 * _MIB, free - 96 * _MIB
    assert not watch.is_over_limit()  # counts wait while the command runs
    assert watch.was_over_limit()


def test_the_first_command_is_counted_if_it_fills_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """However soon after the start; one that wrote little is not worth a count."""
    monkeypatch.setattr(limits, "_FIRST_PAUSE_S", 1e6)
    free, used, counts = 1000 * _MIB, 0, 0

    def count() -> int:
        nonlocal counts
        counts += 1
        return used

    monkeypatch.setattr(DiskWatch, "_free_space", lambda self: free)
    watch = DiskWatch(count, 64 * _MIB)
    watch.begin()
    used, free = 1 * _MIB, free - 1 * _MIB
    assert not watch.was_over_limit()
    assert counts == 0
    watch.begin()
    used, free = 65 * _MIB, free - 64 * _MIB
    assert watch.was_over_limit()


def test_freed_space_is_not_allowed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    assert disk.is_over(3000)
    disk.watch.accept_usage()
    assert not disk.is_over(100)
    assert disk.is_over(200)


def test_a_command_over_the_limit_does_not_raise_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    assert disk.is_over(3000)
    assert disk.is_over(3000), "nothing was ended"
