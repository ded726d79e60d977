"""How the processes of a run are told to end: by Ctrl-C or SIGTERM, which raise wherever they are at that moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

TERMINATED = 128 + signal.SIGTERM
_RESEND_DELAY_S = 0.05


def exit_on_sigterm() -> None:
    """Let SIGTERM end this process by SystemExit, once; an agent that runs in it ends after what it is at."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(TERMINATED)

    def listen() -> None:
        signal.signal(signal.SIGTERM, end)

    listen()
    _resend_lost_signals(listen)


@contextmanager
def handle_sigterm() -> Iterator[None]:
    """The same for a while, in a process that is another's."""
    hook, before = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    exit_on_sigterm()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.unraisablehook = hook


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Hold interrupts back, also in the processes that begin meanwhile, until these leave them to their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _WorkerState:
    """Whether this worker is at a job, and whether it was told to end."""

    is_working = False
    is_terminating = False


def initialize_worker() -> None:
    """Leave interrupts to the parent, and end when it does, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _end_job)
    _resend_lost_signals(lambda: setattr(_WorkerState, "is_terminating", False))
    threading.Thread(target=_end_with_parent, daemon=True).start()


@contextmanager
def enter_job() -> Iterator[None]:
    """SIGTERM ends the worker's job meanwhile; none begins after it."""
    _WorkerState.is_working = True
    try:
        if _WorkerState.is_terminating:
            raise SystemExit(TERMINATED)
        yield
    finally:
        _WorkerState.is_working = False


def _end_job(number: int, frame: object) -> None:
    """End the job, once; the worker itself ends when its parent lets it, or the pool would be broken."""
    before, _WorkerState.is_terminating = _WorkerState.is_terminating, True
    if _WorkerState.is_working and not before:
        raise SystemExit(TERMINATED)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _resend_lost_signals(listen: Callable[[], None]) -> None:
    """Python drops what is raised in a finalizer: an interrupt or ending that falls into one comes again."""
    usual = sys.unraisablehook

    def resend(unraisable: UnraisableHookArgs) -> None:
        number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(unraisable.exc_type)
        if number is None:
            usual(unraisable)
            return
        if number == signal.SIGTERM:
            listen()
        main = threading.main_thread().ident or 0
        timer = threading.Timer(_RESEND_DELAY_S, signal.pthread_kill, (main, number))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = resend
