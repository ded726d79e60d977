"""The contract of every sandbox, fifth part: files that a hostile agent exchanges while the runtime reads them."""

from __future__ import annotations

import hashlib
import secrets
import time
from pathlib import Path

import pytest

from langgraph_takeover.sandbox.interface import Sandbox
from langgraph_takeover.testing.sandboxes.kit import Kit, check_output, run

_PAIRS = 100
# Exchanges directories for symbolic links to a directory of the host, in processes that fork before they can be
# stopped one by one.
_EXCHANGE_PROGRAM = """
import ctypes, os, random, sys
libc = ctypes.CDLL(None)
for n in range({pairs}):
    os.makedirs(f"w/d{{n}}/deep"); open(f"w/d{{n}}/data", "w").write("decoy"); os.symlink({target!r}, f"w/l{{n}}")
    open(f"w/d{{n}}/deep/data", "w").write("decoy")
open("ready", "w")
if os.fork(): os._exit(0)
os.setsid()
while True:
    for _ in range(20):
        n = random.randrange({pairs})
        libc.renameat2(-100, f"w/d{{n}}".encode(), -100, f"w/l{{n}}".encode(), 2)
    if os.fork(): os._exit(0)
"""
# One name that is a file, a directory, a symbolic link, a fifo and nothing, in quick succession.
_CHANGE_KIND_PROGRAM = """
import os, shutil
open("ready", "w")
if os.fork(): os._exit(0)
makers = [lambda: open("x", "w").write("x" * 5000), lambda: os.makedirs("x/y"), lambda: os.mkfifo("x"),
          lambda: os.symlink({target!r}, "x"), lambda: os.symlink("/dev/zero", "x")]
while True:
    for make in makers:
        make()
        shutil.rmtree("x") if os.path.isdir("x") and not os.path.islink("x") else os.unlink("x")
"""


@pytest.fixture
def host_file(tmp_path: Path) -> Path:
    """A file of this host that only its owner may read."""
    directory = tmp_path / "host"
    directory.mkdir(mode=0o700)
    (directory / "deep").mkdir(mode=0o700)
    secret = f"host-secret-{secrets.token_hex(8)}"
    for path in (directory / "data", directory / "deep" / "data"):
        path.write_text(secret)
        path.chmod(0o600)
    return directory / "data"


def _start_attack(sandbox: Sandbox, program: str) -> None:
    sandbox.write_file("attack.py", program.encode())
    check_output(
        sandbox,
        "python3 attack.py >/dev/null 2>&1 </dev/null & while [ ! -e ready ]; do sleep .05; done; sleep .2",
    )


def test_no_file_of_this_host_enters_a_snapshot(
    kit: Kit, victim: Sandbox, store: Path, host_file: Path
) -> None:
    _start_attack(victim, _EXCHANGE_PROGRAM.format(pairs=_PAIRS, target=str(host_file.parent)))
    for number in range(5):
        snapshot = victim.snapshot(store / str(number)).result()
        restored = kit.restore(snapshot, store / str(number))
        found = run(restored, "find w -type f -exec cat {} + | sort | uniq -c; find w -type f ! -readable")
        assert found.output.split() == ["1", "decoy" * 2 * _PAIRS], found.output[:300]
        restored.close()
    assert check_output(victim, "echo usable") == "usable\n"


def test_no_file_of_this_host_enters_a_report(victim: Sandbox, host_file: Path) -> None:
    _start_attack(victim, _EXCHANGE_PROGRAM.format(pairs=_PAIRS, target=str(host_file.parent)))
    secret = hashlib.sha256(host_file.read_bytes()).hexdigest()
    for _ in range(30):
        for change in victim.changes():
            assert secret not in (change.before, change.after), change


def test_a_path_that_changes_its_type_while_it_is_read(victim: Sandbox, host_file: Path) -> None:
    _start_attack(victim, _CHANGE_KIND_PROGRAM.format(target=str(host_file)))
    secret = hashlib.sha256(host_file.read_bytes()).hexdigest()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert all(secret not in (change.before, change.after) for change in victim.changes())
    assert check_output(victim, "echo usable") == "usable\n"


def test_processes_keep_their_state_after_a_snapshot(victim: Sandbox, store: Path) -> None:
    check_output(
        victim, "(while :; do echo x >>beats; sleep .01; done) & sleep 300 & echo $! >pid; kill -STOP $!"
    )
    victim.snapshot(store).result()
    before = int(check_output(victim, "wc -l <beats"))
    check_output(victim, "sleep .3")
    assert int(check_output(victim, "wc -l <beats")) > before
    assert check_output(victim, "sed 's/.*) //' /proc/$(cat pid)/stat | cut -c1") == "T\n"


def test_large_sparse_files_are_reported_by_their_size(kit: Kit, store: Path) -> None:
    if not kit.is_isolated:
        pytest.skip("this back end does not promise to withstand a hostile agent")
    with kit.close_started():
        sandbox = kit.start(disk_mb=4096)
        check_output(
            sandbox,
            "truncate -s 10 small; for i in 1 2 3; do truncate -s 3G sparse-$i; done; ln sparse-1 same",
        )
        changes = {change.path: change for change in sandbox.changes()}
        assert {path for path, change in changes.items() if change.too_large} == {
            "sparse-1",
            "sparse-2",
            "sparse-3",
            "same",
        }
        assert changes["small"].after == hashlib.sha256(bytes(10)).hexdigest()
        assert sandbox.changes() == ()
        check_output(sandbox, "echo x >>sparse-1")
        assert {change.path for change in sandbox.changes()} == {"sparse-1", "same"}


def test_many_names_of_one_file_are_read_once(victim: Sandbox) -> None:
    check_output(victim, "head -c 20M /dev/urandom >big; for i in $(seq 100); do ln big name-$i; done")
    found = [change for change in victim.changes() if change.path.startswith("name-")]
    assert len(found) == 100
    assert len({change.after for change in found}) == 1
    assert not any(change.too_large for change in found)


def test_an_agents_own_marks_hide_nothing(kit: Kit, victim: Sandbox, store: Path) -> None:
    mark = 'os.setxattr("pkg", "user.overlay.opaque", b"y")'
    run(victim, f"touch pkg/new; python3 -c 'import os; {mark}'")
    assert [change.path for change in victim.changes()] == ["pkg/new"]
    restored = kit.restore(victim.snapshot(store).result(), store)
    assert check_output(restored, "ls pkg/mod.py") == "pkg/mod.py\n"
