"""Ctrl-C and SIGTERM in the processes of a run. Both raise at the current instruction."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from langgraph_takeover.sandbox.storage.observers import ObserverErrors

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

TERMINATED = 128 + signal.SIGTERM
WAITING = "waiting for the call in flight; again to end now"
_MAX_SIGNALS = 2
_RESEND_DELAY_S = 0.05


def exit_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit in this process, once. A running agent completes its current action."""

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(TERMINATED)

    def listen() -> None:
        signal.signal(signal.SIGTERM, end)

    listen()
    _resend_lost_signals(listen)


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


def announce_wait(line: str = WAITING) -> None:
    """Print a line; a closed terminal must not cost the reply in flight."""
    with ObserverErrors("standard error"):
        print(line, file=sys.stderr, flush=True)


class _CommandHandler:
    """Ends a command on its first signal: at once, or after the calls in flight; on the second always at once."""

    _raised = 0

    def announce(self, number: int) -> None:
        """Say that the call in flight is awaited."""
        announce_wait(f"\n{WAITING}" if number == signal.SIGINT else WAITING)

    def __call__(self, number: int, frame: object) -> None:
        if self._raised == _MAX_SIGNALS:
            return  # the clean-up of the second one
        self._raised += 1
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(TERMINATED)

    def forget_lost(self) -> None:
        self._raised -= 1


@contextmanager
def handle_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end this command, also where its parent ignores them, as a shell does for background jobs."""
    handler, hook = _CommandHandler(), sys.unraisablehook
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    _resend_lost_signals(handler.forget_lost, on_interrupt=handler.forget_lost)
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
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
    _resend_lost_signals(lambda: setattr(_WorkerState, "is_terminating", False))
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


def _resend_lost_signals(listen: Callable[[], None], on_interrupt: Callable[[], None] = lambda: None) -> None:
    """Repeat an interrupt or SIGTERM that arrives inside a finalizer, where Python drops exceptions."""
    usual = sys.unraisablehook

    def resend(unraisable: UnraisableHookArgs) -> None:
        number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(unraisable.exc_type)
        if number is None:
            usual(unraisable)
            return
        (listen if number == signal.SIGTERM else on_interrupt)()
        main = threading.main_thread().ident or 0
        timer = threading.Timer(_RESEND_DELAY_S, signal.pthread_kill, (main, number))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = resend
