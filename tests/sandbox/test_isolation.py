"""What a command in an isolated machine cannot reach: the network, this host's files, our secrets, its limits."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.machine import Sandbox

from .conftest import kit_of, run, told

SECRET = f"secret-{secrets.token_hex(8)}"
MEMORY_MB = 256
PIDS = 60


@pytest.fixture(scope="module", params=["host", "docker"])
def isolated(request: pytest.FixtureRequest, repository: Path, testbed_image: Any) -> Iterator[Sandbox]:
    before = os.environ.get("OPENAI_API_KEY")
    os.environ["OPENAI_API_KEY"] = SECRET
    try:
        for kit in kit_of(request.param, repository, testbed_image):
            yield kit.start(memory_mb=MEMORY_MB, pids=PIDS)
    finally:
        del os.environ["OPENAI_API_KEY"]
        if before is not None:
            os.environ["OPENAI_API_KEY"] = before


def reaches(machine: Sandbox, address: str, family: str = "AF_INET") -> bool:
    """Whether a command inside can connect; it must at least be able to try."""
    code = (
        f"import socket; s = socket.socket(socket.{family}); s.settimeout(3); print(s.connect_ex({address}))"
    )
    return int(told(machine, f"python3 -c {code!r}")) == 0


def test_a_connection_can_be_made_within(isolated: Sandbox) -> None:
    code = (
        'import socket; l = socket.create_server(("127.0.0.1", 0)); '
        "print(socket.socket().connect_ex(l.getsockname()))"
    )
    assert told(isolated, f"python3 -c '{code}'") in ("0\n", "101\n")  # 101: not even loopback is up


def test_no_way_to_this_hosts_network(isolated: Sandbox) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=3):
            pass  # what follows would otherwise prove nothing
        own = socket.gethostbyname(socket.gethostname())
        for host in {"127.0.0.1", own, "172.17.0.1", "192.0.2.1", "1.1.1.1"}:
            assert not reaches(isolated, f"({host!r}, {port})"), host


def test_no_way_to_this_hosts_abstract_sockets(isolated: Sandbox) -> None:
    name = f"\0{SECRET}"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(name)
        listener.listen()
        client.connect(name)
        assert not reaches(isolated, f"chr(0) + '{SECRET}'", "AF_UNIX")


def test_only_loopback_is_there(isolated: Sandbox) -> None:
    assert told(isolated, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo\n"


def test_this_hosts_files_are_not_there(isolated: Sandbox, tmp_path: Path) -> None:
    places = {Path(tempfile.gettempdir()), Path.home(), Path("/var/tmp"), tmp_path}
    for place in places:
        path = place / SECRET
        path.write_text(SECRET)
        try:
            result = run(isolated, f"cat {path} /proc/1/root{path}")
        finally:
            path.unlink()
        assert result.exit_code == 1
        assert "No such file" in result.output or "Permission denied" in result.output
        assert SECRET not in result.output.replace(str(path), "")
    assert run(isolated, "ls /var/run/docker.sock /run/docker.sock /etc/shadow").exit_code != 0


def test_another_machines_files_are_not_there(isolated: Sandbox) -> None:
    rooms = Path(tempfile.mkdtemp(prefix="takeover-other-"))
    try:
        assert run(isolated, f"ls {rooms}").exit_code == 2
    finally:
        rooms.rmdir()
    assert told(isolated, "find / -xdev -name 'takeover-*' 2>/dev/null | head || :") == ""


def test_nothing_outside_the_agents_own_can_be_written(isolated: Sandbox) -> None:
    if isolated.workspace == "/testbed" and run(isolated, "test -e /.dockerenv").exit_code == 0:
        pytest.skip("a container's system files are its own")
    for path in ("/usr/x", "/etc/x", "/x", "/bin/x", "/home/x"):
        assert run(isolated, f"echo > {path}").exit_code != 0, path
    assert (
        told(isolated, "echo ok > $HOME/x; echo ok > /tmp/x; echo ok > x; cat $HOME/x /tmp/x x") == "ok\n" * 3
    )


def test_the_environment_is_built_from_nothing(isolated: Sandbox) -> None:
    assert os.environ["OPENAI_API_KEY"] == SECRET
    seen = told(isolated, "env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' || :")
    assert "HOME=" in seen
    assert SECRET not in seen
    ours = {name for name in os.environ if name.startswith(("OPENAI", "PYTEST", "VIRTUAL_ENV", "DOCKER"))}
    assert not [name for name in ours if f"{name}=" in seen]
    assert SECRET not in isolated.inspect("env").output


def test_no_new_privileges(isolated: Sandbox) -> None:
    status = dict(line.split(":\t", 1) for line in told(isolated, "cat /proc/self/status").splitlines())
    assert status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) & (1 << 21) == 0, "CAP_SYS_ADMIN"
    assert run(isolated, "mount -t tmpfs x /tmp || unshare -m true").exit_code != 0
    if run(isolated, "test -e /.dockerenv").exit_code != 0:
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


def test_the_number_of_processes_is_limited(isolated: Sandbox) -> None:
    isolated.write_file("/tmp/forks.py", _FORKS.encode())
    reason, number = told(isolated, "python3 /tmp/forks.py").splitlines()
    assert reason == "Resource temporarily unavailable"
    assert PIDS // 2 < int(number) < PIDS
    assert told(isolated, "ls pkg | head -1; echo usable") == "__init__.py\nusable\n"
    assert isolated.read_file("/tmp/forks.py") == _FORKS.encode()


def test_a_machine_full_of_processes_stays_in_hand(isolated: Sandbox) -> None:
    command = "python3 -c 'import os\nwhile 1:\n try: os.fork()\n except OSError: pass'"
    result = run(isolated, command, timeout_s=1)
    assert result.timed_out
    assert told(isolated, "ls pkg | head -1") == "__init__.py\n"
    assert int(told(isolated, "ls -d /proc/[0-9]* | wc -l")) < 12


def test_memory_is_limited(isolated: Sandbox) -> None:
    allocate = "python3 -c 'print(len(bytearray({mb} << 20)))'"
    assert told(isolated, allocate.format(mb=MEMORY_MB // 4)) == f"{(MEMORY_MB // 4) << 20}\n"
    result = run(isolated, allocate.format(mb=MEMORY_MB * 4))
    assert result.exit_code in (1, 137)
    assert not result.shell_ended
    assert told(isolated, "echo usable") == "usable\n"


def test_two_machines_do_not_share_a_limit(repository: Path, testbed_image: Any) -> None:
    for kit in kit_of("host", repository, testbed_image):
        one, two = kit.start(pids=PIDS), kit.start(pids=PIDS)
        told(one, f"for i in $(seq {PIDS - 20}); do sleep 60 & done")
        told(two, f"for i in $(seq {PIDS - 20}); do sleep 60 & done; ls")
