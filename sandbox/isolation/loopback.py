"""Listening sockets of the runtime: on this host's loopback, or inside a sandbox's network namespace.

A socket stays in the namespace in which it was made. So a helper enters the sandbox's network namespace, and only that,
binds there, and passes the socket out. Nothing of ours runs among the sandbox's processes or sees its files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.storage import host_programs

LOOPBACK = "127.0.0.1"
_TIMEOUT_S = 10.0
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
        ours.settimeout(_TIMEOUT_S)
        try:
            helper = subprocess.Popen(
                [
                    *(*entry_command, "nsenter", f"--net=/proc/self/fd/{namespace}"),
                    *(_find_interpreter(), "-I", "-S", "-c", _HELPER_PROGRAM, str(port)),
                ],
                env=host_programs.program_environment(),
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
                raise _make_entry_error(f"no answer within {_TIMEOUT_S:.0f} s") from error
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
    return shutil.which("python3", path=host_programs.search_path()) or sys.executable


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
