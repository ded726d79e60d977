"""Every process of a sandbox's PID namespace is stopped, resumed or killed by signals."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.sandbox.backends import overlay
from langgraph_takeover.sandbox.backends.base import BackendSandbox
from langgraph_takeover.sandbox.backends.host import HostBackend
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.isolation import namespaces
from langgraph_takeover.testing.sandboxes import check_output, run

from ...conftest import skip_missing
from ..conftest import open_kit
from ..ordinary_user import make_user_directory, run_python_as_user

ROOT = Path(__file__).parents[3]
RESTLESS = Path(__file__).with_name("restless.py")


class Inside:
    """A `host` sandbox as its processes are seen from this host."""

    def __init__(self, sandbox: Any) -> None:
        assert isinstance(sandbox, BackendSandbox)
        backend = sandbox._backend
        assert isinstance(backend, HostBackend)
        keeper = backend._tree.namespaces  # type: ignore[attr-defined]
        self.sandbox = sandbox
        self.tmp = Path(f"/proc/{keeper.first_pid}/root{backend._tree.root}/tmp")
        self.entrances = [channel.process.pid for channel in backend._channels]
        self.namespace = (keeper.first_pid, keeper.entry_command())

    def begin(self, kind: str) -> Path:
        """Start a restless program; the file that it writes to."""
        self.sandbox.write_file("/tmp/restless.py", RESTLESS.read_bytes())
        check_output(self.sandbox, f"python3 /tmp/restless.py {kind} /tmp/beats >/tmp/errors 2>&1 &")
        await_growth(self.tmp / "beats")
        return self.tmp / "beats"


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def await_growth(file: Path) -> None:
    before, deadline = size(file), time.monotonic() + 20
    while size(file) <= before:
        assert time.monotonic() < deadline, f"nothing writes to {file}"
        time.sleep(0.01)


@pytest.fixture
def inside(repository: Path) -> Iterator[Inside]:
    with open_kit("host", repository, None) as kit:
        if reason := overlay.unavailable_reason():
            skip_missing(reason)
        sandbox = kit.start(pids=700)
        sandbox.inspect("true")
        yield Inside(sandbox)


KINDS = ["spin", "fork", "threads", "vfork", "trace", "handle", "resume", "resume_all", "many", "bomb"]


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_runs_while_all_are_stopped(inside: Inside, kind: str) -> None:
    beats = inside.begin(kind)
    for _ in range(3):
        with namespaces.stop_all(*inside.namespace, inside.entrances):
            before = size(beats)
            time.sleep(0.2)
            assert size(beats) == before
        await_growth(beats)


def test_the_shell_answers_afterwards(inside: Inside) -> None:
    check_output(inside.sandbox, "x=kept; sleep 100 &")
    for _ in range(3):
        with namespaces.stop_all(*inside.namespace, inside.entrances):
            pass
    assert check_output(inside.sandbox, "echo $x; kill -0 $! && echo runs") == "kept\nruns\n"
    inside.sandbox.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in inside.entrances)


def test_a_job_that_the_agent_stopped_stays_stopped(inside: Inside) -> None:
    check_output(inside.sandbox, "sleep 100 & kill -STOP $!; sleep .1")
    with namespaces.stop_all(*inside.namespace, inside.entrances):
        pass
    assert "T (stopped)" in check_output(inside.sandbox, "grep State /proc/$!/status")


def test_an_unstoppable_process_is_refused_and_resumed(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = inside.begin("spin")
    monkeypatch.setattr(namespaces, "_TIMEOUT_S", 0.3)
    monkeypatch.setattr(namespaces, "_STOPPED_STATES", frozenset("ZX"))
    with (
        pytest.raises(SandboxUnavailableError, match="withstood SIGSTOP"),
        namespaces.stop_all(*inside.namespace, inside.entrances),
    ):
        pytest.fail("processes count as stopped that do not")
    monkeypatch.undo()
    await_growth(beats)


def test_an_error_inside_resumes(inside: Inside) -> None:
    beats = inside.begin("spin")
    with (
        pytest.raises(KeyboardInterrupt),
        namespaces.stop_all(*inside.namespace, inside.entrances),
    ):
        raise KeyboardInterrupt
    await_growth(beats)


def test_an_interrupted_resumption_is_repeated(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    beats, resume, calls = inside.begin("spin"), namespaces._resume, []

    def interrupt_stop(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        resume(*arguments)

    monkeypatch.setattr(namespaces, "_resume", interrupt_stop)
    with pytest.raises(KeyboardInterrupt), namespaces.stop_all(*inside.namespace, inside.entrances):
        pass
    await_growth(beats)


def test_ended_namespaces(inside: Inside) -> None:
    inside.sandbox.close()
    with (
        pytest.raises(SandboxUnavailableError, match=r"cannot be listed|no process can be started"),
        namespaces.stop_all(*inside.namespace),
    ):
        pytest.fail("counts as stopped")


def test_the_agent_can_neither_see_nor_mount_control_groups(inside: Inside) -> None:
    """A process that could mount the hierarchy, or unshare its namespace, could leave its group."""
    own = Path("/proc/self/ns/cgroup").stat().st_ino
    assert f"cgroup:[{own}]" not in check_output(inside.sandbox, "readlink /proc/self/ns/cgroup")
    result = run(
        inside.sandbox,
        "ls -d /sys /sys/fs/cgroup 2>/dev/null; grep cgroup /proc/self/mounts; cut -d: -f3 /proc/self/cgroup | sort -u; "
        "exec 2>/dev/null; mkdir -p /tmp/x; mount -t cgroup2 none /tmp/x && echo mounted; "
        "unshare --user --map-root-user --cgroup --mount mount -t cgroup2 none /tmp/x && echo mounted; "
        "nsenter --target 1 --cgroup true && echo entered; "
        "ls -d /proc/[0-9]*/root/sys; :",
    )
    assert result.output == "/\n"


_STOPPER = """
import sys, time
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.isolation import namespaces
from langgraph_takeover.sandbox.interface import SandboxSpec
live_sandbox = sandbox.start(SandboxSpec.model_validate_json(sys.argv[1]))
live_sandbox.inspect("true")
live_sandbox.run("sleep 100 &", timeout_s=30)
keeper = live_sandbox._backend._tree.namespaces
entrances = [channel.process.pid for channel in live_sandbox._backend._channels]
with namespaces.stop_all(keeper.first_pid, keeper.entry_command(), entrances):
    print(keeper.first_pid, *entrances, flush=True)
    time.sleep(100)
"""


def test_a_killed_runtime_leaves_no_process(repository: Path) -> None:
    with open_kit("host", repository, None) as kit:
        spec = kit.spec().model_dump_json()
        runtime = subprocess.Popen(
            [sys.executable, "-c", _STOPPER, spec], cwd=ROOT, text=True, stdout=subprocess.PIPE
        )
        assert runtime.stdout is not None
        pids = runtime.stdout.readline().split()
        assert len(pids) == 3
        time.sleep(0.1)
        runtime.kill()
        runtime.wait()
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{pid}/stat").exists() and not is_zombie(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def is_zombie(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


_AS_ANYBODY = """
import sys, time
from pathlib import Path
from langgraph_takeover import sandbox
from langgraph_takeover.sandbox.isolation import namespaces
from langgraph_takeover.sandbox.interface import SandboxSpec
live_sandbox = sandbox.start(SandboxSpec(backend="host", directory=Path(sys.argv[1]), owner="anybody"))
live_sandbox.write_file("/tmp/restless.py", Path(sys.argv[2]).read_bytes())
keeper = live_sandbox._backend._tree.namespaces
beats = Path(f"/proc/{keeper.first_pid}/root{live_sandbox._backend._tree.root}/tmp/beats")
for kind in ("fork", "vfork", "trace", "threads"):
    live_sandbox.run(f"python3 /tmp/restless.py {kind} /tmp/beats >/tmp/errors 2>&1 & sleep .5", timeout_s=30)
    entrances = [channel.process.pid for channel in live_sandbox._backend._channels]
    with namespaces.stop_all(keeper.first_pid, keeper.entry_command(), entrances):
        sizes = [beats.stat().st_size]
        time.sleep(0.2)
        sizes.append(beats.stat().st_size)
    time.sleep(0.2)
    sizes.append(beats.stat().st_size)
    print(kind, sizes[0] == sizes[1] < sizes[2])
live_sandbox.close()
sandbox.remove_stale_resources("host", "anybody")
"""


@pytest.mark.slow
def test_as_an_ordinary_user(repository: Path) -> None:
    with make_user_directory() as directory:
        subprocess.run(["cp", "-a", repository, RESTLESS, directory], check=True)
        shown = run_python_as_user(
            directory, "-c", _AS_ANYBODY, directory / repository.name, directory / RESTLESS.name
        )
    assert shown.splitlines() == [f"{kind} True" for kind in ("fork", "vfork", "trace", "threads")]
