"""Stop a run from outside the program: after its current node, with its sandbox saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.runtime import RunControl

from langgraph_takeover.nodes.model.connections.deadlines import Cancellation

_SIGTERM_CODE = 128 + signal.SIGTERM


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
            raise SystemExit(_SIGTERM_CODE)
