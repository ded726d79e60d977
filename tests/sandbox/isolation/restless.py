"""Programs that are hard to stop, as `python restless.py KIND FILE`; each appends to FILE whenever it runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import NoReturn

_ATTACH, _CONT = 16, 7
_LIBC = ctypes.CDLL(None, use_errno=True)


def beat(kind: str) -> None:
    os.write(_FILE, kind[0].encode())


def spin(kind: str) -> NoReturn:
    while True:
        beat(kind)
        time.sleep(0.0005)


def fork(kind: str) -> NoReturn:
    """Each process forks the next and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        with contextlib.suppress(BlockingIOError):  # dead processes count until they are waited for
            if os.fork():
                os._exit(0)
        beat(kind)


def bomb(kind: str) -> NoReturn:
    """Every process forks until no more can be forked."""
    while True:
        with contextlib.suppress(OSError):
            os.fork()
        beat(kind)
        time.sleep(0.002)


def threads(kind: str) -> NoReturn:
    for _ in range(8):
        threading.Thread(target=spin, args=(kind,)).start()
    spin(kind)


def vfork(kind: str) -> NoReturn:
    """The child borrows the memory of its parent, which meanwhile waits in the kernel."""
    _LIBC.vfork()
    spin(kind)


def trace(kind: str) -> NoReturn:
    """The tracer passes every signal but SIGSTOP on to its child."""
    child = os.fork()
    if child == 0:
        spin(kind)
    _LIBC.ptrace(_ATTACH, child, None, None)
    while True:
        _, status = os.waitpid(child, 0x40000000)
        if os.WIFSTOPPED(status):
            passed = os.WSTOPSIG(status)
            _LIBC.ptrace(_CONT, child, None, 0 if passed == signal.SIGSTOP else passed)
        beat(kind)


def handle(kind: str) -> NoReturn:
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGTSTP):
        signal.signal(number, lambda *_: beat(kind))
    spin(kind)


def resume(kind: str) -> NoReturn:
    """Two processes resume each other, and all others."""
    child = os.fork()
    other = child or os.getppid()
    while True:
        os.kill(other, signal.SIGCONT)
        beat(kind)


def resume_all(kind: str) -> NoReturn:
    for _ in range(5):
        os.fork()
    while True:
        os.kill(-1, signal.SIGCONT)
        beat(kind)


def many(kind: str) -> NoReturn:
    for _ in range(500):
        if os.fork() == 0:
            while True:
                time.sleep(0.2)
                beat(kind)
    spin(kind)


if __name__ == "__main__":
    _FILE = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    globals()[sys.argv[1]](sys.argv[1])
