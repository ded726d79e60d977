"""The namespaces of a sandbox: its processes, stopped by signals, and sockets in its network."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from langgraph_takeover.sandbox import ownership
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.isolation.freezer import run_to_completion

_TIMEOUT_S = 10.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.0005, 0.02
_NSENTER_STOP_S = 1.0
_MAX_FILE_BYTES = 1 << 16
_WAITS_FOR_CHILD = "vfork"
_STOPPED_STATES = frozenset("ZXTt") | {_WAITS_FOR_CHILD}
# `clone`, `vfork`, `clone3`: a parent waits there for the child that borrows its memory, and touches no file.
_CLONE_SYSCALLS = {"x86_64": {"56", "58", "435"}, "aarch64": {"220", "435"}}.get(platform.machine(), {"435"})
# Starts no program, so that the last process id of the namespace changes only when others start one.
_HELPER_SCRIPT = (
    'while read -r line; do eval "$line"; read -r _ _ _ _ last </proc/loadavg; echo "$$ $last"; done'
)

# `nsenter` stops with its child. Resumed here, it continues even if the runtime is killed meanwhile, or its
# namespace would wait for it forever.
_RESUME_NSENTER_SCRIPT = '"$@"; kill -s CONT $0 2>/dev/null'


class _Thread(NamedTuple):
    state: str
    context_switches: tuple[str, ...]
    """Number of context switches: if unchanged, the process has not run since."""


_ThreadsById = dict[tuple[int, int], _Thread]
"""By process and thread id inside."""


@contextlib.contextmanager
def stop_all(
    first_pid: int, entry_command: Sequence[str], nsenter_pids: Sequence[int] = ()
) -> Iterator[None]:
    """Stop every process of the namespace except its first, nested namespaces included, verified.

    `nsenter_pids` are the `nsenter` processes on this host whose children are inside: each stops with its child.
    Afterwards all resume except those that the agent had stopped before.
    Raises SandboxUnavailableError if they do not stop within 10 s.
    """
    with _NamespaceHelper(first_pid, entry_command, nsenter_pids) as inside:
        stopped_before = {pid for (pid, _), thread in inside.list_threads().items() if thread.state == "T"}
        try:
            inside.stop()
            yield
        finally:
            run_to_completion(lambda: _resume(inside, stopped_before, nsenter_pids))


class _NamespaceHelper:
    """A helper process in the namespace, and a view of the namespace's own procfs."""

    def __init__(
        self, first_pid: int, entry_command: Sequence[str], nsenter_pids: Sequence[int] = ()
    ) -> None:
        try:
            self._proc = os.open(f"/proc/{first_pid}/root/proc", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise SandboxUnavailableError(
                f"the sandbox's processes cannot be listed: {error.strerror}"
            ) from error
        try:
            self._helper = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    _RESUME_NSENTER_SCRIPT,
                    " ".join(map(str, nsenter_pids)),
                    *entry_command,
                    "sh",
                    "-c",
                    _HELPER_SCRIPT,
                ],
                env=ownership.program_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._proc)
            raise SandboxUnavailableError(
                f"the sandbox's processes cannot be stopped: {error.strerror}"
            ) from error
        self._pid = 0

    def __enter__(self) -> _NamespaceHelper:
        try:
            self.run(":")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._proc)
        with contextlib.suppress(OSError):
            self._helper.communicate()

    def run(self, line: str) -> int:
        """Run builtin commands of the shell inside; the last process id that the namespace gave out then."""
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._helper.stdin.write(f"{line}\n".encode())
            self._helper.stdin.flush()
        answer = self._helper.stdout.readline().split()
        if len(answer) != 2:
            raise SandboxUnavailableError("no process can be started in the sandbox's namespaces")
        self._pid = int(answer[0])
        return int(answer[1])

    def stop(self) -> None:
        """Send SIGSTOP to all until they stop. Raises SandboxUnavailableError after 10 s."""
        deadline, pause = time.monotonic() + _TIMEOUT_S, _MIN_PAUSE_S
        while not self._is_still(self.run("kill -s STOP -- -1 2>/dev/null")):
            if time.monotonic() > deadline:
                raise SandboxUnavailableError(
                    f"the sandbox's processes withstood SIGSTOP for {_TIMEOUT_S:.0f} s, so its files are not read"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _MAX_PAUSE_S)

    def _is_still(self, last_pid: int) -> bool:
        """Whether no process executed anything between two looks, and none was made.

        A thread that was stopped in both looks, and was never scheduled between them, was stopped when the first
        look ended; if that holds for all, none is left that could resume another.
        """
        first = self.list_threads()
        if any(thread.state not in _STOPPED_STATES for thread in first.values()):
            return False
        return self.list_threads() == first and self.run(":") == last_pid

    def list_threads(self) -> _ThreadsById:
        """Every thread inside but those of the first process and of the helper."""
        found: _ThreadsById = {}
        with os.scandir(self._proc) as entries:
            pids = {int(entry.name) for entry in entries if entry.name.isdigit()}
        for pid in pids - {1, self._pid}:
            found |= self._read_threads(pid)
        return found

    def _read_threads(self, pid: int) -> _ThreadsById:
        found: _ThreadsById = {}
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
            try:
                with os.scandir(tasks) as entries:
                    names = [entry.name for entry in entries]
                for name in names:
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                        found[pid, int(name)] = _read_thread(name, tasks)
            finally:
                os.close(tasks)
        return found


def _read_thread(name: str, tasks: int) -> _Thread:
    lines = _read(f"{name}/status", tasks).splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    state = fields["State"][0]
    if state == "D":
        with contextlib.suppress(OSError):
            if _read(f"{name}/syscall", tasks).partition(" ")[0] in _CLONE_SYSCALLS:
                state = _WAITS_FOR_CHILD
    return _Thread(state, (fields["voluntary_ctxt_switches"], fields["nonvoluntary_ctxt_switches"]))


def _read(path: str, directory: int) -> str:
    descriptor = os.open(path, os.O_RDONLY, dir_fd=directory)
    try:
        return os.read(descriptor, _MAX_FILE_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)


def _resume(helper: _NamespaceHelper, stopped_before: set[int], nsenter_pids: Sequence[int]) -> None:
    """Resume all but those that were stopped before."""
    # `nsenter` stops itself some time after its child; resumed earlier, it would stay stopped forever.
    deadline = time.monotonic() + _NSENTER_STOP_S
    while any(_is_running(pid) for pid in nsenter_pids) and time.monotonic() < deadline:
        time.sleep(_MIN_PAUSE_S)
    # Children first: a parent that looks then finds none stopped.
    stopped = sorted({pid for pid, _ in helper.list_threads()} - stopped_before, reverse=True)
    if stopped:
        helper.run(f"kill -s CONT {' '.join(map(str, stopped))} 2>/dev/null")


def _is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in _STOPPED_STATES
    return False


LOOPBACK = "127.0.0.1"
_ANSWER_TIMEOUT_S = 10.0
_BACKLOG = 128
_MAX_PORT = 65_535
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 0x1
_DESCRIPTOR = struct.Struct("i")
_INTERFACE_REQUEST = struct.Struct("16sH22x")
# Passes out the socket, or the error's number.
_HELPER_PROGRAM = f"""
import socket, sys
runtime = socket.socket(fileno=0)
listener = socket.socket()
try:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(({LOOPBACK!r}, int(sys.argv[1])))
    listener.listen({_BACKLOG})
except OSError as error:
    runtime.send(b"%d" % error.errno)
else:
    socket.send_fds(runtime, [b"0"], [listener.fileno()])
"""


def listen(port: int) -> socket.socket:
    """Listen on this host's loopback. Raises ValueError, and SandboxUnavailableError if the port is taken."""
    _check_port(port)
    listener = socket.socket()
    try:
        # Connections that have just ended do not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _make_bind_error(port, error.errno or 0, "on this host") from error
    return listener


def listen_inside(process: psutil.Process, port: int, *, entry_command: Sequence[str] = ()) -> socket.socket:
    """Listen on the loopback of a process's network namespace.

    `entry_command` is the start of a command line that runs the rest with power over that namespace. Raises ValueError,
    and SandboxUnavailableError if the port is taken inside or the namespace cannot be entered.
    """
    _check_port(port)
    with _open_network_namespace(process) as namespace:
        listener = _receive_listener(namespace, port, entry_command)
    if not _is_loopback_up(listener):
        listener.close()
        raise SandboxUnavailableError(
            "the sandbox's loopback interface is down, so nothing inside could connect (restore the sandbox)"
        )
    return listener


@contextlib.contextmanager
def _open_network_namespace(process: psutil.Process) -> Iterator[int]:
    """Open the namespace, so that no later process with the same id takes its place."""
    try:
        namespace = os.open(f"/proc/{process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _make_entry_error(error.strerror or "") from error
    try:
        if not process.is_running():
            raise _make_entry_error("its process has ended")
        if os.path.samestat(os.fstat(namespace), Path("/proc/self/ns/net").stat()):
            raise _make_entry_error("it is this host's own")
        yield namespace
    finally:
        os.close(namespace)


def _receive_listener(namespace: int, port: int, entry_command: Sequence[str]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(_ANSWER_TIMEOUT_S)
        try:
            helper = subprocess.Popen(
                [
                    *(*entry_command, "nsenter", f"--net=/proc/self/fd/{namespace}"),
                    *(_find_interpreter(), "-I", "-S", "-c", _HELPER_PROGRAM, str(port)),
                ],
                env=ownership.program_environment(),
                cwd="/",
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(namespace,),
                start_new_session=True,
            )
        except OSError as error:
            raise _make_entry_error(f"{error.filename}: {error.strerror}") from error
        theirs.close()
        with helper:
            try:
                # `socket.recv_fds` ignores the flag.
                outcome, passed, _, _ = ours.recvmsg(
                    16, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
                )
            except OSError as error:
                helper.kill()
                raise _make_entry_error(f"no answer within {_ANSWER_TIMEOUT_S:.0f} s") from error
            _, message = helper.communicate()
    if passed:
        return socket.socket(fileno=_DESCRIPTOR.unpack(passed[0][2])[0])
    if outcome:
        raise _make_bind_error(port, int(outcome), "inside the sandbox")
    raise _make_entry_error(message.decode(errors="replace").strip()[-200:])


def _find_interpreter() -> str:
    """Return this process's interpreter, or this host's if a process with fewer privileges could not start the first."""
    if os.access(sys.executable, os.X_OK):
        return sys.executable
    return shutil.which("python3", path=ownership.search_path()) or sys.executable


def _check_port(port: int) -> None:
    if not 0 < port <= _MAX_PORT:
        raise ValueError(f"not a port: {port} (pass 1 to {_MAX_PORT:,})")


def _make_bind_error(port: int, number: int, where: str) -> SandboxUnavailableError:
    reason = "a program holds it" if number == errno.EADDRINUSE else os.strerror(number)
    return SandboxUnavailableError(
        f"port {port} is not available {where}: {reason} (choose another port, or end the program that holds it)"
    )


def _make_entry_error(reason: str) -> SandboxUnavailableError:
    return SandboxUnavailableError(
        f"the sandbox's network namespace cannot be entered: {reason} (start or restore the sandbox again)"
    )


def _is_loopback_up(listener: socket.socket) -> bool:
    """Whether the loopback of the socket's own namespace is up; a socket can be bound to it all the same."""
    request = _INTERFACE_REQUEST.pack(b"lo", 0)
    _, flags = _INTERFACE_REQUEST.unpack(fcntl.ioctl(listener, _SIOCGIFFLAGS, request))
    return bool(flags & _IFF_UP)
