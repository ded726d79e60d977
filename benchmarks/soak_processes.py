"""Processes of a soak: commands of ours, and what these leave running, which the soak's own process is given."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 15.0


def command(module: str, *arguments: str) -> subprocess.Popen[str]:
    """A command of ours, in a process that an interrupt of this one does not reach."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def adopt_orphans() -> None:
    """Become the parent of whatever the dead leave running, so that nothing of it can hide."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("this kernel hands no orphans over: prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def left_running(before: set[psutil.Process]) -> tuple[str, ...]:
    """What runs that was not there before, a line each, if it does not end by itself; it is ended then."""
    deadline = time.monotonic() + _PATIENCE_S
    while found := [each for each in descendants() - before if not _reaped(each)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    wrong = []
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            wrong.append(f"left running: {' '.join(process.cmdline())[:200]}")
            process.kill()
    return tuple(wrong)


def _reaped(process: psutil.Process) -> bool:
    """Whether it has ended; one that was given to this process is taken off the list of processes."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return False
    except psutil.NoSuchProcess:
        return True
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return True
