"""Control groups of both versions: all processes inside are stopped, limited, killed and removed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.docker_client import pause_container
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import cgroups, freezer
from langgraph_takeover.sandbox.isolation.cgroups import ControlGroup

from ...conftest import skip_missing
from .test_namespaces import KINDS, RESTLESS, ROOT, await_growth, size

_MEMORY_BYTES, _PIDS = 256 << 20, 300
_CACHES: tuple[Any, ...] = (cgroups._compute_unavailable_reason, freezer.find_parent_groups)


def fresh() -> None:
    for cache in _CACHES:
        cache.cache_clear()


@pytest.fixture(params=["as mounted", "version 1", "version 2"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mount only the hierarchies of one version."""
    every = freezer.list_positions
    if request.param != "as mounted":
        unified = request.param == "version 2"
        monkeypatch.setattr(
            freezer,
            "list_positions",
            lambda pid=None: [one for one in every(pid) if (not one.controllers) == unified],
        )
    fresh()
    if reason := cgroups.unavailable_reason():
        skip_missing(reason)
    yield request.param
    monkeypatch.undo()
    fresh()


@pytest.fixture
def group(version: str) -> Iterator[ControlGroup]:
    made = cgroups.create_group(_MEMORY_BYTES, _PIDS)
    assert made is not None
    yield made
    made.kill()
    made.remove()
    assert not any(directory.exists() for directory in made._directories)


def start(group: ControlGroup, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*group.entry_command, *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def begin(group: ControlGroup, kind: str, beats: Path) -> subprocess.Popen[str]:
    process = start(group, sys.executable, str(RESTLESS), kind, str(beats))
    await_growth(beats)
    return process


def check_is_still(beats: Path, seconds: float) -> None:
    before = size(beats)
    time.sleep(seconds)
    assert size(beats) == before


# It would resume every process of this host.
_HERE = [kind for kind in KINDS if kind != "resume_all"]


@pytest.mark.cases(3)
@pytest.mark.parametrize("kind", _HERE)
def test_nothing_runs_during_a_snapshot_and_nothing_survives(
    group: ControlGroup, kind: str, tmp_path: Path
) -> None:
    if kind in ("many", "bomb") and not group.has_pids_limit:
        pytest.skip(
            "a fork bomb needs a limit on processes, which this hierarchy has not; the other version's test has it"
        )
    process = begin(group, kind, tmp_path / "beats")
    for _ in range(3):
        with group.pause():
            check_is_still(tmp_path / "beats", 0.1)
        await_growth(tmp_path / "beats")
    group.kill()
    assert group.process_ids() == set()
    check_is_still(tmp_path / "beats", 0.05)
    process.wait(5)


def test_spared_processes_survive(group: ControlGroup, tmp_path: Path) -> None:
    spared = begin(group, "spin", tmp_path / "spared")
    others = [begin(group, kind, tmp_path / kind) for kind in ("spin", "fork", "threads", "vfork")]
    group.kill(select_spared=lambda pids: {spared.pid})
    assert group.process_ids() == {spared.pid}
    assert [other.wait(5) for other in others if other.args[-2] != "fork"] == [-signal.SIGKILL] * 3  # type: ignore[index]
    await_growth(tmp_path / "spared")
    group.kill()
    assert spared.wait(5) == -signal.SIGKILL


def test_nested_snapshots_resume_with_the_last(group: ControlGroup, tmp_path: Path) -> None:
    begin(group, "spin", tmp_path / "beats")
    with group.pause():
        with group.pause():
            pass
        check_is_still(tmp_path / "beats", 0.05)
    await_growth(tmp_path / "beats")


def test_a_kill_ends_stopped_processes(group: ControlGroup, tmp_path: Path) -> None:
    process = begin(group, "spin", tmp_path / "beats")
    with group.pause():
        group.kill()
        assert process.wait(5) == -signal.SIGKILL


@pytest.mark.slow
def test_many_groups_are_stopped_at_once(version: str, tmp_path: Path) -> None:
    groups = [made for _ in range(8) if (made := cgroups.create_group(_MEMORY_BYTES, _PIDS)) is not None]
    failures: list[int] = []
    for number, group in enumerate(groups):
        begin(group, "fork" if number % 2 else "threads", tmp_path / str(number))

    def freeze(number: int) -> None:
        for _ in range(10):
            with groups[number].pause():
                before = size(tmp_path / str(number))
                time.sleep(0.005)
                if size(tmp_path / str(number)) != before:
                    failures.append(number)

    threads = [threading.Thread(target=freeze, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        group.kill()
        group.remove()
    assert failures == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_inside_resumes(group: ControlGroup, tmp_path: Path, error: type[BaseException]) -> None:
    begin(group, "spin", tmp_path / "beats")
    with pytest.raises(error), group.pause():
        raise error
    await_growth(tmp_path / "beats")


def test_an_unstoppable_process_is_refused_and_resumed(
    group: ControlGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(group, "spin", tmp_path / "beats")
    switch = freezer._set_paused
    monkeypatch.setattr(freezer, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(freezer, "_set_paused", lambda *a, **k: switch(*a, **k) and False)
    with pytest.raises(SandboxUnavailableError, match="did not stop"), group.pause():
        pytest.fail("counts as frozen")
    monkeypatch.undo()
    await_growth(tmp_path / "beats")


def test_ctrl_c_while_stopping_or_resuming(
    group: ControlGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(group, "spin", tmp_path / "beats")
    switch = freezer._set_paused
    for interrupted_call in (1, 2):
        calls = 0

        def interrupt_switch(directory: Path, *, is_paused: bool, at: int = interrupted_call) -> bool:
            nonlocal calls
            calls += 1
            if calls == at:
                raise KeyboardInterrupt
            return switch(directory, is_paused=is_paused)

        with monkeypatch.context() as patch:
            patch.setattr(freezer, "_set_paused", interrupt_switch)
            with pytest.raises(KeyboardInterrupt), group.pause():
                pass
        await_growth(tmp_path / "beats")


_LEADERLESS = """
import ctypes, threading, time
def beat():
    while True:
        time.sleep(0.01)
threading.Thread(target=beat).start()
print("begun", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_killed(group: ControlGroup) -> None:
    process = start(group, sys.executable, "-c", _LEADERLESS)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    while "State:\tZ" not in Path(f"/proc/{process.pid}/status").read_text():
        time.sleep(0.01)
    group.kill(select_spared=lambda pids: {os.getpid()})
    assert process.wait(10) == -signal.SIGKILL


def test_an_empty_group(group: ControlGroup) -> None:
    with group.pause():
        assert group.process_ids() == set()
    group.kill()
    group.remove()
    group.remove()
    assert group.process_ids() == set()


def test_the_whole_tree_is_inside_from_the_start(group: ControlGroup) -> None:
    lines = start(group, "cat", "/proc/self/cgroup").communicate()[0].splitlines()
    name = group._directories[0].name
    assert sum(line.endswith(f"/{name}") for line in lines) == len(group._directories)


def test_a_removed_group_runs_nothing(group: ControlGroup, tmp_path: Path) -> None:
    entering = group.entry_command
    group.remove()
    done = subprocess.run([*entering, "touch", str(tmp_path / "ran")], capture_output=True, check=False)
    assert done.returncode != 0
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def limited_group() -> Iterator[ControlGroup]:
    fresh()
    if reason := cgroups.unavailable_reason():
        skip_missing(reason)
    made = cgroups.create_group(_MEMORY_BYTES, _PIDS)
    assert made is not None
    if not made.has_memory_limit:
        skip_missing("no memory controller")
    yield made
    made.kill()
    made.remove()


_WRITE = "\nfor _ in range(1200): os.write(file, bytes(1 << 20))\nprint('done')"
_SYSV = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(12):
    segment = libc.shmget(0, ctypes.c_size_t(100 << 20), 0o1600)
    where = libc.shmat(segment, None, 0)
    ctypes.memset(where, 1, 100 << 20)
    libc.shmdt(ctypes.c_void_p(where))
print('done')
"""
_EATERS = {
    "one memfd": "import os\nfile = os.memfd_create('x')" + _WRITE,
    "many memfds": "import os\nfor _ in range(1200): os.write(os.memfd_create('x'), bytes(1 << 20))\nprint('done')",
    "a heap": "x = [b'x' * (1 << 20) for _ in range(1200)]\nprint('done')",
    "shared maps": "import mmap\nmaps = [mmap.mmap(-1, 1 << 20) for _ in range(1200)]\n"
    "for one in maps: one.write(bytes(1 << 20))\nprint('done')",
    "pipes": "import os, fcntl\nwhile True:\n    r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); os.write(w, bytes(1 << 20))",
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("eater", _EATERS)
def test_memory_of_every_kind_is_limited(limited_group: ControlGroup, eater: str) -> None:
    program = f"import resource; resource.setrlimit(7, (4000, 4000))\n{_EATERS[eater]}"
    process = start(limited_group, sys.executable, "-c", program)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", -signal.SIGKILL)


def test_segments_outlive_their_process(limited_group: ControlGroup) -> None:
    """1.2 GB in twelve pieces, none of which any process has mapped at the end."""
    program = ["unshare", "--ipc", sys.executable, "-c", _SYSV]
    process = start(limited_group, *program)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", -signal.SIGKILL)


def test_cached_files_are_written_back_not_killed(limited_group: ControlGroup, tmp_path: Path) -> None:
    program = f"import os\nfile = os.open({str(tmp_path / 'x')!r}, 65){_WRITE}"
    process = start(limited_group, sys.executable, "-c", program)
    out, _ = process.communicate(timeout=120)
    assert (out, process.returncode) == ("done\n", 0)


def test_the_largest_process_is_killed(limited_group: ControlGroup) -> None:
    shell = start(limited_group, "sh", "-c", f"{sys.executable} -c 'x = b\"x\" * (1 << 30)'; echo $?")
    assert shell.communicate(timeout=60)[0] == "137\n"


_FAMILY = """
import os, time
child = os.fork()
if child == 0:
    time.sleep(0.3)
    file = os.memfd_create("x")
    while True: os.write(file, bytes(1 << 16))
ballast = b"x" * (20 << 20)
print("started", flush=True)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_protected_process_outlives_a_smaller_one(limited_group: ControlGroup) -> None:
    process = start(limited_group, sys.executable, "-c", _FAMILY)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    limited_group.protect({process.pid})
    assert process.communicate(timeout=60)[0] == "-9\n"


def test_nothing_inside_escapes_the_kernels_choice(limited_group: ControlGroup) -> None:
    if os.geteuid() != 0:
        skip_missing("needs root, to become another user or to mount")
    program = "from pathlib import Path; Path('/proc/self/oom_score_adj').write_text('-1')"
    limited_group.protect(())
    script = f'python3 -c "{program}"; echo $?'
    process = start(limited_group, "setpriv", "--reuid=54321", "--clear-groups", "sh", "-c", script)
    assert process.communicate()[0] == "1\n"


def test_a_protected_runtime_does_not_protect_its_sandboxes(
    limited_group: ControlGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = tmp_path / "score"
    score.write_text("-900\n")
    monkeypatch.setattr(cgroups, "_OWN_SCORE", score)
    assert start(limited_group, "cat", str(score)).communicate()[0] == "0\n"


def test_address_space_is_not_limited(limited_group: ControlGroup) -> None:
    program = "import mmap; x = mmap.mmap(-1, 1 << 40, flags=0x4022); x[0] = 1; print('done')"
    assert start(limited_group, sys.executable, "-c", program).communicate(timeout=30)[0] == "done\n"


def test_the_number_of_processes_is_limited(limited_group: ControlGroup) -> None:
    if not limited_group.has_pids_limit:
        skip_missing("no pids controller")
    program = (
        "import os\ntry:\n for n in range(1000):\n  if not os.fork(): os.read(0, 1)\nexcept OSError: print(n)"
    )
    command = [*limited_group.entry_command, sys.executable, "-c", program]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == _PIDS - 1
    limited_group.kill()
    process.communicate()


_MAKER = """
import sys, time
from langgraph_takeover.sandbox.isolation import cgroups
import subprocess
group = cgroups.create_group(1 << 28, 100)
process = subprocess.Popen([*group.entry_command, "sh", "-c", "while :; do sleep .01; done"])
time.sleep(0.2)
if sys.argv[1] == "no guard":
    import os
    os.kill(cgroups._start_guard(os.getpid()).pid, 9)
freezing = group.pause()
freezing.__enter__()
print(*group._directories, flush=True)
time.sleep(100)
"""


def _kill_maker(guard: str) -> tuple[list[Path], Callable[[], bool]]:
    maker = subprocess.Popen(
        [sys.executable, "-c", _MAKER, guard], cwd=ROOT, text=True, stdout=subprocess.PIPE
    )
    assert maker.stdout is not None
    directories = [Path(name) for name in maker.stdout.readline().split()]
    pids = (directories[0] / "cgroup.procs").read_text().split()
    assert len(pids) >= 1
    maker.kill()
    maker.wait()
    return directories, lambda: any(Path(f"/proc/{pid}/exe").exists() for pid in pids)


@pytest.mark.usefixtures("version")
def test_the_next_start_cleans_up_after_a_kill_during_a_snapshot() -> None:
    directories, any_alive = _kill_maker("no guard")
    assert any_alive()
    cgroups.remove_stale_groups({directory.parent for directory in directories})
    assert not any_alive()
    assert not any(directory.exists() for directory in directories)


@pytest.mark.usefixtures("limited_group")
def test_a_kill_during_a_snapshot_leaves_no_process() -> None:
    directories, any_alive = _kill_maker("guard")
    deadline = time.monotonic() + 20
    try:
        while any(directory.exists() for directory in directories):
            # Only this test can end these processes; in a sandbox, their namespace ends.
            for directory in directories:
                with contextlib.suppress(OSError):
                    for pid in (directory / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not any_alive()
    finally:
        cgroups.remove_stale_groups({directory.parent for directory in directories})


def test_groups_of_living_processes_and_of_others_are_left(limited_group: ControlGroup) -> None:
    parents = {directory.parent for directory in limited_group._directories}
    _, namespace, _, start = ownership.current_process_identity().split("/")
    names = [
        f"takeover-{int(namespace) + 1}-{os.getpid()}-{int(start) + 1}-00",  # another PID namespace
        "takeover-000",
        f"other-{namespace}-1-1-00",
    ]
    made = [parent / name for parent in parents for name in names]
    for directory in made:
        directory.mkdir()
    try:
        cgroups.remove_stale_groups(parents)
        assert all(directory.is_dir() for directory in (*made, *limited_group._directories))
    finally:
        for directory in made:
            directory.rmdir()


def test_groups_of_a_reused_process_id(limited_group: ControlGroup) -> None:
    parent = limited_group._directories[0].parent
    _, namespace, _, start = ownership.current_process_identity().split("/")
    stale = parent / f"takeover-{namespace}-{os.getpid()}-{int(start) - 1}-00"
    stale.mkdir()
    cgroups.remove_stale_groups([parent])
    assert not stale.exists()


MOUNTS = {
    "version 2 alone": (
        "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
        "0::/user.slice/app\\x2dx.scope",
        "/sys/fs/cgroup/user.slice/app\\x2dx.scope",
    ),
    "a container's own namespace": (
        "30 24 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw",
        "0::/",
        "/sys/fs/cgroup",
    ),
    "a bind mount of the own group": (
        "30 24 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw",
        "0::/docker/abc/sub",
        "/sys/fs/cgroup/sub",
    ),
    "a mount point with a space": (
        "30 24 0:26 / /mnt/control\\040groups rw - cgroup2 cgroup rw",
        "0::/a",
        "/mnt/control groups/a",
    ),
    "two controllers in one hierarchy": (
        "30 24 0:26 / /sys/fs/cgroup/cpu,memory rw - cgroup cgroup rw,cpu,memory",
        "5:memory,cpu:/a",
        "/sys/fs/cgroup/cpu,memory/a",
    ),
    "a group above the namespace's": ("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw", "0::/../a", None),
    "a mount from above the namespace": (
        "30 24 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup rw",
        "0::/",
        None,
    ),
    "another hierarchy": ("30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", "5:memory:/a", None),
    "a mount of another group": ("30 24 0:26 /b /sys/fs/cgroup rw - cgroup2 cgroup rw", "0::/a", None),
    "none": ("30 24 0:26 / /proc rw shared:1 master:2 - proc proc rw", "0::/a", None),
}


@pytest.mark.parametrize("case", MOUNTS)
def test_finds_the_position_of_this_process(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mountinfo, groups, expected = MOUNTS[case]
    texts = {"/proc/self/mountinfo": mountinfo, "/proc/self/cgroup": groups}
    monkeypatch.setattr(Path, "read_text", lambda self: texts[str(self)])
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    assert [str(one.directory) for one in freezer.list_positions()] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("own", "controllers", "writable", "limited_groups", "expected"),
    [
        ("a.slice/b.scope", ["a.slice"], ["a.slice"], [], "a.slice"),
        ("a.slice/b.scope", ["", "a.slice"], ["", "a.slice"], [], "a.slice"),
        ("a.slice/b.scope", [""], ["", "a.slice"], [], ""),
        (
            "a.slice/b.scope",
            ["", "a.slice"],
            ["a.slice", "a.slice/b.scope"],
            ["a.slice/b.scope"],
            "a.slice/b.scope",
        ),
        ("a.slice/b.scope", [""], ["", "a.slice"], ["a.slice"], "a.slice"),
        ("a.slice/b.scope", [], ["a.slice/b.scope"], [], "a.slice/b.scope"),
        ("", [""], [""], [], ""),
        ("a.slice/b.scope", [""], [], [], None),
    ],
)
def test_the_parent_of_version_2_groups(
    own: str,
    controllers: list[str],
    writable: list[str],
    limited_groups: list[str],
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / own).mkdir(parents=True, exist_ok=True)
    for name in limited_groups:
        (tmp_path / name / "memory.max").write_text("1000000\n")

    def trial(parent: Path) -> set[str]:
        able = {"memory", "pids"} if parent in [tmp_path / name for name in controllers] else set()
        return able | {"freezer"} if parent in [tmp_path / name for name in writable] else set()

    monkeypatch.setattr(freezer, "_probe_controllers", trial)
    found = freezer._find_unified_parents(freezer.Position(frozenset(), tmp_path / own, tmp_path))
    assert set(found.values()) == ({tmp_path / expected} if expected is not None else set())
    with_limits = expected is not None and expected in controllers
    assert ("memory" in found) == (with_limits and expected in writable)


def test_reports_why_an_ordinary_user_has_no_group() -> None:
    if os.geteuid() != 0:
        skip_missing("needs root, to become another user or to mount")
    program = (
        "from langgraph_takeover.sandbox.isolation import cgroups; "
        "print(cgroups.create_group(1 << 30, 9)); print(cgroups.unavailable_reason())"
    )
    done = subprocess.run(
        ["setpriv", "--reuid=54321", "--clear-groups", sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=True,
    )
    first, reason = done.stdout.splitlines()
    assert first == "None"
    assert "Permission denied" in reason
    assert "systemd-run" in reason


def test_read_only_hierarchies_are_unavailable() -> None:
    if os.geteuid() != 0:
        skip_missing("needs root, to become another user or to mount")
    program = "from langgraph_takeover.sandbox.isolation import cgroups; print(cgroups.unavailable_reason())"
    points = {str(position.top) for position in freezer.list_positions()}
    remount = "; ".join(f"mount -o remount,bind,ro {point}" for point in points)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{remount}; exec "$@"', "sh", sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Read-only file system" in done.stdout


def test_a_container_is_stopped_by_its_own_group(group: ControlGroup, tmp_path: Path) -> None:
    process = begin(group, "spin", tmp_path / "beats")
    name = group._directories[0].name
    with pause_container(name, process.pid):
        check_is_still(tmp_path / "beats", 0.1)
    await_growth(tmp_path / "beats")
