"""The contract of every sandbox, fourth part: limits on what a hostile agent can reach, break or outlive."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_takeover.sandbox.interface import FileAccessError, Sandbox, SandboxUnavailableError
from langgraph_takeover.sandbox.repository import RepositoryError, head_commit, patch_since
from langgraph_takeover.testing.sandboxes.kit import FILES, Kit, check_output, run

SECRET = f"secret-{secrets.token_hex(8)}"
MEMORY_MB = 256
PIDS = 60
DISK_MB = 48
OPEN_FILES = 200
LIMITS = {"memory_mb": MEMORY_MB, "pids": PIDS, "disk_mb": DISK_MB, "open_files": OPEN_FILES}


@pytest.fixture(scope="session")
def confined_sandbox(kit: Kit) -> Iterator[Sandbox]:
    """One sandbox with narrow limits for all attacks that it survives; skipped for a back end without isolation."""
    if not kit.is_isolated:
        pytest.skip("this back end does not promise to withstand a hostile agent")
    with kit.close_started():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_API_KEY", SECRET)
            started = kit.start(**LIMITS)
        yield started


@pytest.fixture
def victim(kit: Kit) -> Iterator[Sandbox]:
    """A sandbox of its own for one attack, with the same limits."""
    if not kit.is_isolated:
        pytest.skip("this back end does not promise to withstand a hostile agent")
    with kit.close_started():
        yield kit.start(**LIMITS)


def assert_usable(sandbox: Sandbox) -> None:
    """Check that the sandbox runs commands, lists changes, reads and writes as before."""
    assert check_output(sandbox, "cd; echo usable") == "usable\n"
    sandbox.write_file("/tmp/note", b"x")
    assert sandbox.read_file("/tmp/note") == b"x"
    sandbox.changes()
    assert sandbox.sha256("/tmp/note") == hashlib.sha256(b"x").hexdigest()


def can_connect(sandbox: Sandbox, address: str, family: str = "AF_INET") -> bool:
    """Whether a command inside can connect. The command must be able to try."""
    code = (
        f"import socket; s = socket.socket(socket.{family}); s.settimeout(3); print(s.connect_ex({address}))"
    )
    return int(check_output(sandbox, f"python3 -c {code!r}")) == 0


def test_loopback_connections_work(confined_sandbox: Sandbox) -> None:
    code = (
        'import socket; l = socket.create_server(("127.0.0.1", 0)); '
        "print(socket.socket().connect_ex(l.getsockname()))"
    )
    assert check_output(confined_sandbox, f"python3 -c '{code}'") in (
        "0\n",
        "101\n",
    )  # 101: not even loopback is up


def test_no_way_to_this_hosts_network(confined_sandbox: Sandbox) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=3):
            pass  # otherwise the checks below prove nothing
        own = socket.gethostbyname(socket.gethostname())
        for host in {"127.0.0.1", own, "172.17.0.1", "192.0.2.1", "1.1.1.1"}:
            assert not can_connect(confined_sandbox, f"({host!r}, {port})"), host


def test_no_way_to_this_hosts_abstract_sockets(confined_sandbox: Sandbox) -> None:
    name = f"\0{SECRET}"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(name)
        listener.listen()
        client.connect(name)
        assert not can_connect(confined_sandbox, f"chr(0) + '{SECRET}'", "AF_UNIX")


def test_only_the_loopback_interface_exists(confined_sandbox: Sandbox) -> None:
    assert check_output(confined_sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo\n"


def test_this_hosts_files_are_hidden(confined_sandbox: Sandbox, tmp_path: Path) -> None:
    directories = {Path(tempfile.gettempdir()), Path.home(), Path("/var/tmp"), tmp_path}
    for directory in directories:
        path = directory / SECRET
        path.write_text(SECRET)
        try:
            result = run(confined_sandbox, f"cat {path} /proc/1/root{path}")
        finally:
            path.unlink()
        assert result.exit_code == 1
        assert "No such file" in result.output or "Permission denied" in result.output
        assert SECRET not in result.output.replace(str(path), "")
    assert run(confined_sandbox, "ls /var/run/docker.sock /run/docker.sock /etc/shadow").exit_code != 0


def test_another_sandboxes_files_are_hidden(confined_sandbox: Sandbox) -> None:
    rooms = Path(tempfile.mkdtemp(prefix="takeover-other-"))
    try:
        assert run(confined_sandbox, f"ls {rooms}").exit_code == 2
    finally:
        rooms.rmdir()
    assert check_output(confined_sandbox, "find / -xdev -name 'takeover-*' 2>/dev/null | head || :") == ""


def test_only_the_agents_own_files_can_be_written(confined_sandbox: Sandbox) -> None:
    if run(confined_sandbox, "echo > /usr/x").exit_code == 0:
        pytest.skip("the system's files are this host's own")
    for path in ("/usr/x", "/etc/x", "/x", "/bin/x", "/home/x"):
        assert run(confined_sandbox, f"echo > {path}").exit_code != 0, path
    assert (
        check_output(
            confined_sandbox, "echo ok > $HOME/x; echo ok > /tmp/x; echo ok > x; cat $HOME/x /tmp/x x"
        )
        == "ok\n" * 3
    )


def test_the_environment_is_built_from_scratch(
    confined_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert run(confined_sandbox, "exit 3").shell_ended  # the next command starts a new shell
    seen = check_output(confined_sandbox, "env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' || :")
    assert "HOME=" in seen
    assert SECRET not in seen
    ours = {name for name in os.environ if name.startswith(("OPENAI", "PYTEST", "VIRTUAL_ENV", "DOCKER"))}
    assert not [name for name in ours if f"{name}=" in seen]
    assert SECRET not in confined_sandbox.inspect("env").output


def test_no_new_privileges(kit: Kit, confined_sandbox: Sandbox) -> None:
    status = dict(
        line.split(":\t", 1) for line in check_output(confined_sandbox, "cat /proc/self/status").splitlines()
    )
    assert status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) & (1 << 21) == 0, "CAP_SYS_ADMIN"
    assert run(confined_sandbox, "mount -t tmpfs x /tmp || unshare -m true").exit_code != 0
    if kit.backend == "host":
        assert (int(status["CapEff"], 16), int(status["CapPrm"], 16)) == (0, 0)


_FORKS = """
import os, signal, time
children = []
try:
    for _ in range(300):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        children.append(child)
except OSError as error:
    print(error.strerror)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(len(children))
"""


def test_the_number_of_processes_is_limited(confined_sandbox: Sandbox) -> None:
    confined_sandbox.write_file("/tmp/forks.py", _FORKS.encode())
    reason, number = check_output(confined_sandbox, "python3 /tmp/forks.py").splitlines()
    assert reason == "Resource temporarily unavailable"
    assert PIDS // 2 < int(number) < PIDS
    assert check_output(confined_sandbox, "ls pkg | head -1; echo usable") == "__init__.py\nusable\n"
    assert confined_sandbox.read_file("/tmp/forks.py") == _FORKS.encode()


def test_a_sandbox_full_of_processes_stays_usable(confined_sandbox: Sandbox) -> None:
    # Without pauses the kernel's memory for failed forks may exceed the limit before the number of processes does.
    command = "python3 -IS -c 'import os, time\nwhile 1:\n try: os.fork()\n except OSError: time.sleep(0.1)'"
    result = run(confined_sandbox, command, timeout_s=1)
    assert result.timed_out
    assert check_output(confined_sandbox, "ls pkg | head -1") == "__init__.py\n"
    # Those that were killed may take a moment to end.
    count = "for i in $(seq 100); do n=$(ls -d /proc/[0-9]* 2>/dev/null | wc -l); [ $n -ge 12 ] || break; sleep 0.1; done"
    assert int(check_output(confined_sandbox, f"{count}; echo $n")) < 12


def test_memory_is_limited(confined_sandbox: Sandbox) -> None:
    allocate = "python3 -c 'print(len(bytearray({mb} << 20)))'"
    assert check_output(confined_sandbox, allocate.format(mb=MEMORY_MB // 4)) == f"{(MEMORY_MB // 4) << 20}\n"
    result = run(confined_sandbox, allocate.format(mb=MEMORY_MB * 4))
    assert result.exit_code in (1, 137)
    assert not result.shell_ended
    assert check_output(confined_sandbox, "echo usable") == "usable\n"


_QUOTA_PERIOD_S = 0.2
"""The kernel enforces a quota per tenth of a second, so the usage may exceed it by two of these periods."""


def test_processors_are_limited(kit: Kit, victim: Sandbox) -> None:
    limited = kit.start(cpus=1)
    spin = "end=$((SECONDS + 2)); while ((SECONDS < end)); do :; done"
    spun = check_output(
        limited, f"TIMEFORMAT='%R %U'; {{ time (for i in 1 2 3; do ({spin}) & done; wait); }} 2>&1"
    )
    elapsed_s, used_s = map(float, spun.split())
    assert used_s <= elapsed_s + _QUOTA_PERIOD_S


def test_two_sandboxes_do_not_share_a_limit(kit: Kit, victim: Sandbox) -> None:
    other = kit.start(pids=PIDS)
    check_output(victim, f"for i in $(seq {PIDS - 20}); do sleep 60 & done")
    check_output(other, f"for i in $(seq {PIDS - 20}); do sleep 60 & done; ls")


def test_a_fork_bomb(victim: Sandbox) -> None:
    result = run(victim, "bomb() { bomb | bomb & }; bomb; sleep 60", timeout_s=2)
    assert result.timed_out
    assert_usable(victim)
    assert int(check_output(victim, "ls -d /proc/[0-9]* 2>/dev/null | wc -l")) < 12


def test_memory_taken_by_many_processes(victim: Sandbox) -> None:
    hog = f'import time; x = b"x" * ({MEMORY_MB // 2} << 20); print(len(x), flush=True); time.sleep(300)'
    # No process ends by itself: the first to end was killed.
    result = run(
        victim,
        f"for i in {{1..8}}; do python3 -c '{hog}' & done; wait -n; kill -9 $(jobs -p); wait",
        timeout_s=60,
    )
    assert not result.timed_out, result
    assert result.output.count(f"{MEMORY_MB // 2 << 20}\n") < 8, result
    assert_usable(victim)


def test_open_files_are_limited(confined_sandbox: Sandbox) -> None:
    code = "import os\nn = 0\ntry:\n while 1: os.dup(0); n += 1\nexcept OSError as e: print(e.strerror, n)"
    reason, _, number = check_output(confined_sandbox, f"python3 -c '{code}'").rpartition(" ")
    assert (reason, OPEN_FILES // 2 < int(number) < OPEN_FILES) == ("Too many open files", True)
    assert run(confined_sandbox, f"ulimit -n {OPEN_FILES * 2}").exit_code != 0


def test_an_oversized_file(confined_sandbox: Sandbox) -> None:
    result = run(confined_sandbox, f"head -c {DISK_MB * 2}M /dev/zero >/tmp/fill")
    assert result.exit_code != 0
    assert not result.shell_ended
    check_output(confined_sandbox, "rm /tmp/fill")


def test_a_disk_that_is_filled_with_files(victim: Sandbox) -> None:
    fill = f"for i in $(seq 1000); do head -c {DISK_MB // 4}M /dev/zero >/tmp/fill-$i; sleep .05; done"
    result = run(victim, fill, timeout_s=60)
    assert (result.disk_full, result.timed_out, result.exit_code) == (True, False, None)
    assert int(check_output(victim, "ls /tmp | wc -l")) < 500
    assert check_output(victim, "rm /tmp/fill-*; echo tidied") == "tidied\n"
    assert_usable(victim)


def test_a_disk_that_is_filled_between_commands(victim: Sandbox) -> None:
    write = f"sleep .3; head -c {DISK_MB // 2}M /dev/zero >/tmp/fill-"
    check_output(
        victim, f"(for i in 1 2 3 4; do {write}$i; done; touch /tmp/done; sleep 60) >/dev/null 2>&1 & kept=1"
    )
    while "done" not in (victim.directory_listing("/tmp") or ()):
        time.sleep(0.1)
    result = run(victim, "sleep 20")
    assert (result.disk_full, result.timed_out, result.exit_code) == (True, False, None)
    assert check_output(victim, "ls /tmp/fill-* | wc -l; rm /tmp/fill-*; echo $kept") == "4\n1\n"
    assert int(check_output(victim, "ls -d /proc/[0-9]* 2>/dev/null | wc -l")) < 12
    assert_usable(victim)


def test_a_disk_that_a_short_command_fills(victim: Sandbox) -> None:
    fill = f"for i in 1 2 3; do head -c {DISK_MB // 2}M /dev/zero >/tmp/fill-$i; done; kept=1"
    result = run(victim, fill)
    assert (result.disk_full, result.timed_out, result.exit_code) == (True, False, None)
    check_output(victim, "rm -f /tmp/fill-*")
    assert_usable(victim)


def test_a_disk_that_the_runtimes_git_fills(victim: Sandbox) -> None:
    base = head_commit(victim)
    sparse = "truncate -s 15M sparse-$i; echo $i >>sparse-$i"
    check_output(victim, f"for i in $(seq {20 * DISK_MB // 15}); do {sparse}; done; cd /tmp; kept=1")
    with pytest.raises(RepositoryError, match="disk limit"):
        patch_since(victim, base)
    assert check_output(victim, "ls /tmp; pwd; echo $kept") == "/tmp\n1\n"
    check_output(victim, "cd - && rm sparse-*")
    assert patch_since(victim, base).text == ""
    assert_usable(victim)


_UNNAMED_FILES_PROGRAM = """
import os, sys, time
files = []
for n in range({number}):
    files.append(open(f"/tmp/held-{{n}}", "w+b"))
    os.unlink(f"/tmp/held-{{n}}")
    for _ in range({megabytes} // {number}): files[-1].write(b"x" * 1048576); files[-1].flush()
open("/tmp/done", "w")
time.sleep(60)
"""


def test_a_disk_that_is_filled_with_files_without_a_name(victim: Sandbox) -> None:
    victim.write_file("held.py", _UNNAMED_FILES_PROGRAM.format(number=20, megabytes=20 * DISK_MB).encode())
    result = run(victim, "python3 held.py", timeout_s=60)
    assert (result.disk_full, result.timed_out) == (True, False)
    assert run(victim, "ls /tmp/done").exit_code != 0, "twenty times the limit was written"
    assert_usable(victim)


def test_snapshots_do_not_raise_the_limit_on_the_disk(victim: Sandbox, store: Path) -> None:
    for number in range(20):
        fill = f"head -c {DISK_MB // 4}M /dev/urandom >/tmp/fill-{number}; sleep 2"
        result = run(victim, fill, timeout_s=60)
        if result.disk_full:
            break
        victim.snapshot(store / str(number)).result()
    assert result.disk_full
    assert number <= 5
    assert_usable(victim)


def test_shared_memory_is_limited(confined_sandbox: Sandbox) -> None:
    assert run(confined_sandbox, "head -c 300M /dev/zero >/dev/shm/fill").exit_code != 0
    check_output(confined_sandbox, "rm -f /dev/shm/fill")


def test_an_agent_that_kills_all_visible_processes(victim: Sandbox) -> None:
    victim.inspect("true")
    run(victim, "echo x >note.txt; kill -9 -1")
    assert victim.read_file("note.txt") == b"x\n"
    assert "note.txt" in [change.path for change in victim.changes()]
    assert_usable(victim)


def test_an_agent_that_deletes_everything(kit: Kit, victim: Sandbox, store: Path) -> None:
    snapshot = victim.snapshot(store).result()
    result = run(
        victim, "rm -rf ~ ./* /tmp/*; timeout 3 rm -rf --no-preserve-root / 2>/dev/null; echo still here"
    )
    assert result.output.endswith("still here\n")
    assert {"README.txt", "pkg/mod.py"} <= {change.path for change in victim.changes() if not change.after}
    with pytest.raises((FileAccessError, SandboxUnavailableError)):
        victim.read_file("README.txt")
    assert check_output(kit.restore(snapshot, store), "cat README.txt") == FILES["README.txt"]


def test_an_agent_that_breaks_git(victim: Sandbox) -> None:
    check_output(
        victim, "rm -rf .git; mkdir .git; ln -s / .git/objects; echo '[core' >.git/config; echo x >.git/HEAD"
    )
    assert victim.changes() == ()
    assert_usable(victim)


def test_directories_nested_beyond_the_path_limit(kit: Kit, confined_sandbox: Sandbox, store: Path) -> None:
    owner = f"test-{secrets.token_hex(4)}"
    victim = kit.start(owner=owner, **LIMITS)
    nest = "import os\nfor n in range(3000):\n os.mkdir('d'); os.chdir('d')\nopen('deep', 'w')"
    check_output(victim, f'cd; python3 -c "{nest}"; cd {victim.workspace}; echo x >> README.txt')
    assert "README.txt" in [change.path for change in victim.changes()]
    with pytest.raises(SandboxUnavailableError):
        victim.snapshot(store).result()
    assert check_output(victim, "echo usable") == "usable\n"
    victim.close()
    kit.remove_stale_resources(owner)
    assert kit.find_stale_resources(owner) == set()


def test_an_agent_that_writes_to_the_runtimes_own_channel(confined_sandbox: Sandbox) -> None:
    for descriptor in (99, 198, 255):
        result = run(confined_sandbox, f"echo junk >&{descriptor}; (exit 6)")
        assert result.exit_code == 6
    forged = run(
        confined_sandbox,
        "trap -p | tr ' ' '\\n' | grep -o '[0-9a-f]\\{32\\}' >/tmp/marks; "
        'm=$(head -1 /tmp/marks); echo "${m}exit 7${m}" >&198; sleep 60',
        timeout_s=0.5,
    )
    assert forged.timed_out
    assert_usable(confined_sandbox)


def test_devices_cannot_be_made(confined_sandbox: Sandbox) -> None:
    assert run(confined_sandbox, "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk").exit_code != 0
    assert run(confined_sandbox, "ls /dev/vda /dev/sda /dev/mem /dev/kmsg /dev/fuse").exit_code != 0


def test_kernel_settings_cannot_be_changed(confined_sandbox: Sandbox) -> None:
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper"):
        assert run(confined_sandbox, f"echo x >{path}").exit_code != 0, path
