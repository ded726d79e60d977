"""Stop a run from outside the program: after its current node, with its sandbox saved; and the signals of a command."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from langgraph_takeover.base.failures import ObserverErrors

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from langgraph.runtime import RunControl

    from langgraph_takeover.nodes.model.deadlines import Cancellation

TERMINATED = 128 + signal.SIGTERM
WAITING = "waiting for the call in flight; again to end now"
_MAX_SIGNALS = 2
_RESEND_DELAY_S = 0.05


@contextmanager
def drain_on_sigterm(control: RunControl, cancellation: Cancellation) -> Iterator[None]:
    """On SIGTERM, end the run after its current node, then the process as SIGTERM would have.

    A wait for the model's endpoint ends at once, on Ctrl-C too.

    A program whose handler has a method `announce` says at once that it waits; then its second signal ends the run at once,
    and Ctrl-C waits too, if the same handler serves it.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # a handler that was not installed from Python cannot be restored, so it stays
        return
    announce = getattr(before, "announce", None)
    numbers = [signal.SIGTERM]
    if announce is not None and signal.getsignal(signal.SIGINT) is before:
        numbers.append(signal.SIGINT)
    came: list[int] = []

    def stop(number: int, frame: Any) -> None:
        came.append(number)
        cancellation.ends_waits = True
        control.request_drain("SIGTERM")
        if announce is not None and len(came) == 1:
            announce(number)
        elif announce is not None and callable(before):
            came.clear()
            before(number, frame)

    interrupt = signal.getsignal(signal.SIGINT)

    def end_wait(number: int, frame: Any) -> None:
        cancellation.ends_waits = True
        if callable(interrupt):
            interrupt(number, frame)

    for number in numbers:
        signal.signal(number, stop)
    if callable(interrupt) and signal.SIGINT not in numbers:
        signal.signal(signal.SIGINT, end_wait)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before)
        if interrupt is not None:
            signal.signal(signal.SIGINT, interrupt)
        # Also if the run failed meanwhile: SIGTERM must still end the process.
        if came and callable(before):
            before(came[0], None)
        elif came and before != signal.SIG_IGN:
            raise SystemExit(TERMINATED)


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
    resend_lost_signals(handler.forget_lost, on_interrupt=handler.forget_lost)
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
        sys.unraisablehook = hook


def resend_lost_signals(listen: Callable[[], None], on_interrupt: Callable[[], None] = lambda: None) -> None:
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
