"""How a run is ended from outside the program: after its node, with its machine kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langgraph.runtime import RunControl

_SIGTERM_CODE = 128 + signal.SIGTERM


@contextmanager
def stopping(control: RunControl) -> Iterator[None]:
    """On SIGTERM the run ends after its node, with its machine frozen; then the process is ended as it would be."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def stop(number: int, frame: Any) -> None:
        came.append(number)
        control.request_drain("SIGTERM")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if came:
        if callable(before):
            before(signal.SIGTERM, None)
        elif before != signal.SIG_IGN:
            raise SystemExit(_SIGTERM_CODE)
