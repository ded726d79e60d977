"""Stop a run from outside the program: after its current node, with its sandbox saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.runtime import RunControl

_SIGTERM_CODE = 128 + signal.SIGTERM


@contextmanager
def drain_on_sigterm(control: RunControl) -> Iterator[None]:
    """On SIGTERM, end the run after its current node, then the process as SIGTERM would have."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # a handler that was not installed from Python cannot be restored, so it stays
        return
    came: list[int] = []

    def stop(number: int, frame: Any) -> None:
        came.append(number)
        control.request_drain("SIGTERM")

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        # Also if the run failed meanwhile: SIGTERM must still end the process.
        if came and callable(before):
            before(signal.SIGTERM, None)
        elif came and before != signal.SIG_IGN:
            raise SystemExit(_SIGTERM_CODE)
