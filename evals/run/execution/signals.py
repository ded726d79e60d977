"""Ctrl-C and SIGTERM in the processes of a run. Both raise at the current instruction."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from langgraph_takeover.graph.runs.stop_requests import TERMINATED, resend_lost_signals


def exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit in this process, once. A running agent completes its current action."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(TERMINATED)

    def listen() -> None:
        signal.signal(signal.SIGTERM, end)

    listen()
    resend_lost_signals(listen)


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """The same as a context manager, for a process that we do not own."""
    hook, before = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    exit_on_sigterm()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = hook


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Block interrupts, also in processes started meanwhile, until they leave them to their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _WorkerState:
    """Whether this worker runs a job, and whether it received SIGTERM."""

    is_working = False
    is_terminating = False


def initialize_worker() -> None:
    """Leave interrupts to the parent, and end with the parent, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _end_job)
    resend_lost_signals(lambda: setattr(_WorkerState, "is_terminating", False))
    threading.Thread(target=_end_with_parent, daemon=True).start()


@contextmanager
def enter_job() -> Iterator[None]:
    """Let SIGTERM end the worker's job meanwhile. No job starts after it."""
    _WorkerState.is_working = True
    try:
        if _WorkerState.is_terminating:
            raise SystemExit(TERMINATED)
        yield
    finally:
        _WorkerState.is_working = False


def _end_job(number: int, frame: object) -> None:
    """End the job, once. The worker stays until its parent ends it, because the pool would break otherwise."""
    before, _WorkerState.is_terminating = _WorkerState.is_terminating, True
    if _WorkerState.is_working and not before:
        raise SystemExit(TERMINATED)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
