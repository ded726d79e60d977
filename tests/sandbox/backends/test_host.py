"""Embedded sandboxes on this host: shared, merged, interrupted, on a full disk, and of another user."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from langgraph_takeover import sandbox
from langgraph_takeover.sandbox import ownership, untrusted_trees
from langgraph_takeover.sandbox.backends import overlay, warm_shells
from langgraph_takeover.sandbox.backends.file_trees import OverlayTree, SavedDigests
from langgraph_takeover.sandbox.backends.processes import find_descendants
from langgraph_takeover.sandbox.changes.file_access import list_unsaved_files
from langgraph_takeover.sandbox.interface import OutOfDiskError, Snapshot, SnapshotCorruptError
from langgraph_takeover.sandbox.isolation import cgroups
from langgraph_takeover.sandbox.isolation.freezer import NO_PROCESSES
from langgraph_takeover.sandbox.untrusted_trees import remove_tree
from langgraph_takeover.testing.sandboxes import Kit, check_output, run

from ...conftest import skip_missing
from ..conftest import open_kit
from ..ordinary_user import make_user_directory, run_python_as_user

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def host(repository: Path) -> Iterator[Kit]:
    with open_kit("host", repository, None) as kit:
        if reason := overlay.unavailable_reason():
            skip_missing(reason)
        yield kit


@pytest.fixture
def other_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Another home for the files of sandboxes, as on a second host."""
    directory = Path(tempfile.mkdtemp(prefix="takeover-home-", dir="/var/tmp"))
    directory.chmod(0o711)
    monkeypatch.setenv(ownership.ROOT_VARIABLE, str(directory))
    yield directory
    remove_tree(directory)


@contextlib.contextmanager
def small_disk(directory: Path, image: Path, megabytes: int) -> Iterator[None]:
    """A separate file system at a directory, small enough to fill."""
    if os.geteuid() != 0:
        skip_missing("only root mounts a small disk")
    directory.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as out:
        out.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, directory], check=True)
    directory.chmod(0o711)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def test_a_snapshot_copies_nothing(host: Kit, tmp_path: Path) -> None:
    with host.close_started():
        live_sandbox = host.start()
        check_output(live_sandbox, "head -c 30M /dev/urandom >big")
        before = untrusted_trees.disk_usage(ownership.runs_directory() / host.owner)
        snapshot = live_sandbox.snapshot(tmp_path).result()
        successors = [host.restore(snapshot, tmp_path) for _ in range(3)]
        for successor in successors:
            assert check_output(successor, "head -c 30000000 big | wc -c; echo x >small") == "30000000\n"
        assert untrusted_trees.disk_usage(ownership.runs_directory() / host.owner) < before + (1 << 20)


@pytest.mark.slow
def test_layers_are_merged_before_the_limit(host: Kit, tmp_path: Path) -> None:
    with host.close_started():
        live_sandbox = host.start()
        number = overlay.MAX_LAYERS + 5
        for step in range(number):
            check_output(live_sandbox, f"echo {step} >step; touch step-{step}; rm -f step-{step - 1}")
            kept = live_sandbox.snapshot(tmp_path / str(step))
        assert [change.path for change in live_sandbox.changes()] == ["step", f"step-{number - 1}"]
        thawed = host.restore(kept.result(), tmp_path / str(number - 1))
        assert check_output(thawed, "cat step; ls step-*") == f"{number - 1}\nstep-{number - 1}\n"


def test_running_processes_are_snapshotted_too(host: Kit, tmp_path: Path) -> None:
    with host.close_started():
        live_sandbox = host.start()
        check_output(live_sandbox, "exec 7>log; (while :; do echo beat >>beats; sleep .01; done) &")
        check_output(live_sandbox, "echo first >&7; echo x >file")
        snapshot = live_sandbox.snapshot(tmp_path).result()
        check_output(live_sandbox, "echo second >&7; jobs %1")
        assert check_output(live_sandbox, "cat log") == "first\nsecond\n"
        assert check_output(host.restore(snapshot, tmp_path), "cat log file") == "first\nx\n"


_SUCCESSOR = """
import sys
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.interface import SandboxSpec, Snapshot
spec, snapshot, store, number = sys.argv[1:]
spec = SandboxSpec.model_validate_json(spec)
live_sandbox = sandbox.restore(Snapshot.model_validate_json(snapshot), Path(store), spec)
result = live_sandbox.run(f"echo {number} >>state; cat state", timeout_s=30)
print(result.output, flush=True)
sys.stdin.read()
live_sandbox.close()
"""


def successor(kit: Kit, snapshot: Snapshot, store: Path, number: int) -> subprocess.Popen[str]:
    texts = (kit.spec().model_dump_json(), snapshot.model_dump_json(), str(store), str(number))
    return subprocess.Popen(
        [sys.executable, "-c", _SUCCESSOR, *texts],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_processes_restore_one_snapshot_at_once(
    host: Kit, tmp_path: Path, other_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ownership.ROOT_VARIABLE)
    with host.close_started():
        live_sandbox = host.start()
        check_output(live_sandbox, "echo frozen >state")
        snapshot = live_sandbox.snapshot(tmp_path).result()
    # Neither base nor layers exist there yet, so all of them unpack them.
    monkeypatch.setenv(ownership.ROOT_VARIABLE, str(other_home))
    started = [successor(host, snapshot, tmp_path, number) for number in range(4)]
    for number, process in enumerate(started):
        assert process.stdout is not None
        assert process.stdout.readline() + process.stdout.readline() == f"frozen\n{number}\n"
    for process in started:
        process.communicate()
        assert process.returncode == 0
    assert [path.name for path in (other_home / "bases").iterdir() if "partial" in path.name] == []
    sandbox.remove_stale_resources("host", host.owner)


def test_a_command_that_ends_while_it_is_stopped_keeps_the_shell(host: Kit) -> None:
    with host.close_started():
        live_sandbox: Any = host.start()
        check_output(live_sandbox, "cd pkg")
        live_sandbox._agent_shell._send_command("true")
        time.sleep(0.3)  # its end is in the pipe by now
        state = live_sandbox._interrupt(NO_PROCESSES)
        assert state is not None
        assert state.directory == f"{live_sandbox.workspace}/pkg"


_MEMORY_MB = 256
_IN_MEMORY = {
    "memfd": """
import os
file = os.memfd_create("hog")
for _ in range(1200): os.write(file, bytes(1 << 20))
""",
    "shared segment": """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for n in range(12):
    place = libc.shmat(libc.shmget(0, 100 << 20, 0o1600), None, 0)
    assert place not in (None, ctypes.c_void_p(-1).value)
    ctypes.memset(place, 1, 100 << 20)
    libc.shmdt(ctypes.c_void_p(place))
""",
    "many processes": """
import os, time
for n in range(12):
    if not os.fork():
        x = bytearray(b"x") * (100 << 20); print(n, flush=True); time.sleep(300)
for n in range(12):
    _, status = os.wait(); assert status == 0
""",
}


@pytest.mark.parametrize("kind", _IN_MEMORY)
def test_memory_outside_any_process_is_limited(host: Kit, kind: str) -> None:
    if reason := cgroups.unavailable_reason():
        skip_missing(reason)
    with host.close_started():
        live_sandbox = host.start(memory_mb=_MEMORY_MB, disk_mb=4096)
        live_sandbox.write_file("hog.py", f"{_IN_MEMORY[kind]}\nprint('all of it')".encode())
        result = run(live_sandbox, "python3 hog.py", timeout_s=60)
        assert result.exit_code not in (0, None), result
        assert "all of it" not in result.output
        assert check_output(live_sandbox, "echo usable") == "usable\n"


def test_address_space_is_unlimited_where_memory_is_counted(host: Kit) -> None:
    if reason := cgroups.unavailable_reason():
        skip_missing(reason)
    reserve = "import mmap; print(len(mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)))"
    with host.close_started():
        live_sandbox = host.start(memory_mb=_MEMORY_MB)
        assert check_output(live_sandbox, f"python3 -c '{reserve}'") == f"{64 << 30}\n"


def test_shared_segments_are_bounded_and_end_with_the_sandbox(host: Kit) -> None:
    """Also where no control group counts memory."""
    take = """
import ctypes
libc = ctypes.CDLL(None)
print(sum(libc.shmget(0, 10 << 20, 0o1600) >= 0 for _ in range(50)))
"""
    with host.close_started():
        live_sandbox = host.start()
        live_sandbox.write_file("take.py", take.encode())
        assert run(live_sandbox, "echo 999999999 >/proc/sys/kernel/shmall").exit_code != 0
        assert 0 < int(check_output(live_sandbox, "python3 take.py")) <= 6
        assert len(check_output(live_sandbox, "cat /proc/sysvipc/shm").splitlines()) > 1
        other = host.start()
        assert len(check_output(other, "cat /proc/sysvipc/shm").splitlines()) == 1
    assert Path("/proc/sysvipc/shm").read_text().count(str(10 << 20)) == 0


def test_files_in_memory_are_named(host: Kit) -> None:
    with host.close_started():
        started = host.start()
        assert list_unsaved_files(started) == ()
        run(started, "mkdir /dev/shm/a && echo 1 >/dev/shm/a/cache && : >/dev/shm/sem.lock")
        assert [each.path for each in list_unsaved_files(started)] == ["/dev/shm/a/cache"]
        assert check_output(started, "rm -r /dev/shm/* && ln -s /etc /dev/shm/b && echo linked") == "linked\n"
        assert list_unsaved_files(started) == ()
        replaced = run(started, "rm /dev/shm/b; rmdir /dev/shm && ln -s /etc /dev/shm").exit_code == 0
        assert not replaced or list_unsaved_files(started) == (), "it would name files of this host"


def test_no_sandbox_takes_all_inotify_instances(host: Kit) -> None:
    take = """
import ctypes
libc = ctypes.CDLL(None)
print(sum(libc.inotify_init1(0) >= 0 for _ in range(200)))
"""
    with host.close_started():
        live_sandbox, other = host.start(), host.start()
        live_sandbox.write_file("take.py", take.encode())
        assert 0 < int(check_output(live_sandbox, "python3 take.py")) <= 32
        other.write_file("take.py", take.encode())
        assert 0 < int(check_output(other, "python3 take.py")) <= 32


def _has_shell(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(below.name() == "sh" for below in find_descendants(pid))
    return False


@pytest.mark.parametrize("bound", [True, False])
def test_a_prepared_namespace_that_was_killed_is_replaced(
    host: Kit, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`unshare` may be killed before it has bound its child to its own end."""
    with host.close_started():
        with monkeypatch.context() as patch:
            if not bound:
                patch.setattr(
                    overlay,
                    "_UNSHARE_COMMAND",
                    [word for word in overlay._UNSHARE_COMMAND if word != "--kill-child"],
                )
            made = overlay.EmptyNamespaces()
            overlay._namespace_cache._namespaces[:] = [made]
        while not _has_shell(made._process.pid):
            time.sleep(0.001)
        made._process.kill()
        made._process.wait()
        assert check_output(host.start(), "cat README.txt") == "a small repository\n"


def test_a_killed_run_leaves_no_process_and_no_mount(host: Kit, tmp_path: Path) -> None:
    with host.close_started():
        live_sandbox = host.start()
        snapshot = live_sandbox.snapshot(tmp_path).result()
        process = successor(host, snapshot, tmp_path, 1)
        assert process.stdout is not None
        process.stdout.readline()
        inside = f"/proc/{process.pid}/task/{process.pid}/children"
        children = Path(inside).read_text().split()
        assert children
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert str(ownership.ensure_root()) not in Path("/proc/mounts").read_text()


@pytest.mark.slow
def test_layers_are_merged_while_nothing_writes(
    host: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trap of the agent's shell runs while the shell prints its state."""
    monkeypatch.setattr(overlay, "MAX_LAYERS", 1)
    sizes: list[int] = []
    keep = OverlayTree._save

    def observe_tree(tree: OverlayTree, *arguments: Any) -> SavedDigests:
        log = tree.layers().layers[0] / "home" / "log"
        sizes.append(log.stat().st_size)
        kept = keep(tree, *arguments)
        time.sleep(0.2)
        sizes.append(log.stat().st_size)
        return kept

    monkeypatch.setattr(OverlayTree, "_save", observe_tree)
    with host.close_started():
        live_sandbox = host.start()
        check_output(live_sandbox, "trap 'for n in {1..200000}; do echo $n; done >>$HOME/log' DEBUG")
        snapshot = live_sandbox.snapshot(tmp_path).result()
        assert sizes[0] == sizes[1] > 0
        assert (
            int(check_output(host.restore(snapshot, tmp_path), "trap - DEBUG; stat -c %s $HOME/log"))
            >= sizes[0]
        )


_FREEZER = """
import sys
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.interface import SandboxSpec
live_sandbox = sandbox.start(SandboxSpec.model_validate_json(sys.argv[1]))
live_sandbox.run("for i in {1..300}; do head -c 100000 /dev/urandom >f$i; done", timeout_s=60)
store = Path(sys.argv[2])
print("begun", flush=True)
print(live_sandbox.snapshot(store).result().model_dump_json(), flush=True)
"""


@pytest.mark.slow
def test_a_killed_snapshot_is_absent_or_complete(host: Kit, tmp_path: Path) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    spec = host.spec(owner=owner).model_dump_json()
    for delay in (0.02, 0.1, 0.3, 0.5):
        store = tmp_path / str(delay)
        process = subprocess.Popen(
            [sys.executable, "-c", _FREEZER, spec, str(store)], cwd=ROOT, text=True, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(delay)
        process.kill()
        told_last = process.stdout.read()
        process.wait()
        if told_last.endswith("\n"):
            snapshot = Snapshot.model_validate_json(told_last)
            with host.close_started():
                assert check_output(host.restore(snapshot, store), "ls | grep -c '^f[0-9]'") == "300\n"
        elif store.exists() and (complete := [*store.glob("*.tar.zst")]):
            from langgraph_takeover.sandbox.snapshots import archive_reader

            with pytest.raises(SnapshotCorruptError, match="holds"):
                archive_reader.verify(complete[0], digest="0" * 64, base_digest=_base(host))
    sandbox.remove_stale_resources("host", owner)


def _base(kit: Kit) -> str:
    from langgraph_takeover.sandbox.snapshots import bases

    return bases.prepare_base(kit.spec()).digest


def test_a_full_disk_during_a_snapshot(host: Kit, tmp_path: Path) -> None:
    small = tmp_path / "small"
    with small_disk(small, tmp_path / "image", 8), host.close_started():
        live_sandbox = host.start()
        check_output(live_sandbox, "x=kept; head -c 20M /dev/urandom >big")
        with pytest.raises(OutOfDiskError):
            live_sandbox.snapshot(small).result()
        assert [path.name for path in small.iterdir()] == ["lost+found"]
        assert check_output(live_sandbox, "echo $x; head -c 20000000 big | wc -c") == "kept\n20000000\n"
        snapshot = live_sandbox.snapshot(tmp_path / "store").result()
        assert check_output(host.restore(snapshot, tmp_path / "store"), "head -c 9 big | wc -c") == "9\n"


def test_a_home_that_was_emptied_is_made_again(host: Kit, other_home: Path) -> None:
    """For instance by a program that removes old files."""
    for _ in range(2):
        with host.close_started():
            assert check_output(host.start(), "cat /etc/hostname || echo none") != ""
        warm_shells.close_waiting()
        for each in other_home.iterdir():
            remove_tree(each)


def test_a_full_disk_under_the_sandboxes(host: Kit, other_home: Path, tmp_path: Path) -> None:
    with small_disk(other_home, tmp_path / "image", 24):
        with host.close_started():
            live_sandbox = host.start()
            result = run(live_sandbox, "head -c 40M /dev/zero >big; echo code $?; rm big; echo x >file")
            assert "No space left on device" in result.output
            assert live_sandbox.read_file("file") == b"x\n"
            kept = live_sandbox.snapshot(tmp_path / "store").result()
            check_output(live_sandbox, "head -c 15M /dev/zero >big || rm big; echo y >file || :")
            live_sandbox.close()
            assert check_output(host.restore(kept, tmp_path / "store"), "cat file") == "x\n"
        sandbox.remove_stale_resources("host", host.owner)


def test_editing_on_a_full_disk_keeps_the_old_content(host: Kit, other_home: Path, tmp_path: Path) -> None:
    with small_disk(other_home, tmp_path / "image", 24), host.close_started():
        live_sandbox = host.start()
        live_sandbox.write_file("file", b"old\n")
        with pytest.raises(OutOfDiskError):
            run(live_sandbox, "head -c 40M /dev/zero >big")
        with pytest.raises(OutOfDiskError):
            live_sandbox.write_file("file", b"new" * 100_000)
        assert live_sandbox.read_file("file") == b"old\n"
        check_output(live_sandbox, "rm big")  # which makes room before the disk is checked
        live_sandbox.write_file("file", b"new\n")
        assert live_sandbox.read_file("file") == b"new\n"


def test_threads_that_start_together_find_overlayfs() -> None:
    assert overlay.unavailable_reason() is None
    for _ in range(5):
        overlay._unavailable_reason.cache_clear()  # as in a new process
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(lambda _: overlay.unavailable_reason(), range(4))) == {None}


_AS_ANYBODY = """
import json, os, sys
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.backends import host, overlay
from langgraph_takeover.sandbox.interface import SandboxSpec
from langgraph_takeover.sandbox.changes.file_access import list_unsaved_files
assert os.geteuid() != 0
spec = SandboxSpec(backend="host", directory=Path(sys.argv[1]), owner="anybody")
store = Path(sys.argv[2])
live_sandbox = sandbox.start(spec)
live_sandbox.run("echo x >/dev/shm/x", timeout_s=30)
unsaved = [each.path for each in list_unsaved_files(live_sandbox)]
told = live_sandbox.run("id -u; echo x >new; rm README.txt; chmod 600 pkg/mod.py; ls /root /etc/shadow", timeout_s=30)
changes = [change.path for change in live_sandbox.changes()]
snapshot = live_sandbox.snapshot(store).result()
successors = [sandbox.restore(snapshot, store, spec) for _ in range(3)]
outputs = [one.run("cat new; ls README.txt", timeout_s=30).output for one in successors]
for one in (live_sandbox, *successors):
    one.close()
sandbox.remove_stale_resources("host", "anybody")
left = [str(path) for path in Path(os.environ["TAKEOVER_HOME"], "runs").iterdir()]
way = host.describe_file_layers()
print(json.dumps({"told": told.output, "changes": changes, "outputs": outputs, "left": left, "way": way, "unsaved": unsaved}))
"""


def test_as_an_ordinary_user(repository: Path) -> None:
    with make_user_directory() as directory:
        subprocess.run(["cp", "-a", repository, directory / "testbed"], check=True)
        names = (directory / "testbed", directory / "store")
        found = json.loads(run_python_as_user(directory, "-c", _AS_ANYBODY, *names))
    assert found["told"].startswith("0\n")
    assert "Permission denied" in found["told"] or "No such file" in found["told"]
    assert found["changes"] == ["README.txt", "new", "pkg/mod.py"]
    assert found["outputs"] == ["x\nls: cannot access 'README.txt': No such file or directory\n"] * 3
    assert found["left"] == []
    assert found["unsaved"] == ["/dev/shm/x"]


@pytest.mark.slow
def test_the_contract_holds_for_an_ordinary_user() -> None:
    """Without root there is no control group: processes are stopped by signals."""
    options = ("-q", "-p", "no:cacheprovider", "-k", "host and not docker")
    with make_user_directory() as directory:
        output = run_python_as_user(directory, "-m", "pytest", *options, "tests/sandbox/test_contract.py")
    assert output.partition("\n\n")[0].count(".") > 100, "most were skipped"


_CLOSE_DURING_A_COMMAND = """
import sys, time
from pathlib import Path
from threading import Thread
from langgraph_takeover.sandbox import SandboxSpec, start

box = start(SandboxSpec(backend="host", directory=Path(sys.argv[1], "repository")))
Thread(target=box.run, args=("sleep 60",), kwargs={"timeout_s": 60}, daemon=True).start()
time.sleep(0.5)  # the command has begun
box.close()
"""
_REAP_NO_ORPHANS = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True, timeout=20)"


def test_a_sandbox_closes_below_a_first_process_that_reaps_no_orphans(tmp_path: Path) -> None:
    """Such as a server that is the first process of a container."""
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(repository)]
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "base"], check=True)
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    first = ["unshare", *as_root, "--pid", "--fork", "--mount-proc", sys.executable, "-c", _REAP_NO_ORPHANS]
    subprocess.run([*first, sys.executable, "-c", _CLOSE_DURING_A_COMMAND, tmp_path], check=True, timeout=60)
