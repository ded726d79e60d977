"""The system call filter: forbidden and allowed calls, tried by real calls in a real bubblewrap."""

from __future__ import annotations

import errno
import functools
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.sandbox.backends import host
from langgraph_takeover.sandbox.isolation import seccomp

from ...conftest import skip_missing

# Not the virtual environment, which may be hidden by the sandbox's own /tmp.
PYTHON = str(Path(sys.base_prefix, "bin", "python3"))
NEW_USER = 0x1000_0000
NO_RANDOMIZE = 0x0004_0000
ASK = 0xFFFF_FFFF
HARMLESS = (0, 0x0008, 0x2_0000, 0x2_0008)
# A call is [number, argument, …]; the answer is 0 or the error's number.
_CALLS = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def tell(number, *arguments):
    ctypes.set_errno(0)
    failed = libc.syscall(*(ctypes.c_long(n) for n in (number, *arguments))) == -1
    return ctypes.get_errno() if failed else 0
print(json.dumps([tell(*call) for call in json.loads(sys.argv[1])]))
"""
# The 32-bit way into the kernel: push rbx; mov eax, edi; mov ebx, esi; int 0x80; pop rbx; ret.
_CALLS_32 = """
import ctypes, json, mmap, sys
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex("5389f889f3cd805bc3"))
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
enter = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(address)
print(json.dumps([max(0, -enter(*call)) for call in json.loads(sys.argv[1])]))
"""


@functools.cache
def resolve(name: str) -> int:
    import pyseccomp

    return int(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name))


@pytest.fixture(autouse=True)
def _require_seccomp() -> None:
    for reason in (host.unavailable_reason(), seccomp.unavailable_reason()):
        if reason:
            skip_missing(reason)


def bubble(*command: str, filtered: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command as an unprivileged user: in its own user namespace, without capabilities."""
    argv = ["bwrap", "--unshare-user", "--unshare-net", "--cap-drop", "ALL", "--die-with-parent"]
    argv += ["--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"]
    file = seccomp.open_filter_file()
    assert file is not None
    with open(file) as program:  # noqa: PTH123
        filter_options = ["--seccomp", str(program.fileno())] if filtered else []
        return subprocess.run(
            [*argv, *filter_options, *command],
            pass_fds=[program.fileno()],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


def python(code: str, *arguments: str, filtered: bool = True) -> subprocess.CompletedProcess[str]:
    return bubble(PYTHON, "-c", code, *arguments, filtered=filtered)


def answers(calls: Sequence[Sequence[int]], *, code: str = _CALLS, filtered: bool = True) -> list[int]:
    done = python(code, json.dumps(calls), filtered=filtered)
    assert done.returncode == 0, done
    codes: list[int] = json.loads(done.stdout)
    return codes


def test_every_call_on_the_list_is_refused() -> None:
    names = [name for name in seccomp._DENIED_SYSCALLS.split() if resolve(name) >= 0]
    assert {"mount", "move_mount", "unshare", "setns", "bpf", "keyctl", "io_uring_setup"} <= set(names)
    codes = answers([[resolve(name), -1, -1, -1, -1, -1] for name in names])
    assert dict(zip(names, codes, strict=True)) == dict.fromkeys(names, errno.EPERM)


def list_forbidden_calls() -> dict[str, list[int]]:
    """Calls that every user may make on a plain kernel, each with harmless arguments."""
    return {
        "a user namespace": [resolve("unshare"), NEW_USER],
        "io_uring": [resolve("io_uring_setup"), 1, 0],
        "userfaultfd": [resolve("userfaultfd"), 1 << 0 | 1 << 11],
        "a keyring": [resolve("keyctl"), 0, -3, 1],
        "a personality": [resolve("personality"), NO_RANDOMIZE],
        "a crypto socket": [resolve("socket"), 38, 5, 0],
        "the upper half of an argument": [resolve("socket"), 1 << 32 | 38, 5, 0],
    }


def test_only_the_filter_refuses() -> None:
    calls = list_forbidden_calls()
    codes = answers(list(calls.values()))
    assert dict(zip(calls, codes, strict=True)) == dict.fromkeys(calls, errno.EPERM)
    without = dict(zip(calls, answers(list(calls.values()), filtered=False), strict=True))
    # A kernel built without one of these does not know it, which is no refusal.
    assert [name for name, codes in without.items() if codes == errno.EPERM] == []


def test_no_namespace_by_clone() -> None:
    flags = [flag | 17 for flag in seccomp._NAMESPACES.values()]
    assert answers([[resolve("clone"), flag, 0, 0, 0, 0] for flag in flags]) == [errno.EPERM] * len(flags)
    assert answers([[resolve("clone3"), 0, 0]]) == [errno.ENOSYS]


def test_only_everyday_socket_families() -> None:
    vsock, packet, crypto = ([resolve(call), family, 3, 0] for call, family in
                             (("socket", 40), ("socket", 17), ("socketpair", 38)))  # fmt: skip
    assert answers([vsock, packet, crypto]) == [errno.EPERM] * 3
    everyday = [[resolve("socket"), family, kind, 0] for family, kind in ((1, 1), (2, 1), (10, 2), (16, 3))]
    assert answers(everyday) == [0, 0, 0, 0]


def test_input_cannot_be_injected_into_a_terminal() -> None:
    code = """
import fcntl, os, pty, termios
leader, follower = pty.openpty()
for request in (termios.TIOCSTI, termios.TIOCLINUX, termios.TIOCSTI | 1 << 31 << 1):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.ioctl(follower, ctypes.c_ulong(request), b"x")
    print(failed, ctypes.get_errno(), end=" ")
print(len(fcntl.ioctl(follower, termios.TIOCGWINSZ, bytes(8))))
"""
    done = python(code)
    assert (done.stdout, done.stderr) == ("-1 1 -1 1 -1 1 8\n", "")


def test_only_harmless_personalities() -> None:
    number = resolve("personality")
    assert answers([[number, ASK], *([number, value] for value in HARMLESS), [number, 0]]) == [0] * 6
    others = (NO_RANDOMIZE, 0x0010_0000, 0x0040_0000, 1, 1 << 31, ASK ^ NO_RANDOMIZE, ASK ^ 1)
    assert answers([[number, value] for value in others]) == [errno.EPERM] * len(others)


def test_calls_newer_than_the_list_are_unknown() -> None:
    newer = range(seccomp._FIRST_UNKNOWN_SYSCALL, seccomp._FIRST_UNKNOWN_SYSCALL + 40)
    assert set(answers([[number, -1, -1, -1] for number in newer])) == {errno.ENOSYS}


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="only x86-64 has the x32 and the 32-bit way into the kernel"
)
def test_another_architecture_does_not_bypass_the_filter() -> None:
    x32 = 0x4000_0000
    assert answers([[x32 | resolve("mount"), -1], [x32 | resolve("getpid")]]) == [errno.ENOSYS] * 2
    get_pid, mount, stime, set_host_name, socket_call, unshare = 20, 21, 25, 74, 102, 310
    plain = python(_CALLS_32, json.dumps([[get_pid, 0]]), filtered=False)
    if plain.returncode != 0:
        skip_missing("this kernel runs no 32-bit programs, so that their way in cannot be tried")
    refused = [[number, -1] for number in (mount, stime, set_host_name, unshare)] + [[socket_call, 1]]
    assert answers([[get_pid, 0], *refused], code=_CALLS_32) == [0] + [errno.EPERM] * 5


ORDINARY = {
    "git": "git init -q r && cd r && echo x >f && git add -A && git -c user.name=t -c user.email=t@x commit -qm m"
    " && git log --oneline | wc -l | grep -qx 1",
    "pipes": "seq 100000 | sort -n | tail -1 | grep -qx 100000",
    "a temporary file": 'f=$(mktemp) && echo x >"$f" && rm "$f"',
    "archives": "mkdir d && echo x >d/f && tar -czf d.tgz d && tar -xzf d.tgz -C /tmp",
    "time-outs": "timeout 5 true && ! timeout 0.1 sleep 5",
    "job control": "sleep 30 & kill %1; wait; nice -n 5 true",
    "limits": "ulimit -n 64 && ulimit -c 0 && bash -c true",
    "a clock": "date >/dev/null && sleep 0.01",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_commands_work(name: str) -> None:
    done = bubble("bash", "-c", ORDINARY[name])
    assert done.returncode == 0, done


_PROGRAM = """
import asyncio, concurrent.futures, mmap, multiprocessing, os, select, signal, socket, sqlite3, subprocess
import sys, tempfile, threading
def square(n): return n * n
def main():
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\\n"
    assert os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]) == 0
    seen = []
    threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert len(seen) == 8
    assert sum(concurrent.futures.ThreadPoolExecutor(2).map(square, range(4))) == 14
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(square, range(4)) == [0, 1, 4, 9]
    one, two = socket.socketpair(); one.send(b"x"); assert two.recv(1) == b"x"
    poll = select.epoll(); poll.register(two); poll.close()
    async def hello():
        process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0]
    assert asyncio.run(hello()) == b"hi\\n"
    with tempfile.TemporaryDirectory() as place:
        base = sqlite3.connect(place + "/x"); base.execute("pragma journal_mode=wal")
        base.execute("create table t(a)"); base.commit(); base.close()
    assert len(mmap.mmap(-1, 4096)) == 4096
    os.sched_setaffinity(0, os.sched_getaffinity(0)); os.setpriority(os.PRIO_PROCESS, 0, 19)
    signal.setitimer(signal.ITIMER_REAL, 0); os.memfd_create("x"); os.mkfifo("/tmp/p"); os.getrandom(8)
    print("fine")
if __name__ == "__main__": main()
"""


def test_ordinary_python_works() -> None:
    done = bubble("bash", "-c", f"cat >/tmp/p.py <<'EOF'\n{_PROGRAM}EOF\nexec {PYTHON} /tmp/p.py")
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_a_debugger_may_trace_its_child() -> None:
    trace_me = [resolve("ptrace"), 0, 0, 0, 0]
    assert answers([trace_me]) == [0]


def test_every_caller_gets_its_own_file() -> None:
    read: list[bytes] = []
    for _ in range(2):
        file = seccomp.open_filter_file()
        assert file is not None
        with open(file, "rb") as program:  # noqa: PTH123
            read.append(program.read())
    assert read[0] == read[1]
    assert len(read[0]) > 1000
    assert len(read[0]) % 8 == 0


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ImportError("no module"), "pyseccomp is not installed"),
        (RuntimeError("Unable to find libseccomp"), "libseccomp is not installed"),
        (OSError(errno.EINVAL, "Invalid argument"), "Invalid argument"),
    ],
)
def test_reports_why_the_filter_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, failure: Any, expected: str
) -> None:
    def fails() -> bytes:
        raise failure

    monkeypatch.setattr(seccomp, "_compile_filter", fails)
    seccomp.unavailable_reason.cache_clear()
    try:
        assert expected in (seccomp.unavailable_reason() or "")
        assert seccomp.open_filter_file() is None
    finally:
        seccomp.unavailable_reason.cache_clear()


_PROBES = """
import ctypes, json, os, select, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def probe(call):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for stream in (0, 1, 2):
            os.close(stream)
        failed = libc.syscall(*(ctypes.c_long(n) for n in call)) == -1
        os.write(writer, str(ctypes.get_errno() if failed else 0).encode())
        os._exit(0)
    os.close(writer)
    told = os.read(reader, 9) if select.select([reader], [], [], 0.3)[0] else b""
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)
    os.close(reader)
    return int(told or -1)
print(json.dumps([probe(call) for call in json.loads(sys.argv[1])]))
"""
FAMILIES = range(46)


def in_container(
    image: str, calls: Sequence[Sequence[int]], code: str = _PROBES, **options: Any
) -> list[int]:
    """The answers of calls in a container with a sandbox's configuration and these additional options."""
    from langgraph_takeover.sandbox.docker_client import client, make_host_config
    from langgraph_takeover.sandbox.interface import SandboxSpec

    api = client().api
    config = make_host_config(SandboxSpec(backend="docker", image=image)) | options
    config["AutoRemove"] = False  # its output is read at its end
    container = api.create_container(image, ["python3", "-c", code, json.dumps(calls)], host_config=config)
    try:
        api.start(container)
        ended = api.wait(container, timeout=100)
        logs = api.logs(container)
        assert ended["StatusCode"] == 0, logs
        found: list[int] = json.loads(logs)
        return found
    finally:
        api.remove_container(container, force=True)


def test_a_container_has_only_everyday_socket_families(base_image: str) -> None:
    calls = [[resolve("socket"), family, kind, 0] for family in FAMILIES for kind in (1, 2, 3)]
    calls += [[resolve("socketpair"), family, 1, 0, 0] for family in FAMILIES]
    calls += [[resolve("socket"), 1 << 32 | family, 1, 0] for family in (38, 40)]
    found = list(zip(calls, in_container(base_image, calls), strict=True))
    refused = {call[1] & 0xFFFF_FFFF for call, code in found if code == errno.EPERM}
    assert refused >= set(FAMILIES) - set(seccomp._ALLOWED_SOCKET_FAMILIES)
    opened = {(call[1], call[2]) for call, code in found if code == 0}
    assert {(1, 1), (2, 1), (2, 2), (10, 1)} <= opened
    assert {family for family, _ in opened} <= set(seccomp._ALLOWED_SOCKET_FAMILIES)


def test_a_graders_container_has_the_same_filter(base_image: str) -> None:
    from langgraph_takeover.sandbox.docker_client import OwnedClient, client

    for network in (False, True):
        owned = OwnedClient("test-seccomp", network=network)
        container = owned.containers.create(
            image=base_image, command=["true"], security_opt=["seccomp=unconfined", "no-new-privileges"]
        )
        try:
            found = client().api.inspect_container(container.id)["HostConfig"]["SecurityOpt"]
        finally:
            container.remove(force=True)
        assert found == ["no-new-privileges", f"seccomp={seccomp.docker_profile()}"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the 32-bit way into the kernel is x86-64's")
def test_another_architecture_does_not_bypass_a_containers_filter(base_image: str) -> None:
    get_pid, socket_call, socket = 20, 102, 359
    calls = [[get_pid, 0], [socket_call, 1], [socket, 40], [socket, 38]]
    try:
        codes = in_container(base_image, calls, _CALLS_32)
    except AssertionError:
        skip_missing("this kernel runs no 32-bit programs, so that their way in cannot be tried")
    assert codes == [0, errno.ENOSYS, errno.EPERM, errno.EPERM]


@pytest.mark.slow
def test_a_container_is_as_restricted_as_by_the_daemons_own_filter(base_image: str) -> None:
    """All system calls, with the arguments that the daemon's filter checks."""
    # Calls with the abilities of `ptrace`, memory keys, and calls that only newer daemons know.
    harmless = "process_vm_readv process_vm_writev pkey_alloc pkey_free pkey_mprotect cachestat fchmodat2 "
    harmless += "futex_wake futex_wait futex_requeue map_shadow_stack"
    passed_over = {resolve("personality"), *map(resolve, harmless.split())}
    numbers = [number for number in range(seccomp._FIRST_UNKNOWN_SYSCALL + 20) if number not in passed_over]
    calls = [[number, *[-1] * 6] for number in numbers]
    calls += [[resolve("personality"), value] for value in (*HARMLESS, NO_RANDOMIZE, ASK, 1)]
    calls += [[resolve("clone"), flag | 17, 0, 0, 0, 0] for flag in seccomp._NAMESPACES.values()]
    calls += [[resolve("socket"), family, kind, 0] for family in FAMILIES for kind in (1, 2, 3)]
    ours = in_container(base_image, calls)
    theirs = in_container(base_image, calls, SecurityOpt=["no-new-privileges"])
    refusals = (errno.EPERM, errno.ENOSYS)
    weaker = [call for call, our, their in zip(calls, ours, theirs, strict=True)
              if their in refusals and our not in refusals]  # fmt: skip
    assert weaker == []


def test_ordinary_python_works_in_a_container(base_image: str) -> None:
    program = f"__file__ = '/tmp/p.py'\nopen(__file__, 'w').write({_PROGRAM!r})\n"
    program += "import subprocess, sys\n"
    program += "told = subprocess.run([sys.executable, __file__], capture_output=True, text=True)\n"
    program += "assert told.stdout == 'fine\\n', told\nprint('[]')"
    assert in_container(base_image, [], program) == []
