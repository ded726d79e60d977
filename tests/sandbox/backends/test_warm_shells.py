"""Shells that wait for a sandbox: as isolated as others, for one sandbox each, and gone with their process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.backends import overlay, warm_shells
from langgraph_takeover.sandbox.backends.processes import find_descendants
from langgraph_takeover.sandbox.interface import Sandbox, Snapshot, SnapshotCorruptError
from langgraph_takeover.testing.sandboxes import Kit, check_output

from ...conftest import skip_missing
from ..conftest import open_kit
from ..ordinary_user import make_user_directory, run_python_as_user

ROOT = Path(__file__).parents[3]
_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def host(repository: Path) -> Iterator[Kit]:
    with open_kit("host", repository, None) as kit:
        if reason := overlay.unavailable_reason():
            skip_missing(reason)
        yield kit


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[warm_shells._Pool]:
    """A pool of its own for each test."""
    pool = warm_shells._Pool()
    monkeypatch.setattr(warm_shells, "_pool", pool)
    yield pool
    pool.clear()


def wait_for_shells(pool: warm_shells._Pool, number: int = warm_shells.MAX_WAITING) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while len(pool._waiting) < number:
        assert time.monotonic() < deadline, "no shell waits"
        time.sleep(0.01)


def list_shell_pids(shell: warm_shells.WarmShell) -> list[int]:
    assert shell._channel is not None
    return [process.pid for process in find_descendants(shell._channel.process.pid)]


_DESCRIBE = r"""
cat /proc/self/status | grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Cpus_allowed)'
cat /proc/self/limits /proc/self/oom_score_adj; ulimit -a; umask; env | sort; declare -p | grep -v -E 'RANDOM|PID|EPOCH|SECONDS'
shopt; set -o; trap -p | sed 's/[0-9a-f]\{32\}/MARK/g'; pwd; ls -l /proc/$$/fd | sed 's/.*[0-9] \([0-9]* ->\)/\1/; s/\[[0-9]*\]//'
ls / /dev /etc /home/agent /tmp; ps ax -o pid,comm --no-headers | grep -v -E 'ps$|grep$|ls$|sed$'
readlink /proc/1/root /proc/$$/cwd; hostname; cat /proc/sys/user/max_inotify_instances /proc/sys/kernel/shmall
touch /new /etc/new /dev/new 2>&1; touch /testbed/t /home/agent/t /tmp/t && echo written
unshare --user true 2>&1; mount -t tmpfs none /tmp 2>&1; umount /testbed 2>&1; stat -c '%d %u %g %a' /testbed/.. /home/agent /tmp
"""
_NUMBERS = re.compile(r"\b0:\d+|0x[0-9a-f]+")


def describe(box: Sandbox) -> list[str]:
    output = check_output(box, f"({_DESCRIBE}) 2>&1")
    return [re.sub(r"stat .*|^\d+ 0 0", "", line) for line in _NUMBERS.sub("N", output).splitlines()]


def list_mounts(box: Sandbox) -> list[str]:
    """The visible mounts as the agent sees them: of those at one place, the last."""
    lines = check_output(box, "cat /proc/self/mountinfo").splitlines()
    fields = [line.partition(" - ") for line in lines]
    found = {left.split()[4]: (left.split()[3], left.split()[5], right) for left, _, right in fields}
    return [f"{place} {re.sub('lowerdir=[^,]*', '', repr(each))}" for place, each in sorted(found.items())]


def test_a_shell_that_waited_is_isolated_like_another(host: Kit, pool: warm_shells._Pool) -> None:
    with host.close_started():
        cold = host.start()
        wait_for_shells(pool)
        taken = pool._waiting[0]
        warm = host.start()
        assert taken not in pool._waiting
        inside = set(list_shell_pids(taken))
        assert int(warm.inspect("echo $$").exit_code or 0) == 0
        assert inside & {process.pid for process in find_descendants(os.getpid())}
        assert list_mounts(warm) == list_mounts(cold)
        assert describe(warm) == describe(cold)
        assert check_output(warm, "echo $((SECONDS < 30))") == "1\n"
        # The place below the files is empty and read-only, also for those that were there first.
        told = check_output(
            warm, "for n in 1 2; do ls -A /proc/$n/cwd/ | grep -v t; touch /proc/$n/cwd/x; done 2>&1; true"
        )
        assert not list((ownership.root() / "slots" / "workspace").iterdir()), told
        namespaces = "readlink /proc/self/ns/{user,mnt,pid,net,ipc,uts,cgroup}"
        assert not set(check_output(warm, namespaces).split()) & set(
            check_output(cold, namespaces).split()
        ) - {f"cgroup:[{Path('/proc/self/ns/cgroup').stat().st_ino}]"}


def test_two_sandboxes_of_waiting_shells_share_nothing(host: Kit, pool: warm_shells._Pool) -> None:
    with host.close_started():
        host.start()
        wait_for_shells(pool)
        one, other = host.start(), host.start()
        check_output(one, "echo one | tee file ~/file /tmp/file /dev/shm/file")
        assert check_output(other, "ls file ~/file /tmp/file /dev/shm/file 2>/dev/null | wc -l") == "0\n"
        assert not list((ownership.root() / "slots").rglob("file"))


def test_a_shell_serves_one_sandbox(host: Kit, pool: warm_shells._Pool) -> None:
    """As opensandbox-group/OpenSandbox #743: a used one went back to the pool."""
    with host.close_started():
        host.start()
        wait_for_shells(pool)
        taken = tuple(pool._waiting)
        used = host.start()
        check_output(used, "echo secret >/tmp/left; sleep 300 & true")
        used.close()
        wait_for_shells(pool)
        assert len(set(pool._waiting) - set(taken)) >= 1
        assert check_output(host.start(), "cat /tmp/left 2>/dev/null; jobs; ls /tmp") == ""


@pytest.mark.parametrize("victim", ["starter", "shell", "holder", "stopped"])
def test_a_waiting_shell_that_was_killed_is_not_used(host: Kit, pool: warm_shells._Pool, victim: str) -> None:
    """As bytedance/deer-flow #5460: dead ones never left the pool."""
    with host.close_started():
        host.start()
        wait_for_shells(pool)
        for each in pool._waiting:
            assert each._channel is not None
            pids = {"starter": each._channel.process.pid, "holder": each.namespaces.first_pid}
            os.kill(
                pids.get(victim, list_shell_pids(each)[-1]),
                signal.SIGSTOP if victim == "stopped" else signal.SIGKILL,
            )
        assert check_output(host.start(), "cat README.txt") == "a small repository\n"


def test_a_restore_that_fails_leaves_no_process(host: Kit, pool: warm_shells._Pool, tmp_path: Path) -> None:
    """As tinylabscom/mvm #2337: a failed claim left its process, and a pool entry that pointed to it."""
    with host.close_started():
        saved = host.start().snapshot(tmp_path).result()
        wait_for_shells(pool)
        pids = [pid for each in pool._waiting for pid in list_shell_pids(each)]
        (tmp_path / saved.location).unlink()
        for _ in range(warm_shells.MAX_WAITING):
            with pytest.raises(SnapshotCorruptError):
                host.restore(saved, tmp_path)
        assert not any(map(psutil.pid_exists, pids))
        assert check_output(host.start(), "cat README.txt") == "a small repository\n"


@pytest.mark.parametrize("waits", [True, False])
def test_a_link_instead_of_the_workspace_is_refused(
    host: Kit, pool: warm_shells._Pool, tmp_path: Path, waits: bool
) -> None:
    """A hostile archive can hold one; a mount of it would show this host's own directory."""
    with host.close_started():
        box = host.start()
        check_output(box, "echo x >new")
        saved = box.snapshot(tmp_path).result()
        wait_for_shells(pool)
        if not waits:
            warm_shells.close_waiting()
        run = ownership.runs_directory() / host.owner
        top = Path(json.loads((run / f"{saved.digest}.json").read_text())["layers"][0])
        shutil.rmtree(top / "workspace")
        (top / "workspace").symlink_to("/etc")
        with pytest.raises(SnapshotCorruptError, match="workspace: not a directory"):
            host.restore(saved, tmp_path)


def test_slots_that_receive_nothing_are_not_used(
    host: Kit, pool: warm_shells._Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As containers/bubblewrap #687: what is mounted outside does not appear inside."""
    monkeypatch.setattr(overlay, "_SHARE_SLOTS_COMMAND", 'mount -o bind,ro --make-private "$3" "$3";')
    with host.close_started():
        host.start()
        warm_shells.finish_preparing()
        assert not pool._waiting
        assert check_output(host.start(), "cat README.txt") == "a small repository\n"


def test_another_home_gets_other_shells(
    host: Kit, pool: warm_shells._Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host.close_started():
        host.start()
        wait_for_shells(pool)
        before = tuple(pool._waiting)
        with make_user_directory() as home, host.close_started():
            monkeypatch.setenv(ownership.ROOT_VARIABLE, str(home))
            assert check_output(host.start(), "cat README.txt") == "a small repository\n"
            warm_shells.finish_preparing()
            assert not set(before) & set(pool._waiting)
            warm_shells.close_waiting()
        monkeypatch.delenv(ownership.ROOT_VARIABLE)


def test_threads_take_different_shells(host: Kit, pool: warm_shells._Pool, tmp_path: Path) -> None:
    with host.close_started():
        saved = host.start().snapshot(tmp_path).result()
        for _ in range(3):
            wait_for_shells(pool)

            def restore(number: int) -> str:
                box = host.restore(saved, tmp_path)
                return check_output(box, f"echo {number} >mine; sleep .1; cat mine")

            with ThreadPoolExecutor(4) as threads:
                assert list(threads.map(restore, range(4))) == [f"{number}\n" for number in range(4)]


def test_a_forked_process_makes_its_own(host: Kit, pool: warm_shells._Pool) -> None:
    with host.close_started():
        host.start()
        wait_for_shells(pool)
        child = os.fork()
        if child == 0:
            os._exit(0 if warm_shells.take(host.spec()) is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert check_output(host.start(), "cat README.txt") == "a small repository\n"


_KILLED = """
import os, sys, time
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.backends import warm_shells
from langgraph_takeover.sandbox.interface import SandboxSpec

box = sandbox.start(SandboxSpec.model_validate_json(sys.argv[1]))
while len(warm_shells._pool._waiting) < warm_shells.MAX_WAITING:
    time.sleep(0.01)
from langgraph_takeover.sandbox.backends.processes import find_descendants
starters = [pid for each in warm_shells._pool._waiting for pid in (each._channel.process.pid, each.namespaces._process.pid)]
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, *starters, *(below.pid for pid in starters for below in find_descendants(pid)), flush=True)
time.sleep(600)
"""


def test_a_killed_process_leaves_no_waiting_shell(host: Kit) -> None:
    """As pgpool/pgpool2 #156; here a forked child, which has copies of all descriptors, lives on."""
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, host.spec().model_dump_json()],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    child, *pids = map(int, process.stdout.readline().split())
    waiting = list(map(psutil.Process, pids))
    assert len(waiting) >= 6 * warm_shells.MAX_WAITING
    process.kill()
    process.wait()
    try:
        deadline = time.monotonic() + _TIMEOUT_S
        while (left := [each for each in waiting if each.is_running()]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left
    finally:
        os.kill(child, signal.SIGKILL)


_AS_ANYBODY = """
import json, sys, time
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.backends import warm_shells
from langgraph_takeover.sandbox.interface import SandboxSpec
spec = SandboxSpec(backend="host", directory=Path(sys.argv[1]), owner="anybody")
store = Path(sys.argv[2])
box = sandbox.start(spec)
box.run("echo x >new", timeout_s=30)
saved = box.snapshot(store).result()
deadline = time.monotonic() + 60
while len(warm_shells._pool._waiting) < warm_shells.MAX_WAITING and time.monotonic() < deadline:
    time.sleep(0.01)
waiting = len(warm_shells._pool._waiting)
restored = sandbox.restore(saved, store, spec)
left = len(warm_shells._pool._waiting)
print(json.dumps([waiting, left, restored.run("cat new; pwd", timeout_s=30).output]))
"""


def test_shells_wait_for_an_ordinary_user(repository: Path) -> None:
    with make_user_directory() as directory:
        subprocess.run(["cp", "-a", repository, directory / "testbed"], check=True)
        names = (directory / "testbed", directory / "store")
        output = run_python_as_user(directory, "-c", _AS_ANYBODY, *names)
    assert output == '[2, 1, "x\\n/testbed\\n"]\n'


def _restore(host: Kit, saved: Snapshot, store: Path) -> tuple[Sandbox, float]:
    begin = time.perf_counter()
    box = host.restore(saved, store)
    assert check_output(box, "cat new") == "x\n"
    return box, time.perf_counter() - begin


@pytest.mark.slow
def test_a_hundred_restores_of_one_snapshot(host: Kit, tmp_path: Path) -> None:
    """In a row, then alive at once."""
    with host.close_started():
        first = host.start()
        check_output(first, "echo x >new")
        saved = first.snapshot(tmp_path).result()
        times = []
        for _ in range(100):
            box, seconds = _restore(host, saved, tmp_path)
            box.close()
            times.append(seconds)
        early, late = statistics.median(times[:30]), statistics.median(times[-30:])
        assert late < 2 * early, (early, late)
        alive = [_restore(host, saved, tmp_path)[0] for _ in range(100)]
        for number, box in enumerate(alive):
            check_output(box, f"echo {number} >mine")
        assert [check_output(box, "cat mine") for box in alive] == [f"{number}\n" for number in range(100)]
        memory = sum(
            process.memory_full_info().pss
            for process in psutil.Process().children(recursive=True)
            if process.is_running()
        )
        assert memory / len(alive) < 3 << 20, f"{memory / len(alive) / 1e6:.1f} MB each"
